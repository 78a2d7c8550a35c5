"""When a lane may keep its H: every thing it is bound to, each with its own test."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.horizon import (
    DISTANCE_MAX,
    Cursor,
    Facts,
    horizon_parameter,
    keeps_horizon,
    left_behind,
    widened_anchor,
    xid_of,
)

FACTS = Facts(horizon=1000, xmax=1010, epoch="e1", tree="t1", server_now=5)
CURSOR = Cursor("live", 990, "e1", "s1", "t1", 4)


def test_an_unchanged_world_keeps_h() -> None:
    assert keeps_horizon(CURSOR, FACTS, "s1")


@pytest.mark.parametrize(
    "cursor",
    [
        None,
        replace(CURSOR, horizon=None),
        replace(CURSOR, epoch="e2"),
        replace(CURSOR, scope="s2"),
        replace(CURSOR, horizon=FACTS.xmax + 1),
    ],
    ids=["no cursor", "no horizon", "epoch", "scope", "ahead of xmax"],
)
def test_h_is_lost_by_anything_it_is_bound_to(cursor: Cursor | None) -> None:
    assert not keeps_horizon(cursor, FACTS, "s1")


def test_h_is_kept_up_to_two_to_the_31_less_a_million_and_no_further() -> None:
    far = replace(FACTS, xmax=CURSOR.horizon + DISTANCE_MAX if CURSOR.horizon else 0)
    assert DISTANCE_MAX == 2**31 - 10**6
    assert keeps_horizon(CURSOR, far, "s1")
    assert not keeps_horizon(CURSOR, replace(far, xmax=far.xmax + 1), "s1")


def test_h_at_the_polls_own_xmax_is_kept() -> None:
    assert keeps_horizon(replace(CURSOR, horizon=FACTS.xmax), FACTS, "s1")


def test_a_poll_under_the_stored_tree_leaves_its_h() -> None:
    left = left_behind(replace(CURSOR, horizon=None), FACTS, lane="live", scope="s1")
    assert left == Cursor("live", 1000, "e1", "s1", "t1", 5)


@pytest.mark.parametrize(
    "before",
    [None, replace(CURSOR, tree="t0"), replace(CURSOR, epoch="e0"), replace(CURSOR, scope="s0")],
    ids=["first poll", "tree", "epoch", "scope"],
)
def test_a_poll_under_a_new_tree_stores_the_tree_and_no_h(before: Cursor | None) -> None:
    left = left_behind(before, FACTS, lane="live", scope="s1")
    assert left == Cursor("live", None, "e1", "s1", "t1", 5)


def test_the_parameter_is_h_modulo_two_to_the_32() -> None:
    assert horizon_parameter(2**32 + 7) == "7"
    assert horizon_parameter(2**32 - 1) == "4294967295"


@given(xmax=st.integers(2**32, 2**60), behind=st.integers(0, 2**32 - 1))
def test_the_xid_of_a_visible_row_is_the_newest_below_xmax(xmax: int, behind: int) -> None:
    xid = xmax - behind
    found = xid_of(xid % 2**32, xmax)
    assert found == (xid if xid % 2**32 >= 3 else None)


@pytest.mark.parametrize("xmin", [0, 1, 2])
def test_a_permanent_xid_proves_nothing(xmin: int) -> None:
    assert xid_of(xmin, 2**33) is None


@given(xmax=st.integers(3, 2**60), ahead=st.integers(0, 2**31))
def test_the_anchor_is_widened_upwards_from_xmax(xmax: int, ahead: int) -> None:
    assert widened_anchor((xmax + ahead) % 2**32, xmax) == xmax + ahead


def test_the_first_normal_xid_proves_something_and_the_ones_below_do_not() -> None:
    assert [xid_of(xmin, 100) for xmin in (0, 1, 2, 3)] == [None, None, None, 3]
