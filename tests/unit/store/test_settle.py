"""One log against one partition: all of the answer, also where nothing may be written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.core.authority import Coverage, Partition, StoredEvent, Torn, Watermark
from sidecar.core.event import Event
from sidecar.core.links import Ordered, order_by_links
from sidecar.core.populate import InSync, LogRead, Refused, StaleLog, Unreadable, populated
from sidecar.core.ports import ExecutionLog, Populated
from sidecar.core.rejoin import Join, Kept
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
    assert (done.new, done.read) == ((), LogRead(NOW))
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
    with pytest.raises(InvariantError, match=r"^a log holds another execution.s event$"):
        settled(chain(1, execution_id=E + 1))


# All of the answer


JOIN = Join(E, 2, 9, xid=150, anchor=100, epoch="e", joined_at=5)
JOINED = (*HELD, StoredEvent(3, chain(9)[0], "log", 1))


def answer(
    events: tuple[Event, ...],
    record: Partition,
    stored: tuple[StoredEvent, ...] = HELD,
    joins: tuple[Join, ...] = (),
    *,
    began_at: int = NOW,
) -> Populated:
    return settle(ExecutionLog(E, events, LogRead(began_at)), events, record, stored, joins).result


def test_a_torn_record_answers_with_the_damage_and_what_is_not_stored() -> None:
    events = chain(1, 2, 3)
    torn = replace(RECORD, watermark=None, torn=Torn("watermark", (1, None, 1, 2)))
    done = settle(ExecutionLog(E, events, LogRead(NOW)), events, torn, HELD)
    order = order_by_links(events)
    unreadable = Unreadable("watermark")
    assert done.result == Populated(unreadable, order, torn, (), False, False, frozenset({3}))
    assert (done.read, done.new, done.changed) == (LogRead(NOW), (), False)


def test_a_read_that_may_not_write_still_says_what_it_shows() -> None:
    events = chain(1, 3)
    order = order_by_links(events)
    revoked = answer(events, REVOKED)
    assert revoked == Populated(revoked.outcome, order, REVOKED, (HELD[1],), False, False, frozenset({3}))
    assert not isinstance(revoked.outcome, Refused)
    found = answer(events, LABELLED)
    assert found == Populated(Refused("fork"), order, LABELLED, (HELD[1],), False, False, frozenset({3}))


def test_a_refused_log_says_what_it_shows_and_changes_the_record_as_it_must() -> None:
    events = (*chain(1, 2), chain(1, 4)[1])
    done = settle(ExecutionLog(E, events, LogRead(NOW)), events, RECORD, HELD)
    after = populated(RECORD, Refused("fork"), (), LogRead(NOW))
    order = order_by_links(events)
    assert done.result == Populated(Refused("fork"), order, after, (), False, False, frozenset({4}))
    assert (done.new, done.changed) == ((), after != RECORD)


def test_rows_with_a_hole_are_no_chain() -> None:
    stored = (HELD[0], StoredEvent(3, HELD[1].event, "log", 1))
    assert answer(chain(1, 2), RECORD, stored).outcome == Refused("store_gap")


def test_an_execution_that_was_delivered_and_has_no_log_is_pruned() -> None:
    assert answer((), Partition(E, first_seen_at=1), ()).outcome == Refused("log_pruned")
    assert answer((), Partition(E), ()).outcome == InSync(0, 0)


@pytest.mark.parametrize("barred", [False, True])
def test_a_log_that_contradicts_a_join_in_use_says_so_whether_it_may_write_or_not(barred: bool) -> None:
    events = (*chain(1, 2), *chain(9), chain(2, 3)[1])
    record = REVOKED if barred else RECORD
    found = answer(events, record, JOINED, (JOIN,))
    assert (found.outcome, found.written) == (Refused("multiple_roots"), False)
    assert (found.against, found.withdrawn) == (Kept((JOIN,)), True)
    unused = answer(events, record, HELD, (JOIN,))
    assert (unused.against, unused.withdrawn) == (Kept((), (JOIN,)), False)


def test_a_join_orders_a_log_with_two_roots() -> None:
    events = (*chain(1, 2), *chain(9))
    done = settle(ExecutionLog(E, events, LogRead(NOW)), events, RECORD, HELD, (JOIN,))
    assert (done.result.outcome, done.new) == (InSync(3, 1), (events[2],))
    assert (done.result.against, done.result.withdrawn) == (Kept(), False)
    assert (done.result.unstored, done.result.absent) == (frozenset(), ())


def test_a_log_whose_links_say_what_was_joined_speaks_against_nothing() -> None:
    events = (*chain(1, 2), chain(2, 9)[1])
    found = answer(events, RECORD, JOINED, (JOIN,))
    assert isinstance(found.order, Ordered)
    assert (found.against, found.withdrawn) == (Kept(), False)
