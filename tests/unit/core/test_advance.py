"""The five decisions, each by an example, and by every small set of links.  Source: spec 3.9."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from sidecar.core.advance import (
    DECISIONS,
    Advance,
    BlockedAtGap,
    Decision,
    Empty,
    Forked,
    Terminal,
    decide,
)
from sidecar.core.event import Event
from tests.support.fixture_log import SPEC_ROWS
from tests.unit.core.build import chain, ev


def test_the_labels() -> None:
    assert DECISIONS == ("empty", "forked", "blocked_at_gap", "terminal", "advance")


def test_no_event_is_empty() -> None:
    assert decide(()) == Empty()


def test_a_whole_chain_advances_from_its_head_whatever_its_ids() -> None:
    assert decide(chain(10, 90, 20)) == Advance(20)


def test_a_terminal_head_ends_it_and_a_terminal_in_the_middle_does_not() -> None:
    last = ev(2, 1, kind="playbook.completed")
    assert decide((ev(1), last)) == Terminal(2)
    assert decide((ev(1), last, ev(3, 2))) == Advance(3)


def test_a_missing_link_is_named_with_who_names_it() -> None:
    assert decide((ev(11), ev(12, 11), ev(15, 14), ev(16, 15))) == BlockedAtGap(14, 15)


def test_two_successors_are_a_fork_before_any_gap() -> None:
    assert decide((ev(5, 4), ev(1), ev(3, 1), ev(2, 1))) == Forked(1, (2, 3))


def test_a_circle_is_a_fork() -> None:
    assert decide((ev(1, 2), ev(2, 1))) == Forked(2, (1,))
    assert decide((ev(1, 1),)) == Forked(1, (1,))


def test_of_two_heads_the_one_that_stands_last_is_taken() -> None:
    assert decide((ev(1), ev(2, 1), ev(9), ev(7, 9))) == Advance(7)
    assert decide((ev(9), ev(7, 9), ev(1), ev(2, 1))) == Advance(2)


@pytest.mark.parametrize(
    ("execution_id", "decision"), [(1001, Advance(7)), (1002, BlockedAtGap(14, 15)), (1003, Terminal(23))]
)
def test_three_shapes_of_the_fixture_are_three_decisions(execution_id: int, decision: Decision) -> None:
    rows = [row for row in SPEC_ROWS if row["execution_id"] == execution_id]
    events = tuple(
        Event(execution_id, row["event_id"], row["prev_event_id"], None, row["event_type"], "{}")
        for row in rows
    )
    assert decide(events) == decision


def _by_the_words(events: tuple[Event, ...]) -> str:
    """Spec 3.9 read once more, by counting."""
    ids = [event.event_id for event in events]
    prevs = [event.prev_event_id for event in events]
    if any(prevs.count(prev) > 1 for prev in prevs if prev is not None):
        return "forked"
    heads = [event for event in events if event.event_id not in prevs]
    if not heads:
        return "forked"
    at: int | None = heads[-1].event_id
    for _ in range(len(events) + 1):
        if at is None:
            break
        if at not in ids:
            return "blocked_at_gap"
        at = prevs[ids.index(at)]
    return "terminal" if heads[-1].is_terminal else "advance"


def test_every_set_of_links_over_three_events() -> None:
    seen = set()
    for prevs in product((None, 1, 2, 3, 8), repeat=3):
        for order in permutations((1, 2, 3)):
            kinds = {3: "playbook.completed"}
            events = tuple(ev(i, prevs[i - 1], kind=kinds.get(i, "step.exit")) for i in order)
            label = decide(events).label
            assert label == _by_the_words(events), events
            seen.add(label)
    assert seen == set(DECISIONS) - {"empty"}
