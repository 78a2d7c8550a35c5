"""May a run be accepted?  Each floor alone can refuse it.  Spec 3.6, 8.5 I26, I29."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.core.acceptance import Controls, Floors, Reason, Run, accept
from sidecar.core.coverage import Coverage, Tally, covered

DAY_S = 24 * 3600.0
CLEAN = covered([Tally("match", 2000, 40_000, 40_000)])
GOOD = Run(open_findings=0, day=CLEAN, start=CLEAN, elapsed_s=DAY_S, controls=Controls(10, 0))
PILE = covered([Tally("match", 1000, 9, 9), Tally("pending_settle", 1001, 0, 9)])
HALF = covered([Tally("match", 1000, 9, 9), Tally("pending_settle", 1000, 0, 9)])
FLOOR = covered([Tally("match", 1000, 95, 95), Tally("log_truncated", 0, 0, 5)])
BELOW = covered([Tally("match", 2000, 94, 94), Tally("refused_fork", 1, 6, 6)])


def test_a_run_that_reached_every_floor_is_accepted() -> None:
    found = accept(GOOD, Floors())
    assert found.accepted
    assert found.blocked == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"open_findings": 1}, Reason.DIVERGENCE),
        ({"start": BELOW}, Reason.COVERAGE),
        ({"day": BELOW}, Reason.COVERAGE),
        ({"start": covered([Tally("match", 999, 9, 9)])}, Reason.EXECUTIONS),
        ({"elapsed_s": DAY_S - 1}, Reason.ELAPSED),
        ({"watched": False}, Reason.ELAPSED),
        ({"controls": Controls(0, 0)}, Reason.CONTROLS),
        ({"controls": Controls(10, 1)}, Reason.CONTROLS),
        ({"start": PILE}, Reason.PENDING_SHARE),
        ({"day": PILE}, Reason.PENDING_SHARE),
    ],
)
def test_one_floor_alone_refuses_with_its_reason(change: dict[str, object], reason: Reason) -> None:
    found = accept(replace(GOOD, **change), Floors())  # type: ignore[arg-type]
    assert not found.accepted
    assert found.reasons == {reason}


def test_the_floors_themselves_are_good_enough() -> None:
    at_floors = replace(GOOD, start=FLOOR, day=HALF)
    assert FLOOR.ratio == 0.95
    assert accept(at_floors, Floors()).accepted


def test_i29_772_clean_comparisons_in_ten_minutes_are_refused_for_their_time() -> None:
    clean = covered([Tally("match", 772, 772 * 30, 772 * 30)])
    run = replace(GOOD, day=clean, start=clean, elapsed_s=600)
    assert accept(run, Floors()).reasons == {Reason.EXECUTIONS, Reason.ELAPSED}
    # Volume is not duration: with the executions there, the time alone refuses.
    assert accept(run, Floors(executions=700)).reasons == {Reason.ELAPSED}


def test_i26_a_source_that_refuses_everything_diverges_nowhere_and_is_refused() -> None:
    refused = covered([Tally("log_read_failed", 5000, 0, 100_000)])
    run = replace(GOOD, day=refused, start=refused)
    assert accept(run, Floors()).reasons == {Reason.COVERAGE}


def test_an_idle_cluster_is_refused_and_an_idle_day_is_not() -> None:
    assert accept(replace(GOOD, day=Coverage(), start=Coverage()), Floors()).reasons == {
        Reason.COVERAGE,
        Reason.EXECUTIONS,
    }
    assert accept(replace(GOOD, day=Coverage()), Floors()).accepted


def test_a_comparator_that_broke_yesterday_is_not_hidden_by_a_long_good_past() -> None:
    past = covered([Tally("match", 10**6, 10**8, 10**8), Tally("unjudged", 2000, 0, 40_000)])
    day = covered([Tally("unjudged", 2000, 0, 40_000)])
    assert past.ratio is not None
    assert past.ratio > 0.99
    assert accept(replace(GOOD, day=day, start=past), Floors()).reasons == {Reason.COVERAGE}


def test_reasons_come_in_their_order_with_what_was_found_and_asked() -> None:
    nothing = Run(3, Coverage(), Coverage(), 0.0, Controls())
    blocked = accept(nothing, Floors()).blocked
    assert [each.reason.value for each in blocked] == [
        "divergence",
        "coverage",
        "executions",
        "elapsed",
        "controls",
    ]
    assert blocked[2].detail == "0 eligible, asked 1000"


def test_every_reason_says_what_was_found_and_what_is_asked() -> None:
    """People read these; a page and the command line print them as they are."""
    run = Run(3, PILE, BELOW, 60.0, Controls(7, 2))
    assert {each.reason.value: each.detail for each in accept(run, Floors(executions=2100)).blocked} == {
        "divergence": "3 open",
        "coverage": "0.9400 of the eligible events, asked 0.95",
        "executions": "2001 eligible, asked 2100",
        "elapsed": "60 s observed, asked 86400 s",
        "controls": "7 as expected, 2 not",
        "pending_share": "0.5002 pending, at most 0.5",
    }
    unwatched = replace(GOOD, start=Coverage(), watched=False)
    assert [each.detail for each in accept(unwatched, Floors()).blocked] == [
        "nothing was eligible",
        "0 eligible, asked 1000",
        "86400 s observed, and nothing is being observed now",
    ]
