"""The work list: when an execution is judged next, and what outlives a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.core.due import (
    RETRY_PAUSE_MAX,
    SECOND,
    Asked,
    Due,
    News,
    Ruled,
    Windows,
    judged,
    noted,
    populated,
    updated,
)
from sidecar.core.verdict import NOT_ELIGIBLE, PENDING, RETRY, Verdict
from tests.unit.core.build import E

W = Windows(tick=5, settle=120, dangling=100)
MARKS = ("reread", "changed", "labelled", "terminal_seen")
FINAL = sorted(set(Verdict) - RETRY)


def note(due: Due | None, news: News, *, now: int = 1_000, verdict_at: int | None = None) -> Due:
    return noted(due, E, news, now=now, verdict_at=verdict_at, windows=W)


def judge(due: Due, verdict: Verdict, *, read_began_at: int = 1_000, now: int = 1_010) -> Due | None:
    return judged(due, verdict, read_began_at=read_began_at, now=now, windows=W)


def kept(due: Due | None) -> Due:
    assert due is not None
    return due


# -- news


def test_a_first_change_is_due_at_the_next_tick() -> None:
    assert note(None, News(rows=1)) == Due(E, due_at=1_000, first_seen_at=1_000, last_row_at=1_000)


def test_a_change_after_a_verdict_waits_for_settle() -> None:
    assert note(None, News(rows=1), verdict_at=990).due_at == 990 + 120
    assert note(None, News(rows=1), verdict_at=100).due_at == 1_000


def test_more_rows_do_not_put_an_entry_off() -> None:
    due = note(None, News(rows=1), verdict_at=990)
    assert note(due, News(rows=1), now=1_050).due_at == 1_110


@pytest.mark.parametrize(
    ("news", "mark"),
    [
        (News(reread=True), "reread"),
        (News(changed=True), "changed"),
        (News(labelled=True), "labelled"),
        (News(terminal=True), "terminal_seen"),
    ],
)
def test_every_flag_is_due_at_once_and_keeps_its_time(news: News, mark: str) -> None:
    waiting = Due(E, due_at=5_000)
    after = note(waiting, news)
    assert after == replace(waiting, due_at=1_000, **{mark: 1_000})  # type: ignore[arg-type]
    assert note(None, news, verdict_at=990).due_at == 1_000


def test_an_entry_due_already_is_not_put_off_by_a_flag() -> None:
    assert note(Due(E, due_at=10), News(changed=True)).due_at == 10


@pytest.mark.parametrize("mark", MARKS)
def test_flags_are_only_added(mark: str) -> None:
    due = Due(E, due_at=5_000, **{mark: 7})  # type: ignore[arg-type]
    assert getattr(note(due, News(rows=1)), mark) == 7


@pytest.mark.parametrize(
    ("news", "mark"),
    [
        (News(reread=True), "reread"),
        (News(changed=True), "changed"),
        (News(labelled=True), "labelled"),
        (News(terminal=True), "terminal_seen"),
    ],
)
def test_a_flag_set_again_moves_its_time(news: News, mark: str) -> None:
    assert getattr(note(Due(E, due_at=0, **{mark: 7}), news), mark) == 1_000  # type: ignore[arg-type]


def test_a_flag_that_waits_does_not_make_later_rows_due_at_once() -> None:
    """The verdict on it was retried; the pause is the retry's, not the flag's."""
    due = Due(E, due_at=5_000, reread=7)
    assert note(due, News(rows=1)).due_at == 5_000


def test_a_new_row_resets_tries_and_is_due_at_the_next_tick() -> None:
    due = Due(E, due_at=5_000, tries=4, pending_key="dangling_prev:15:14", pending_since=900)
    after = note(due, News(rows=1))
    assert (after.tries, after.due_at) == (0, 1_000)
    assert (after.pending_key, after.pending_since) == ("dangling_prev:15:14", 900)
    assert note(replace(due, due_at=10), News(rows=1)).due_at == 10


def test_news_without_rows_resets_nothing() -> None:
    due = Due(E, due_at=5_000, tries=4, last_row_at=3)
    assert note(due, News()) == due


# -- final verdicts


@pytest.mark.parametrize("verdict", FINAL)
def test_a_final_verdict_removes_the_entry_if_no_row_came(verdict: Verdict) -> None:
    due = Due(
        E, due_at=0, last_row_at=1_000, changed=1_000, labelled=1_000, terminal_seen=1_000, reread=1_000
    )
    after = judge(due, verdict)
    if verdict is Verdict.LOG_TRUNCATED:
        assert after == replace(due, due_at=1_010 + 120, labelled=None, terminal_seen=None)
    else:
        assert after is None


def test_rows_that_came_meanwhile_keep_the_entry_for_settle() -> None:
    due = Due(E, due_at=0, last_row_at=1_001, tries=3, pending_key="k", pending_since=2, terminal_seen=900)
    after = judge(due, Verdict.MATCH)
    assert after == Due(E, due_at=1_010 + 120, last_row_at=1_001)


@pytest.mark.parametrize("mark", MARKS)
def test_a_flag_that_came_meanwhile_keeps_the_entry_and_makes_it_due(mark: str) -> None:
    after = kept(judge(Due(E, due_at=0, **{mark: 1_001}), Verdict.MATCH))  # type: ignore[arg-type]
    assert (after.due_at, getattr(after, mark)) == (1_010, 1_001)


def test_changed_is_cleared_by_a_final_verdict_on_a_later_read_only() -> None:
    due = Due(E, due_at=0, last_row_at=1_001)
    assert kept(judge(replace(due, changed=999), Verdict.DIVERGENT)).changed is None
    assert kept(judge(replace(due, changed=1_001), Verdict.DIVERGENT)).changed == 1_001
    assert kept(judge(replace(due, changed=999), Verdict.PENDING_VISIBILITY)).changed == 999


def test_reread_is_cleared_by_no_verdict() -> None:
    due = Due(E, due_at=0, last_row_at=1_001, reread=900)
    after = kept(judge(due, Verdict.REFUSED_FORK))
    assert (after.reread, after.due_at) == (900, 1_010 + 120)


@pytest.mark.parametrize("mark", ["labelled", "terminal_seen"])
@pytest.mark.parametrize("verdict", [Verdict.MATCH, Verdict.PENDING_STALE])
def test_label_and_terminal_ask_for_one_verdict_of_any_kind(mark: str, verdict: Verdict) -> None:
    due = Due(E, due_at=0, last_row_at=1_001, **{mark: 999})  # type: ignore[arg-type]
    assert getattr(kept(judge(due, verdict)), mark) is None


# -- retry verdicts


@pytest.mark.parametrize("verdict", sorted(RETRY))
def test_a_retry_verdict_keeps_the_entry(verdict: Verdict) -> None:
    after = kept(judge(Due(E, due_at=0, last_row_at=5, reread=6), verdict))
    assert (after.tries, after.due_at, after.last_row_at, after.reread) == (1, 1_010 + 5, 5, 6)


def test_retries_double_from_one_tick_to_five_minutes() -> None:
    windows = Windows()
    due: Due | None = Due(E, due_at=0)
    pauses = []
    for _ in range(40):
        due = judged(kept(due), Verdict.LOG_READ_FAILED, read_began_at=0, now=0, windows=windows)
        pauses.append(kept(due).due_at // SECOND)
    assert pauses[:8] == [5, 10, 20, 40, 80, 160, 300, 300]
    assert set(pauses[6:]) == {300}
    assert RETRY_PAUSE_MAX == 300 * SECOND
    assert kept(due).tries == 40


def test_tries_beyond_every_shift_stay_at_the_longest_pause() -> None:
    after = judged(Due(E, due_at=0, tries=10**6), Verdict.ERROR, read_began_at=0, now=0, windows=Windows())
    assert kept(after).due_at == RETRY_PAUSE_MAX


@pytest.mark.parametrize("mark", MARKS)
def test_a_flag_that_came_meanwhile_makes_a_retry_due_at_once(mark: str) -> None:
    due = Due(E, due_at=0, tries=6, **{mark: 1_001})  # type: ignore[arg-type]
    after = kept(judge(due, Verdict.LOG_READ_FAILED))
    assert (after.due_at, after.tries, getattr(after, mark)) == (1_010, 7, 1_001)


@pytest.mark.parametrize("mark", ["reread", "changed"])
def test_an_older_flag_waits_for_the_retry(mark: str) -> None:
    due = Due(E, due_at=0, tries=3, **{mark: 999})  # type: ignore[arg-type]
    after = kept(judge(due, Verdict.LOG_READ_FAILED))
    assert (after.due_at, getattr(after, mark)) == (1_010 + 40, 999)


def pending(due: Due, *, since: int, now: int, verdict: Verdict = Verdict.PENDING_VISIBILITY) -> Due:
    after = judged(due, verdict, read_began_at=now, now=now, windows=W, pending_key="k", pending_since=since)
    return kept(after)


def test_pending_visibility_is_asked_again_no_later_than_the_end_of_its_window() -> None:
    due = Due(E, due_at=0, tries=5)
    assert pending(due, since=950, now=1_000).due_at == 1_050
    assert pending(due, since=1_000, now=1_000).due_at == 1_100
    assert pending(replace(due, tries=1), since=1_000, now=1_000).due_at == 1_010


def test_pending_visibility_past_its_window_is_due_at_once() -> None:
    assert pending(Due(E, due_at=0, tries=5), since=10, now=1_000).due_at == 1_000


def test_other_pending_verdicts_know_no_window() -> None:
    due = Due(E, due_at=0, tries=5)
    assert pending(due, since=950, now=1_000, verdict=Verdict.PENDING_STALE).due_at == 1_160


def test_a_pending_verdict_keeps_its_question() -> None:
    after = pending(Due(E, due_at=0, pending_key="old", pending_since=1), since=950, now=1_000)
    assert (after.pending_key, after.pending_since) == ("k", 950)


@pytest.mark.parametrize("verdict", sorted(RETRY - PENDING))
def test_a_failure_leaves_the_open_question_open(verdict: Verdict) -> None:
    """Otherwise failing reads would restart the window for ever."""
    due = Due(E, due_at=0, pending_key="dangling_prev:15:14", pending_since=900)
    after = kept(judge(due, verdict))
    assert (after.pending_key, after.pending_since) == ("dangling_prev:15:14", 900)
    assert after.due_at == 1_010 + 5


# -- after a populate


def test_a_populate_from_a_later_read_clears_reread() -> None:
    due = Due(E, due_at=9, reread=900)
    assert populated(due, read_began_at=901, cleared_bar=False, now=1_000) == Due(E, due_at=9)


@pytest.mark.parametrize("set_at", [900, 901])
def test_a_flag_set_after_the_read_began_outlives_it(set_at: int) -> None:
    due = Due(E, due_at=9, reread=set_at)
    after = populated(due, read_began_at=900, cleared_bar=False, now=1_000)
    assert after.reread == (None if set_at == 900 else 901)


def test_clearing_a_bar_reads_again_if_a_row_came_after_the_read_began() -> None:
    due = Due(E, due_at=5_000, last_row_at=901)
    after = populated(due, read_began_at=900, cleared_bar=True, now=1_000)
    assert (after.reread, after.due_at) == (1_000, 1_000)
    early = populated(replace(due, due_at=5), read_began_at=900, cleared_bar=True, now=1_000)
    assert early.due_at == 5


@pytest.mark.parametrize(("cleared", "last_row_at"), [(False, 901), (True, 900), (True, None)])
def test_nothing_else_reads_again(cleared: bool, last_row_at: int | None) -> None:
    due = Due(E, due_at=5_000, last_row_at=last_row_at)
    assert populated(due, read_began_at=900, cleared_bar=cleared, now=1_000) == due


# -- the lists the rules stand on


def test_windows_have_the_defaults_of_the_spec() -> None:
    assert Windows() == Windows(
        tick=5_000_000,
        settle=120_000_000,
        dangling=120_000_000,
        lookback=3_600_000_000,
        stale_max_ticks=3,
    )


def test_retry_verdicts_are_those_of_the_spec() -> None:
    failures = {"log_read_failed", "populate_failed", "guarded_read_failed", "error"}
    pendings = {"pending_visibility", "pending_stale", "pending_settle"}
    assert pendings == PENDING
    assert failures | pendings == RETRY


def test_verdicts_outside_the_denominator_are_those_of_the_spec() -> None:
    assert {*PENDING, "log_pruned", "empty"} == NOT_ELIGIBLE


# -- one transaction


NOTHING = News()


def step(due: Due | None, news: News = NOTHING, **more: Any) -> Due | None:
    return updated(due, E, news, **({"now": 1_010, "verdict_at": None, "windows": W} | more))


READ = Asked(1_000)


def test_a_step_without_news_or_verdict_changes_nothing() -> None:
    assert step(None) is None
    due = Due(E, due_at=5, reread=1)
    assert step(due) == due
    assert step(due, asked=READ) == due


def test_a_synced_read_answers_before_the_verdict() -> None:
    due = Due(E, due_at=5, reread=900)
    assert step(due, asked=Asked(1_000, synced=True), ruled=Ruled(Verdict.MATCH)) is None
    assert kept(step(due, asked=Asked(800, synced=True), ruled=Ruled(Verdict.MATCH))).reread == 900


def test_what_is_new_outlives_the_verdict() -> None:
    after = kept(step(Due(E, due_at=5), News(labelled=True), asked=READ, ruled=Ruled(Verdict.MATCH)))
    assert (after.labelled, after.due_at) == (1_010, 1_010)


def test_a_verdict_to_be_tried_again_makes_an_entry_and_a_final_one_none() -> None:
    after = kept(step(None, asked=READ, ruled=Ruled(Verdict.PENDING_VISIBILITY, "dangling", 990)))
    assert (after.first_seen_at, after.tries, after.pending_since) == (1_010, 1, 990)
    assert step(None, asked=READ, ruled=Ruled(Verdict.MATCH)) is None


def test_a_question_is_due_at_once_and_a_listed_execution_as_always() -> None:
    waiting = Due(E, due_at=5_000)
    assert kept(step(waiting, News(question=True))).due_at == 1_010
    assert step(waiting, News(listed=True)) == waiting
    assert step(None, News(listed=True), verdict_at=1_000) == Due(E, due_at=1_120, first_seen_at=1_010)


# -- one update of all three


def update(due: Due | None, asked: Asked | None, ruled: Ruled | None) -> Due | None:
    return updated(due, E, News(), asked=asked, ruled=ruled, now=2_000, verdict_at=None, windows=W)


def test_a_populate_that_was_written_ends_the_wish_to_read_again() -> None:
    flagged = Due(E, due_at=1_000, reread=900)
    assert kept(update(flagged, Asked(950, synced=True, cleared_bar=False), None)).reread is None
    assert kept(update(flagged, Asked(950, synced=False, cleared_bar=False), None)).reread == 900


def test_a_cleared_bar_asks_again_for_what_came_during_the_read() -> None:
    flagged = Due(E, due_at=5_000, reread=900, last_row_at=960)
    after = kept(update(flagged, Asked(950, synced=True, cleared_bar=True), None))
    assert (after.reread, after.due_at) == (2_000, 2_000)
    assert kept(update(flagged, Asked(950, synced=True, cleared_bar=False), None)).reread is None


def test_a_question_that_stays_open_without_an_entry_gets_one_with_its_age() -> None:
    ruled = Ruled(Verdict.PENDING_VISIBILITY, pending_key="7:1", pending_since=1_500)
    after = kept(update(None, Asked(1_990, synced=False, cleared_bar=False), ruled))
    assert (after.execution_id, after.first_seen_at) == (E, 2_000)
    assert (after.pending_key, after.pending_since) == ("7:1", 1_500)


@pytest.mark.parametrize("mark", ["reread", "changed"])
def test_a_read_that_was_cut_leaves_what_a_flag_asks_and_waits(mark: str) -> None:
    flagged = Due(E, due_at=1_000, tries=3, **{mark: 900})  # type: ignore[arg-type]
    after = kept(judge(flagged, Verdict.LOG_TRUNCATED))
    assert (getattr(after, mark), after.tries, after.due_at) == (900, 0, 1_010 + 120)
    assert judge(Due(E, due_at=1_000), Verdict.LOG_TRUNCATED) is None
