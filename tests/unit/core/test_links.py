"""Link order: named shapes, every small graph against a reference, every arrival order, O(n)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.event import Event
from sidecar.core.links import (
    ABSORBING_LABELS,
    DanglingPrev,
    DuplicateEvent,
    Forked,
    LinkOrder,
    LinkRefusal,
    MultipleRoots,
    NoRoot,
    Ordered,
    Unreachable,
    order_by_links,
)
from tests.unit.core.build import chain, ev

FIXTURE_2001 = (
    ev(2001),
    ev(2002, 2001),
    ev(2003, 2002),
    ev(2004, 2003),
    ev(2005),
    ev(2006),
    ev(2007, 2006),
)


def ids(order: LinkOrder) -> list[int]:
    assert isinstance(order, Ordered)
    return [event.event_id for event in order.events]


def test_k01_i07_an_interior_insert_is_ordered_by_link_and_an_id_sort_differs() -> None:
    events = [ev(10), ev(20, 90), ev(90, 10)]
    assert ids(order_by_links(events)) == [10, 90, 20]
    assert sorted(event.event_id for event in events) == [10, 20, 90]


def test_i07_ids_minted_in_one_order_and_committed_in_another() -> None:
    assert ids(order_by_links([ev(10), ev(30, 10), ev(20, 30)])) == [10, 30, 20]


def test_k02_two_roots_are_reported_sorted() -> None:
    assert order_by_links([ev(9), ev(4), ev(5, 9)]) == MultipleRoots((4, 9))


def test_k03_scrambled_input() -> None:
    events = chain(5, 3, 8, 1, 9)
    for arrival in itertools.permutations(events):
        assert order_by_links(arrival) == Ordered(events)


def test_k04_a_full_cycle_has_no_root() -> None:
    assert order_by_links([ev(1, 3), ev(2, 1), ev(3, 2)]) == NoRoot(3)


def test_k05_i15_a_fork_names_both_successors_and_chooses_none() -> None:
    assert order_by_links([ev(1), ev(3, 1), ev(2, 1)]) == Forked(1, (2, 3))


def test_k05_the_smallest_fork_is_reported_with_all_its_successors() -> None:
    events = [ev(1), ev(2, 1), ev(9, 8), ev(7, 8), ev(8, 1), ev(6, 1)]
    assert order_by_links(events) == Forked(1, (2, 6, 8))
    assert order_by_links(reversed(events)) == Forked(1, (2, 6, 8))


def test_k06_a_missing_predecessor_is_dangling() -> None:
    assert order_by_links([ev(1), ev(15, 14)]) == DanglingPrev(15, 14)


def test_k06_the_smallest_dangling_event_is_reported_whatever_came_first() -> None:
    events = [ev(1), ev(30, 29), ev(20, 40), ev(25, 24)]
    for arrival in itertools.permutations(events):
        assert order_by_links(arrival) == DanglingPrev(20, 40)


def test_k07_an_island_is_unreachable_and_a_chained_tail_is_not() -> None:
    assert order_by_links([ev(1), ev(2, 1), ev(3, 4), ev(4, 3)]) == Unreachable(2, 4)
    assert ids(order_by_links(chain(1, 2, 3, 4))) == [1, 2, 3, 4]


def test_k08_empty_and_single() -> None:
    assert order_by_links([]) == Ordered(())
    assert ids(order_by_links([ev(1)])) == [1]


def test_k09_labels_are_pinned() -> None:
    labels = {kind.label for kind in (Ordered, *get_args(LinkRefusal))}
    assert labels == {
        "ordered",
        "multiple_roots",
        "no_root",
        "fork",
        "dangling_prev",
        "unreachable",
        "duplicate_event",
    }
    assert {"multiple_roots", "fork", "unreachable", "duplicate_event"} == ABSORBING_LABELS


def test_k10_dangling_is_reported_before_two_roots() -> None:
    assert order_by_links([ev(1), ev(2), ev(4, 3)]) == DanglingPrev(4, 3)


def test_k11_a_repeated_id_is_refused_before_everything_else() -> None:
    assert order_by_links([ev(5, 77), ev(3), ev(3), ev(5, 77)]) == DuplicateEvent(3)
    assert order_by_links([ev(3), ev(3, note="other")]) == DuplicateEvent(3)


def test_k12_a_self_link_is_never_ordered() -> None:
    assert order_by_links([ev(1, 1)]) == NoRoot(1)
    assert order_by_links([ev(1), ev(2, 2)]) == Unreachable(1, 2)


def test_two_roots_are_reported_before_a_fork_and_a_fork_before_an_island() -> None:
    assert order_by_links([ev(1), ev(2), ev(3, 1), ev(4, 1)]) == MultipleRoots((1, 2))
    assert order_by_links([ev(1), ev(3, 1), ev(4, 1), ev(6, 6)]) == Forked(1, (3, 4))


def test_no_root_is_reported_before_a_fork() -> None:
    assert order_by_links([ev(1, 2), ev(2, 1), ev(3, 1)]) == NoRoot(3)


def test_i11_the_fixture_with_three_roots() -> None:
    assert order_by_links(FIXTURE_2001) == MultipleRoots((2001, 2005, 2006))


def test_i13_a_claim_row_with_null_prev_and_its_successor() -> None:
    assert order_by_links([*chain(1, 2, 3), ev(4), ev(5, 4)]) == MultipleRoots((1, 4))


class CountedId(int):
    """An id that counts how often it is looked up or compared."""

    uses = 0

    def __hash__(self) -> int:
        CountedId.uses += 1
        return int.__hash__(self)

    def __eq__(self, other: object) -> bool:
        CountedId.uses += 1
        return int.__eq__(self, other)


def _uses(events: Sequence[Event]) -> int:
    counted = [
        ev(CountedId(e.event_id), None if e.prev_event_id is None else CountedId(e.prev_event_id))
        for e in events
    ]
    CountedId.uses = 0
    order_by_links(counted)
    return CountedId.uses


@pytest.mark.parametrize("shape", ["chain", "roots"])
def test_i14_the_work_grows_with_the_rows_and_not_faster(shape: str) -> None:
    def events(n: int) -> tuple[Event, ...]:
        return chain(*range(1, n + 1)) if shape == "chain" else tuple(ev(i) for i in range(1, n + 1))

    small, large = _uses(events(1_000)), _uses(events(10_000))
    assert small >= 1_000
    assert large <= 11 * small


def test_i14_seventy_thousand_roots_are_refused() -> None:
    """Work that grew faster than the rows would outlast the suite."""
    order = order_by_links([ev(i) for i in range(70_000)])
    assert isinstance(order, MultipleRoots)
    assert len(order.event_ids) == 70_000


# Every graph on up to four events, against the definition written another way.


def _reference(events: Sequence[Event]) -> str:
    """Spec 2.7 by definition: sets and counting, no walk that shares a line with the code."""
    if not events:
        return "ordered"
    names = [event.event_id for event in events]
    if len(set(names)) < len(names):
        return "duplicate_event"
    prevs = [event.prev_event_id for event in events]
    if any(prev is not None and prev not in names for prev in prevs):
        return "dangling_prev"
    if prevs.count(None) != 1:
        return "no_root" if None not in prevs else "multiple_roots"
    named = [prev for prev in prevs if prev is not None]
    if len(set(named)) < len(named):
        return "fork"
    is_path = any(
        all(event.prev_event_id == before for event, before in zip(path, (None, *ids_of(path)), strict=False))
        for path in itertools.permutations(events)
    )
    return "ordered" if is_path else "unreachable"


def ids_of(events: Iterable[Event]) -> list[int]:
    return [event.event_id for event in events]


def _every_graph(size: int) -> Iterator[tuple[Event, ...]]:
    """Every link function of `size` events into themselves, NULL, and one id outside."""
    targets = (None, *range(1, size + 1), 99)
    for prevs in itertools.product(targets, repeat=size):
        yield tuple(ev(i, prev) for i, prev in enumerate(prevs, start=1))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4])
def test_every_graph_of_up_to_four_events_gets_the_label_of_the_definition(size: int) -> None:
    for events in _every_graph(size):
        order = order_by_links(events)
        assert order.label == _reference(events), events
        if isinstance(order, Ordered):
            assert sorted(ids(order)) == sorted(ids_of(events))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_graph_gets_one_answer_in_every_arrival_order(size: int) -> None:
    for events in _every_graph(size):
        first = order_by_links(events)
        assert order_by_links(reversed(events)) == first
        assert order_by_links(events[1:] + events[:1]) == first


ID_LISTS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30, unique=True)


@given(ID_LISTS, st.randoms(use_true_random=False))
def test_every_arrival_order_of_a_chain_gives_one_order(names: list[int], random: object) -> None:
    events = chain(*names)
    arrival = list(events)
    random.shuffle(arrival)  # type: ignore[attr-defined] # hypothesis gives a random.Random
    assert order_by_links(arrival) == Ordered(events)


@given(ID_LISTS.filter(lambda names: len(names) >= 3), st.data())
def test_every_mutation_of_a_chain_is_refused_under_its_label(names: list[int], data: st.DataObject) -> None:
    events = chain(*names)
    at = data.draw(st.integers(1, len(events) - 2))
    dropped = [*events[:at], *events[at + 1 :]]
    assert order_by_links(dropped) == DanglingPrev(names[at + 1], names[at])

    without_root = events[1:]
    assert order_by_links(without_root) == DanglingPrev(names[1], names[0])

    other = data.draw(st.integers(-(2**63), 2**63 - 1).filter(lambda i: i not in names))
    assert order_by_links([*events, ev(other)]) == MultipleRoots(tuple(sorted((names[0], other))))

    forked = [*events, ev(other, names[at])]
    assert order_by_links(forked) == Forked(names[at], tuple(sorted((names[at + 1], other))))

    closed = [ev(names[0], names[-1]), *events[1:]]
    assert order_by_links(closed) == NoRoot(len(names))

    looped = [*events[:at], ev(names[at], names[-1]), *events[at + 1 :]]
    assert order_by_links(looped) == Unreachable(at, len(names))

    assert order_by_links([*events, events[at]]) == DuplicateEvent(names[at])
