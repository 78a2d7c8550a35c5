"""All that `prove` answers, where the rows are not placed too: the run, the proofs, what they contradict.

The store holds 1 and 2; the head was seen in a poll with anchor 100.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.core.event import Event
from sidecar.core.horizon import TailRow
from sidecar.core.links import MultipleRoots, order_by_links
from sidecar.core.proofs import Proofs, prove
from sidecar.core.rejoin import NOTHING_KEPT, Join, Kept, Unjoined, is_withdrawn, rejoined, spoken_against
from tests.unit.core.build import EPOCH, E, by_id, chain, covered, ev, placed

STORED = chain(1, 2)
HEAD = covered(STORED, head_anchor=100)
JOIN = Join(E, 2, 9, xid=150, anchor=100, epoch=EPOCH, joined_at=9)
NOW = 9


def row(event: Event, xid: int | None = 150, *, anchor: int | None = 200) -> TailRow:
    return TailRow(event, 1, xid, EPOCH, anchor, seen_at=5)


def proven(*rows: TailRow, kept: Kept = NOTHING_KEPT, **missing: Any) -> Proofs:
    return prove(HEAD, rows, by_id(placed(STORED)), kept, NOW, **missing)


ROOT = row(ev(9))
NEXT, AFTER = row(ev(3, 2), 120, anchor=140), row(ev(4, 3), 120, anchor=140)


def test_a_long_piece_stands_behind_the_tip_row_by_row() -> None:
    rows = (ROOT, row(ev(8, 9)), row(ev(7, 8)), row(ev(6, 7)))
    assert proven(*rows) == Proofs(rows, (JOIN,))


def test_rows_behind_the_head_alone_are_placed_without_a_proof() -> None:
    assert proven(AFTER, NEXT) == Proofs((NEXT, AFTER))


def test_rows_in_a_circle_end() -> None:
    """Somebody delivers a stored row again, behind its own successor."""
    again = row(ev(2, 3))
    assert proven(NEXT, again).run == (NEXT, again)


@pytest.mark.parametrize("with_root", [True, False])
def test_a_fork_proves_nothing_and_the_run_behind_the_head_is_told(with_root: bool) -> None:
    fork = (row(ev(5, 4), 120, anchor=140), row(ev(6, 4), 120, anchor=140))
    found = proven(*((ROOT,) if with_root else ()), NEXT, AFTER, *fork)
    assert found == Proofs((NEXT, AFTER, fork[1]), placed=not with_root)


def test_a_fork_behind_a_root_in_the_batch_is_one() -> None:
    assert proven(ROOT, row(ev(8, 7), 120, anchor=140), row(ev(6, 7), 120, anchor=140)).joins == ()


@pytest.mark.parametrize("with_root", [True, False])
def test_with_rows_known_of_and_not_at_hand_the_run_is_told(with_root: bool) -> None:
    found = proven(*((ROOT,) if with_root else ()), NEXT, missing=True)
    assert found == Proofs((NEXT,), placed=not with_root)


def test_a_row_that_waits_keeps_the_proof_and_places_no_root() -> None:
    waits = row(ev(5, 77), 120, anchor=140)
    kept = replace(JOIN, tip_event_id=5, anchor=140)
    assert proven(ROOT, NEXT, waits) == Proofs((NEXT,), (kept,), placed=False)
    assert proven(NEXT, waits) == Proofs((NEXT,))


def test_a_second_root_without_a_proof_keeps_the_proof_of_the_first() -> None:
    second = row(ev(7), 160)
    assert proven(second, ROOT) == Proofs((ROOT,), (JOIN,), placed=False)


def test_a_root_of_unknown_xid_comes_first_and_places_none() -> None:
    assert proven(ROOT, row(ev(7), None)) == Proofs((), placed=False)


def test_what_a_join_is_as_json() -> None:
    big = Join(E, 2**62, 2**62 + 1, 2**61, 2**60, "one", 5, 6)
    assert big.document() == {
        "tip_event_id": "4611686018427387904",
        "root_event_id": "4611686018427387905",
        "xid": "2305843009213693952",
        "anchor": "1152921504606846976",
        "tip_lsn": None,
        "root_lsn": None,
        "epoch": "one",
        "joined_at": 5,
        "withdrawn_at": 6,
    }
    placed_by_log = replace(big, anchor=None, tip_lsn=2**32 + 10, root_lsn=2**33)
    found = placed_by_log.document()
    assert (found["anchor"], found["tip_lsn"], found["root_lsn"]) == (None, "1/A", "2/0")


def test_where_the_links_alone_are_wrong_no_proof_is_missing() -> None:
    events = (ev(1), ev(9), ev(4, 99))
    refusal = MultipleRoots((1, 9))
    assert rejoined(events, refusal, (JOIN,)) == Unjoined(refusal, {})
    assert order_by_links(events).label != "ordered"


def test_what_a_log_speaks_against_is_told_apart_by_whether_it_was_used() -> None:
    events = (*STORED, ev(9), ev(3, 2))
    order = order_by_links(events)
    for kept in (Kept((JOIN,)), Kept((), (JOIN,))):
        assert spoken_against(events, order, kept) == kept
    assert spoken_against(STORED, order_by_links(STORED), Kept((JOIN,), (JOIN,))) == NOTHING_KEPT


def test_what_was_withdrawn_once_stays_so_whatever_the_log_says_now() -> None:
    order = order_by_links(STORED)
    assert is_withdrawn(STORED, order, Kept((replace(JOIN, withdrawn_at=0),)))
    assert not is_withdrawn(STORED, order, Kept((JOIN,), (replace(JOIN, withdrawn_at=0),)))


AGAINST = row(ev(4, 2), 120, anchor=140)
"""2 was the tip, and went on."""


@pytest.mark.parametrize("more", [(row(ev(5, 77), 120),), (row(ev(7), None),)], ids=["waits", "no proof"])
def test_what_is_contradicted_is_told_wherever_the_look_ends(more: tuple[TailRow, ...]) -> None:
    """The join put 9 behind 2; a row behind 2 says that 9 has no place there."""
    kept = Kept((JOIN,))
    assert proven(AGAINST, *more, kept=kept).against == kept
    assert proven(AGAINST, kept=kept, missing=True).against == kept


def test_an_unused_proof_that_no_row_speaks_against_is_not_told_of() -> None:
    assert proven(row(ev(5, 77)), kept=Kept((), (JOIN,))).against == NOTHING_KEPT
