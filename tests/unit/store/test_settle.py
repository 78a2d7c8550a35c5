"""One log against one partition: all of the answer, also where nothing may be written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.core.authority import Coverage, Partition, StoredEvent, Watermark
from sidecar.core.event import Event
from sidecar.core.links import Ordered, order_by_links
from sidecar.core.populate import InSync, LogRead, Refused, StaleLog
from sidecar.core.ports import ExecutionLog
from sidecar.errors import InvariantError
from sidecar.store.populate import Settled, settle
from tests.contract.events import E, chain

NOW = 1000
HELD = tuple(StoredEvent(seq, event, "log", 1) for seq, event in enumerate(chain(1, 2), 1))
RECORD = Partition(
    E, head_seq=2, head_event_id=2, watermark=Watermark(1, 2), coverage=Coverage(1, 2), first_seen_at=1
)


def settled(events: tuple[Event, ...], record: Partition = RECORD, *, began_at: int = NOW) -> Settled:
    return settle(ExecutionLog(E, events, LogRead(began_at)), events, record, HELD)


def test_a_log_that_grew_says_what_to_append_and_how_it_stands_in_order() -> None:
    events = chain(1, 2, 3)
    done = settled(events[::-1])
    assert done.result.outcome == InSync(3, 1)
    assert isinstance(done.result.order, Ordered)
    assert done.result.order.events == events
    assert done.new == (events[2],)
    assert done.result.partition.head_event_id == 3
    assert (done.changed, done.result.written, done.result.cleared_bar) == (True, True, False)
    assert done.read == LogRead(NOW)


REVOKED = replace(RECORD, coverage=None, revoked_at=NOW, revoked_reason="operator")
LABELLED = replace(RECORD, coverage=None, label="fork", labelled_at=NOW)


@pytest.mark.parametrize("record", [REVOKED, LABELLED], ids=["revoked", "labelled"])
def test_a_read_older_than_a_bar_answers_and_writes_nothing(record: Partition) -> None:
    events = chain(1, 3)
    done = settled(events, record, began_at=NOW)
    assert done.result.order == order_by_links(events)
    assert done.result.partition is record
    assert done.result.absent == (HELD[1],)
    assert (done.changed, done.result.written, done.result.cleared_bar) == (False, False, False)
    assert done.new == ()
    assert isinstance(done.result.outcome, Refused) == (record is LABELLED)


def test_a_young_read_clears_the_bar() -> None:
    done = settled(chain(1, 2), REVOKED, began_at=NOW + 1)
    assert (done.changed, done.result.written, done.result.cleared_bar) == (True, True, True)
    assert done.result.partition.coverage == Coverage(1, 2)


def test_a_log_behind_the_store_names_what_it_lacks() -> None:
    done = settled(chain(1))
    assert done.result.outcome == StaleLog(2, 1)
    assert done.result.absent == (HELD[1],)
    assert (done.changed, done.result.written, done.new) == (False, False, ())


def test_another_executions_event_in_the_log_is_our_bug() -> None:
    with pytest.raises(InvariantError, match="another execution"):
        settled(chain(1, execution_id=E + 1))
