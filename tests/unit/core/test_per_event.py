"""The record under single events, the walk from the head, what a replicated event meets."""

from __future__ import annotations

from itertools import permutations

import pytest

from sidecar.core.authority import Partition, StoredEvent, Watermark, advanced, placed, widened
from sidecar.core.event import Event
from sidecar.core.replicated import Arrival, arrival
from sidecar.core.walk import Gap, Revisited, Walked, is_complete, walk
from tests.support.changing import replace

E = 7


def event(event_id: int, prev: int | None = None, **changed: object) -> Event:
    return replace(Event(E, event_id, prev, None, "step.exit", "{}"), **changed)


CHAIN = (event(90), event(10, 90), event(50, 10))
ROWS = tuple(StoredEvent(seq, each) for seq, each in enumerate(CHAIN, start=1))
HEAD = Partition(E, head_seq=3, head_event_id=50)


# Markers


@pytest.mark.parametrize(
    ("current", "through", "after"),
    [
        (None, 1, Watermark(1, 1)),
        (None, 5, Watermark(5, 5)),
        (Watermark(0, 0), 1, Watermark(1, 1)),
        (Watermark(1, 6), 7, Watermark(1, 7)),
        (Watermark(3, 6), 7, Watermark(3, 7)),
        (Watermark(1, 7), 7, Watermark(1, 7)),
    ],
)
def test_c13_the_marker_advances_and_begins_where_it_began(
    current: Watermark | None, through: int, after: Watermark
) -> None:
    assert advanced(current, through) == after


@pytest.mark.parametrize(
    ("current", "seq", "after"),
    [
        (None, 3, Watermark(3, 3)),
        (Watermark(0, 0), 3, Watermark(3, 3)),
        (Watermark(3, 3), 1, Watermark(1, 3)),
        (Watermark(1, 1), 3, Watermark(1, 3)),
        (Watermark(2, 5), 4, Watermark(2, 5)),
    ],
)
def test_c07_c08_the_marker_widens_in_both_directions(
    current: Watermark | None, seq: int, after: Watermark
) -> None:
    assert widened(current, seq) == after


# The record


def test_a_row_behind_the_head_moves_it_and_forgets_its_anchor() -> None:
    before = replace(HEAD, head_anchor=5, head_epoch="e")
    after = placed(before, event(60, 50), 4, 99)
    assert after == Partition(E, head_seq=4, head_event_id=60, last_change_at=99)


def test_a_row_before_the_head_leaves_it_and_its_anchor() -> None:
    before = replace(HEAD, head_anchor=5, head_epoch="e", parent_execution_id=3)
    assert placed(before, event(10, 90), 2, 99) == replace(before, last_change_at=99)
    assert placed(before, event(50, 10), 3, 99) == replace(before, last_change_at=99)


def test_the_parent_is_the_first_rows_and_an_end_stays() -> None:
    first = event(90, parent_execution_id=4)
    end = event(10, 90, parent_execution_id=5, event_type="playbook.completed")
    for order in permutations(((1, first), (2, end))):
        record = Partition(E)
        for seq, each in order:
            record = placed(record, each, seq, 1)
        assert (record.parent_execution_id, record.terminal, record.head_event_id) == (4, True, 10)


# The walk


def test_d04_the_walk_is_by_links_newest_first() -> None:
    assert walk(HEAD, ROWS) == walk(HEAD, ROWS[::-1]) == Walked(ROWS[::-1])
    assert walk(None, ()) == walk(Partition(E), ()) == walk(None, ROWS) == Walked(())


@pytest.mark.parametrize(("lost", "missing"), [(0, 90), (1, 10), (2, 50)])
def test_d04_a_gap_is_named_the_head_included(lost: int, missing: int) -> None:
    rows = [row for row in ROWS if row != ROWS[lost]]
    assert walk(HEAD, rows) == Gap(missing)
    assert not is_complete(HEAD, rows)


@pytest.mark.parametrize("back", [90, 10, 50])
def test_a_circle_is_noticed_at_once(back: int) -> None:
    rows = (replace(ROWS[0], event=event(90, back)), *ROWS[1:])
    assert walk(HEAD, rows) == Revisited(back)
    assert not is_complete(HEAD, rows)


def test_d06_a_prefix_and_the_unknown_are_complete() -> None:
    assert is_complete(None, ())
    assert is_complete(Partition(E), ())
    assert is_complete(HEAD, ROWS)
    assert is_complete(Partition(E, head_seq=2, head_event_id=10), ROWS[:2])


def test_d05_the_span_counts_not_the_rows() -> None:
    far = StoredEvent(3, CHAIN[1])
    assert not is_complete(Partition(E, head_seq=3, head_event_id=10), (ROWS[0], far))
    assert not is_complete(Partition(E, head_seq=2, head_event_id=10), ROWS)  # a row behind the head
    assert not is_complete(Partition(E, head_seq=4, head_event_id=50), ROWS)  # a head ahead of the rows
    assert not is_complete(None, ROWS)


# Arrivals


def test_d09_the_same_event_in_its_place_is_known() -> None:
    assert arrival(CHAIN[1], 2, ROWS[1], ROWS[1]) is Arrival.KNOWN
    assert arrival(CHAIN[1], 2, None, None) is Arrival.NEW


def test_d07_anything_else_stands_against_what_is_there() -> None:
    assert arrival(event(10, 90, body="x"), 2, ROWS[1], ROWS[1]) == ROWS[1]
    assert arrival(CHAIN[1], 3, ROWS[1], ROWS[2]) == ROWS[1]
    assert arrival(CHAIN[1], 4, ROWS[1], None) == ROWS[1]
    assert arrival(event(77, 90), 2, None, ROWS[1]) == ROWS[1]
