"""Joins: the proof clause by clause, pieces in a row however they come, and what speaks against one."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.event import Event
from sidecar.core.links import DanglingPrev, Forked, MultipleRoots, Ordered, order_by_links
from sidecar.core.rejoin import (
    Join,
    Joined,
    Kept,
    Missing,
    Sighting,
    Unjoined,
    chain_order,
    contradicted,
    is_withdrawn,
    join,
    parted,
    pieces,
    predecessors,
    rejoined,
)
from tests.unit.core.build import E, chain, ev

EPOCH = "one"


def seen(event_id: int, **changes: Any) -> Sighting:
    return replace(Sighting(event_id, xid=None, anchor=100, epoch=EPOCH), **changes)


def proof(tip: int, root: int, **changes: Any) -> Join:
    return replace(Join(E, tip, root, xid=100, anchor=100, epoch=EPOCH, joined_at=1), **changes)


def ids(found: object) -> list[int]:
    assert isinstance(found, Joined)
    return [event.event_id for event in found.events]


def unjoined(events: tuple[Event, ...], *joins: Join) -> Unjoined:
    order = order_by_links(events)
    assert isinstance(order, MultipleRoots)
    found = rejoined(events, order, joins)
    assert isinstance(found, Unjoined)
    assert found.refusal == order
    assert chain_order(events, joins) == order
    return found


# The proof


def test_2_13_an_xid_from_the_anchor_on_is_proven() -> None:
    found = join(E, seen(3), seen(9, xid=100), now=7)
    assert found == Join(E, 3, 9, xid=100, anchor=100, epoch=EPOCH, joined_at=7)


@pytest.mark.parametrize(
    ("tip", "root", "why"),
    [
        ({}, {"xid": 99}, Missing.BEFORE_ANCHOR),
        ({}, {"xid": None}, Missing.UNKNOWN_XID),
        ({"anchor": None}, {"xid": 100}, Missing.UNKNOWN_ANCHOR),
        ({"epoch": None}, {"xid": 100}, Missing.UNKNOWN_ANCHOR),
        ({}, {"xid": 100, "epoch": "two"}, Missing.OTHER_EPOCH),
        ({}, {"xid": 100, "epoch": None}, Missing.OTHER_EPOCH),
        ({}, {"xid": 100, "anchor": None}, Missing.PART_OF_A_POLL),
    ],
)
def test_2_13_everything_else_is_no_proof(tip: dict[str, Any], root: dict[str, Any], why: Missing) -> None:
    assert join(E, seen(3, **tip), seen(9, **root), now=7) is why


def test_2_13_what_one_poll_saw_together_is_not_ordered_by_it() -> None:
    """The next unassigned xid is read after the poll, so every row of the poll has a smaller one."""
    assert join(E, seen(3, xid=98, anchor=100), seen(9, xid=99, anchor=100), 1) is Missing.BEFORE_ANCHOR


BEHIND: dict[str, Any] = {"xid": 99, "first_lsn": 501}
"""A root whose anchor proves nothing, and that was written behind a commit at 500."""


@pytest.mark.parametrize("anchors", [{"anchor": 100}, {"anchor": None}])
def test_a_root_that_was_written_behind_the_commit_of_the_tip_is_proven_by_positions(
    anchors: dict[str, Any],
) -> None:
    found = join(E, seen(3, commit_lsn=500, **anchors), seen(9, **BEHIND), now=7)
    assert found == Join(E, 3, 9, 99, None, EPOCH, 7, tip_lsn=500, root_lsn=501)
    assert found.stands
    part = seen(9, **{**BEHIND, "anchor": None})
    assert isinstance(join(E, seen(3, commit_lsn=500), part, now=7), Join)


def test_where_the_anchor_is_a_proof_it_is_the_one_that_is_kept() -> None:
    found = join(E, seen(3, commit_lsn=500), seen(9, xid=100, first_lsn=501), now=7)
    assert found == Join(E, 3, 9, 100, 100, EPOCH, 7)


@pytest.mark.parametrize(
    ("tip", "root", "why"),
    [
        ({}, {"first_lsn": 499}, Missing.BEFORE_ANCHOR),
        ({}, {"first_lsn": 500}, Missing.BEFORE_ANCHOR),
        ({}, {"first_lsn": None}, Missing.BEFORE_ANCHOR),
        ({"commit_lsn": None}, {}, Missing.BEFORE_ANCHOR),
        ({}, {"xid": None}, Missing.UNKNOWN_XID),
        ({}, {"epoch": "two"}, Missing.OTHER_EPOCH),
        ({"epoch": None}, {"epoch": None}, Missing.UNKNOWN_ANCHOR),
    ],
)
def test_positions_prove_nothing_else(tip: dict[str, Any], root: dict[str, Any], why: Missing) -> None:
    assert join(E, seen(3, **{"commit_lsn": 500, **tip}), seen(9, **{**BEHIND, **root}), now=7) is why


@pytest.mark.parametrize(
    ("tip_lsn", "root_lsn", "stands"),
    [(500, 501, True), (500, 500, False), (None, 501, False), (500, None, False)],
)
def test_a_join_by_positions_stands_by_its_own_numbers(
    tip_lsn: int | None, root_lsn: int | None, *, stands: bool
) -> None:
    assert proof(3, 9, anchor=None, tip_lsn=tip_lsn, root_lsn=root_lsn).stands is stands


# Pieces


def test_pieces_are_the_chains_that_the_links_make() -> None:
    found = pieces((*chain(1, 2, 3), *chain(7, 5), *chain(6)))
    assert found is not None
    assert sorted((piece.root, piece.tip, len(piece.events)) for piece in found) == [
        (1, 3, 3),
        (6, 6, 1),
        (7, 5, 2),
    ]


@pytest.mark.parametrize(
    "more",
    [
        (ev(4, 1),),  # a fork in a piece
        (ev(4, 99),),  # leads nowhere
        (ev(4, 5), ev(5, 4)),  # a circle
        (ev(4, 4),),
        (ev(2, 1),),  # twice
    ],
)
def test_no_pieces_where_the_links_alone_are_wrong(more: tuple[Event, ...]) -> None:
    events = (*chain(1, 2), *chain(7, 8), *more)
    assert pieces(events) is None
    assert not isinstance(chain_order(events, (proof(2, 7),)), Joined)


# The row


def test_two_pieces_join_and_no_event_is_changed() -> None:
    events = (*chain(7, 8), *chain(1, 2))
    found = chain_order(events, (proof(2, 7),))
    assert ids(found) == [1, 2, 7, 8]
    assert isinstance(found, Joined)
    assert found.joins == (proof(2, 7),)
    assert [event.prev_event_id for event in found.events] == [None, 1, None, 7]


def test_the_tip_counts_and_not_the_root_of_the_piece_before() -> None:
    """9 is proven to come after 1, at which the first piece begins; it went on to 2."""
    found = unjoined((*chain(1, 2), *chain(9)), proof(1, 9))
    assert found.missing == {1: Missing.NO_PROOF, 9: Missing.NOT_THE_TIP}


def test_a_second_proof_against_the_same_tip_orders_nothing() -> None:
    found = unjoined((*chain(1, 2), *chain(7), *chain(9)), proof(2, 7), proof(2, 9))
    assert found.missing == {1: Missing.NO_PROOF, 7: Missing.AMBIGUOUS, 9: Missing.AMBIGUOUS}


def test_one_missing_proof_among_many_refuses_all() -> None:
    events = tuple(event for at in range(25) for event in chain(100 - at, 300 + at))
    joins = [proof(300 + at, 99 - at) for at in range(24)]
    assert ids(chain_order(events, joins)) == [i for at in range(25) for i in (100 - at, 300 + at)]
    for left_out in range(24):
        found = unjoined(events, *joins[:left_out], *joins[left_out + 1 :])
        assert found.missing == {100: Missing.NO_PROOF, 99 - left_out: Missing.NO_PROOF}


def test_joins_in_a_circle_have_no_first_piece() -> None:
    assert unjoined((*chain(1, 2), *chain(7, 8)), proof(2, 7), proof(8, 1)).missing == {}


def test_a_circle_beside_the_first_piece_is_no_row() -> None:
    events = (*chain(1, 2), *chain(7, 8), *chain(4, 5))
    assert unjoined(events, proof(8, 4), proof(5, 7)).missing == {1: Missing.NO_PROOF}


def test_a_withdrawn_join_joins_nothing_for_ever() -> None:
    found = unjoined((*chain(1, 2), *chain(9)), proof(2, 9, withdrawn_at=5))
    assert found.missing == {1: Missing.NO_PROOF, 9: Missing.WITHDRAWN}


def test_a_piece_that_was_joined_once_begins_no_chain() -> None:
    """The first piece is gone from the log, and what followed it is no beginning."""
    found = unjoined((*chain(7), *chain(9)), proof(2, 7, withdrawn_at=5), proof(7, 9))
    assert found.missing == {7: Missing.WITHDRAWN}


def test_a_kept_join_that_its_own_numbers_do_not_prove_is_none() -> None:
    """Somebody else wrote into the store."""
    found = unjoined((*chain(1, 2), *chain(9)), proof(2, 9, xid=99))
    assert found.missing == {1: Missing.NO_PROOF, 9: Missing.BEFORE_ANCHOR}
    assert predecessors((proof(2, 9, xid=99),)) == {}


@pytest.mark.parametrize("events", [chain(1, 2), (), (ev(1), ev(2, 1), ev(3, 1)), (ev(1), ev(3, 2), ev(7))])
def test_what_the_links_decide_alone_is_not_asked_of_joins(events: tuple[Event, ...]) -> None:
    assert chain_order(events, (proof(2, 7),)) == order_by_links(events)


@given(st.integers(1, 6), st.data())
def test_every_arrival_order_gives_one_row(count: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    names = data.draw(st.permutations(range(1, sum(sizes) + 1)))
    fresh = iter(names)
    parts = [chain(*itertools.islice(fresh, size)) for size in sizes]
    joins = [proof(a[-1].event_id, b[0].event_id) for a, b in itertools.pairwise(parts)]
    rows = data.draw(st.permutations([event for part in parts for event in part]))
    found = chain_order(tuple(rows), data.draw(st.permutations(joins)))
    assert isinstance(found, Joined | Ordered)
    assert [event.event_id for event in found.events] == names
    assert isinstance(found, Joined) == (count > 1)


# Contradictions


def test_a_row_behind_a_tip_contradicts_that_join_alone() -> None:
    joins = (proof(2, 7), proof(7, 9))
    assert contradicted((ev(3, 2),), joins) == joins[:1]
    assert contradicted((ev(8, 7),), joins) == joins[1:]
    assert contradicted((ev(8, 9), ev(11)), joins) == ()


def test_a_fork_anywhere_contradicts_every_join() -> None:
    joins = (proof(2, 7), proof(7, 9))
    assert contradicted((ev(3, 1), ev(4, 1)), joins) == joins


def test_one_row_seen_twice_is_no_fork() -> None:
    assert contradicted((ev(3, 1), ev(3, 1)), (proof(2, 7),)) == ()


def test_what_is_withdrawn_is_not_contradicted_again() -> None:
    assert contradicted((ev(3, 2),), (proof(2, 7, withdrawn_at=5),)) == ()


def test_a_log_whose_link_was_repaired_contradicts_nothing() -> None:
    """The root names the tip now: links say themselves what was joined."""
    repaired = (*chain(1, 2), ev(9, 2))
    assert not is_withdrawn(repaired, chain_order(repaired, (proof(2, 9),)), Kept((proof(2, 9),)))


def test_a_dangling_row_beside_the_contradiction_hides_nothing() -> None:
    events = (*chain(1, 2), ev(9), ev(3, 2), ev(20, 99))
    order = chain_order(events, (proof(2, 9),))
    assert isinstance(order, DanglingPrev)
    assert is_withdrawn(events, order, Kept((proof(2, 9),)))


def test_a_fork_and_a_withdrawn_join_are_told_apart() -> None:
    events = (*chain(1, 2), ev(3, 1))
    assert isinstance(order_by_links(events), Forked)
    assert not is_withdrawn(events, order_by_links(events), Kept())


def test_a_join_is_in_use_when_its_root_is_stored_whatever_became_of_it() -> None:
    used, gone, unused = proof(2, 7), proof(7, 9, withdrawn_at=5), proof(9, 11)
    assert parted((used, gone, unused), {1, 2, 7, 9}) == Kept((used, gone), (unused,))
