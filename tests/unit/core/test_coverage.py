"""Coverage: which executions are in the numerator, which in the denominator.  Spec 3.3, 3.6."""

from __future__ import annotations

import pytest

from sidecar.core.coverage import AWAITED, UNCOVERED, UNJUDGED, Coverage, Observation, Tally, covered
from sidecar.core.verdict import Verdict
from sidecar.errors import InvariantError

ELIGIBLE = {
    "match": True,
    "match_rejoined": True,
    "divergent": True,
    "second_writer": True,
    "refused_multiple_roots": True,
    "refused_no_root": True,
    "refused_fork": True,
    "refused_dangling_prev": True,
    "refused_unreachable": True,
    "refused_duplicate_event": True,
    "refused_store_gap": True,
    "rejoin_withdrawn": True,
    "pending_visibility": False,
    "pending_stale": False,
    "pending_settle": False,
    "stale_log_unresolved": True,
    "log_pruned": False,
    "log_lost": True,
    "behind": True,
    "unservable": True,
    "log_read_failed": True,
    "log_truncated": True,
    "populate_failed": True,
    "guarded_read_failed": True,
    "error": True,
    "empty": False,
    UNJUDGED: True,
    AWAITED: False,
}
"""The column `eligible?` of spec 3.3, and the two waits of 3.6."""


@pytest.mark.parametrize("label", ELIGIBLE)
def test_the_table_of_verdicts_says_what_is_eligible(label: str) -> None:
    found = covered([Tally(label, 2, 30, 40)])
    assert found.eligible_executions == (2 if ELIGIBLE[label] else 0)
    assert found.eligible_events == (40 if ELIGIBLE[label] else 0)
    assert found.covered_executions == (2 if label == "match" else 0)
    assert found.covered_events == (30 if label == "match" else 0)
    assert found.verdicts == {label: 2}


def test_every_verdict_stands_in_the_table() -> None:
    assert ELIGIBLE.keys() == {verdict.value for verdict in Verdict} | {UNJUDGED, AWAITED}
    assert set(UNCOVERED) == {label for label, eligible in ELIGIBLE.items() if eligible} - {
        "match",
        "match_rejoined",
        "behind",
    }


def test_failed_and_truncated_reads_are_in_the_denominator() -> None:
    """Else 90 % failed reads would show coverage 1.0, and the largest executions never count."""
    found = covered(
        [
            Tally("match", 10, 100, 100),
            Tally("log_read_failed", 80, 0, 800),
            Tally("log_truncated", 10, 0, 9000),
        ]
    )
    assert (found.covered_executions, found.eligible_executions) == (10, 100)
    assert found.ratio == 100 / 9900
    assert found.uncovered == {"log_read_failed": 80, "log_truncated": 10}


def test_a_ratio_without_a_denominator_is_absent_and_its_counts_are_zero() -> None:
    assert covered([]) == Coverage()
    assert covered([]).ratio is None
    assert covered([]).pending_share is None
    pruned = covered([Tally("log_pruned", 3, 0, 9)])
    assert (pruned.ratio, pruned.eligible_executions, pruned.pending_share) == (None, 0, None)


def test_pending_share_counts_open_questions_and_executions_that_wait_for_their_first_verdict() -> None:
    found = covered([Tally("match", 1, 5, 5), Tally("pending_settle", 1, 5, 5), Tally(AWAITED, 2, 0, 8)])
    assert (found.pending_executions, found.pending_share) == (3, 0.75)
    assert covered([Tally(AWAITED, 2, 0, 8)]).pending_share == 1.0


def test_what_was_joined_is_eligible_and_has_a_series_of_its_own() -> None:
    found = covered([Tally("match", 3, 30, 30), Tally("match_rejoined", 1, 10, 10)])
    assert (found.covered_executions, found.eligible_executions) == (3, 4)
    assert (found.rejoined_executions, found.rejoined_events) == (1, 10)
    assert found.uncovered == {}


def test_an_unknown_label_and_one_that_comes_twice_are_our_bug() -> None:
    with pytest.raises(InvariantError):
        covered([Tally("fine", 1, 1, 1)])
    with pytest.raises(InvariantError):
        covered([Tally("match", 1, 1, 1), Tally("match", 1, 1, 1)])


def _observed(*ticks: tuple[int, bool], start: Observation | None = None) -> Observation:
    observation = start or Observation(since=0)
    for at, good in ticks:
        observation = observation.ticked(at, good=good, gap_max=30)
    return observation


def test_observation_is_the_time_between_good_ticks() -> None:
    assert _observed((5, True)).elapsed == 0
    assert _observed((5, True), (10, True), (25, True)).elapsed == 20


def test_time_that_nobody_watched_is_no_observation() -> None:
    assert _observed((0, True), (31, True), (40, True)).elapsed == 9  # a hole longer than the bound
    assert _observed((0, True), (10, False), (20, True), (25, True)).elapsed == 5  # both sides of a bad one
    assert _observed((20, True), (10, True)).elapsed == 0


def test_a_restart_goes_on_and_does_not_count_the_time_between() -> None:
    before = _observed((100, True), (120, True))
    again = Observation(before.since, before.elapsed)  # what a store keeps
    after = _observed((130, True), (135, True), start=again)
    assert (after.since, after.elapsed) == (0, 25)


def test_a_store_that_was_never_observed_begins_with_its_first_good_tick() -> None:
    assert _observed((7, False), start=Observation()).since is None
    assert _observed((7, False), (9, True), start=Observation()).since == 9


def test_a_gap_counts_up_to_its_bound_and_a_clock_set_back_counts_nothing() -> None:
    seen = Observation(since=5, elapsed=7, last=100)
    assert [seen.ticked(now, good=True, gap_max=10).elapsed for now in (99, 100, 101, 110, 111)] == [
        7,
        7,
        8,
        17,
        7,
    ]


def test_a_tick_that_cannot_be_relied_on_keeps_what_was_seen_before() -> None:
    assert Observation(5, 7, 100).ticked(101, good=False, gap_max=10) == Observation(5, 7, None)


def test_what_is_wrong_with_a_list_of_tallies_is_said() -> None:
    with pytest.raises(InvariantError, match=r"^a verdict outside the closed list$"):
        covered([Tally("nonsense", 1, 1, 1)])
    with pytest.raises(InvariantError, match=r"^a verdict that was counted twice$"):
        covered([Tally("match", 1, 1, 1), Tally("match", 1, 1, 1)])


def test_somebody_watches_until_the_next_tick_is_late() -> None:
    seen = Observation(last=100)
    assert [seen.goes_on(now, gap_max=10) for now in (100, 110, 111)] == [True, True, False]
    assert not Observation().goes_on(100, gap_max=10)
