"""When a slot holds everything since the stored position, and how it is said when not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.core.horizon import Cursor
from sidecar.core.walgap import NEEDS_A_NEW_SLOT, Gap, Slot, gap_of, history

EPOCH = "7001/00000001/1700000000/1699999999"
CURSOR = Cursor("wal", 100, EPOCH, "scope", "publication", 5)
SLOT = Slot(confirmed=100, restart=90)


def _gap(
    cursor: Cursor | None = CURSOR,
    slot: Slot | None = SLOT,
    *,
    position: int | None = 100,
    epoch: str = EPOCH,
    scope: str = "scope",
    publication: str = "publication",
) -> Gap | None:
    return gap_of(cursor, position, slot, epoch=epoch, scope=scope, publication=publication)


@pytest.mark.parametrize("confirmed", [0, 99, 100])
def test_a_slot_that_stands_where_we_do_or_before_misses_nothing(confirmed: int) -> None:
    assert _gap(slot=replace(SLOT, confirmed=confirmed)) is None


def test_a_restart_of_the_server_or_its_statistics_is_no_gap() -> None:
    assert _gap(epoch="7001/00000001/1800000000/1799999999") is None
    assert history(EPOCH) == ("7001", "00000001")


@pytest.mark.parametrize(
    ("gap", "asked"),
    [
        (Gap.FIRST, {"cursor": None}),
        (Gap.SCOPE, {"scope": "another table"}),
        (Gap.TIMELINE, {"epoch": EPOCH.replace("00000001", "00000002")}),
        (Gap.TIMELINE, {"epoch": EPOCH.replace("7001", "7002")}),
        (Gap.PUBLICATION, {"publication": "made anew"}),
        (Gap.SLOT_MISSING, {"slot": None}),
        (Gap.SLOT_LOST, {"slot": Slot(0, 0, lost=True)}),
        (Gap.OWED, {"position": None}),
        (Gap.SLOT_AHEAD, {"slot": Slot(101, 90)}),
    ],
)
def test_everything_else_is_a_gap_with_a_name(gap: Gap, asked: dict[str, object]) -> None:
    assert _gap(**asked) is gap  # type: ignore[arg-type]  # one argument of each type


def test_positions_of_another_timeline_are_not_compared() -> None:
    behind = Slot(confirmed=1, restart=0)
    assert _gap(slot=behind, epoch=EPOCH.replace("00000001", "00000002")) is Gap.TIMELINE


def test_a_slot_of_no_use_is_made_anew_and_one_that_is_only_ahead_is_not() -> None:
    assert {Gap.SLOT_AHEAD, Gap.OWED, Gap.TRUNCATED, Gap.UNREADABLE}.isdisjoint(NEEDS_A_NEW_SLOT)
    assert set(Gap) - {Gap.SLOT_AHEAD, Gap.OWED, Gap.TRUNCATED, Gap.UNREADABLE} == NEEDS_A_NEW_SLOT
