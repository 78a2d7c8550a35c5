"""What a log read tells, and what its populate means to the execution's entry."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.core.authority import Partition
from sidecar.core.due import Asked, Due
from sidecar.core.event import Event
from sidecar.core.links import order_by_links
from sidecar.core.populate import InSync, LogRead, Outcome, StaleLog
from sidecar.core.ports import Batch, ExecutionLog, Populated, save_due
from tests.unit.core.build import EPOCH, E, chain, placed

EVENTS = chain(1, 2)
STORED = placed(EVENTS)


def log(events: tuple[Event, ...] | None, *, whole: bool = True) -> ExecutionLog:
    return ExecutionLog(E, events, LogRead(5, whole=whole))


@pytest.mark.parametrize(
    ("read", "tells", "absent", "untold"),
    [
        (log(EVENTS), True, (), False),
        (log(EVENTS[:1]), True, STORED[1:], False),
        (log(()), True, STORED, False),
        (log(None), False, (), False),
        (log(EVENTS, whole=False), True, (), False),
        (log(EVENTS[:1], whole=False), True, STORED[1:], True),
        (log((), whole=False), False, STORED, True),
        (log(None, whole=False), False, (), False),
    ],
)
def test_a_read_without_a_partition_never_says_that_rows_are_gone(
    read: ExecutionLog, tells: bool, absent: object, untold: bool
) -> None:
    assert (read.tells, read.absent(STORED), read.untold(STORED)) == (tells, absent, untold)


def test_an_empty_read_without_a_partition_tells_nothing_though_nothing_is_stored() -> None:
    assert log((), whole=False).untold(())


@pytest.mark.parametrize(
    ("outcome", "written", "synced"),
    [(InSync(2, 2), True, True), (InSync(2, 2), False, False), (StaleLog(2, 1), True, False)],
)
def test_only_what_was_written_and_is_in_sync_answers_an_entry(
    outcome: Outcome, written: bool, synced: bool
) -> None:
    for cleared in (True, False):
        done = Populated(outcome, order_by_links(EVENTS), Partition(E), (), written, cleared)
        assert done.synced is synced
        assert done.asked(LogRead(5)) == Asked(5, synced=synced, cleared_bar=cleared)


def test_a_batch_without_a_cursor_says_that_more_follow() -> None:
    assert Batch("live", EPOCH, 1, 2).more


class Entries:
    def __init__(self) -> None:
        self.said: list[object] = []

    def put_due(self, due: Due) -> None:
        self.said.append(due)

    def drop_due(self, execution_id: int) -> None:
        self.said.append(execution_id)


FIRST, SECOND = Due(E, due_at=1, first_seen_at=1), Due(E, due_at=2, first_seen_at=1)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (None, None, []),
        (FIRST, None, [E]),
        (None, FIRST, [FIRST]),
        (FIRST, FIRST, []),
        (FIRST, SECOND, [SECOND]),
    ],
)
def test_an_entry_is_written_where_something_became_of_it(before: Any, after: Any, said: object) -> None:
    unit: Any = Entries()
    save_due(unit, E, before, after)
    assert unit.said == said
