"""One hold, one verdict: each finding, the precedence of spec 3.3, and the windows of 3.5."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from sidecar.core.authority import GuardedRead, Partition, Reason, Torn
from sidecar.core.compare import Comparison, compare
from sidecar.core.due import Due, Windows
from sidecar.core.event import Event
from sidecar.core.judge import PRECEDENCE, REVOKING, Hold, Ruling, judge, judge_absent, judge_read_only
from sidecar.core.links import Ordered, order_by_links
from sidecar.core.populate import Diverged, InSync, Outcome, Refused, Unreadable, plan
from sidecar.core.ports import Populated
from sidecar.core.rejoin import Join, chain_order
from sidecar.core.resolve import Explained, LogLost, LogPruned, Resolution, SecondWriter
from sidecar.core.verdict import RETRY, Judgement, Kind, Verdict
from sidecar.errors import InvariantError
from tests.support.changing import replace
from tests.unit.core.build import E, chain, covered, ev, placed

W = Windows(tick=5, settle=100, dangling=100, stale_max_ticks=3)
ZERO = Windows(tick=5, settle=0, dangling=0, stale_max_ticks=1)
A, B, C = LOG = chain(10, 30, 20)
READ_AT, NOW = 1_000, 1_010
WRITER = SecondWriter((77,), (None,), 1)
SHORT = compare(LOG[:2], LOG)
WRONG = compare((A, B, replace(C, body='{"event_id":20}')), LOG)


def hold(log: Sequence[Event] = LOG, stored: Sequence[Event] = (), **changes: Any) -> Hold:
    """What a hold finds that populates `stored` from `log`, with `changes` to it."""
    order = order_by_links(log)
    outcome: Outcome = plan(stored, order)
    fields: dict[str, Any] = {
        "outcome": outcome,
        "partition": covered(log if isinstance(outcome, InSync) else stored),
        "absent": (),
        "written": True,
    }
    fields |= {key: changes.pop(key) for key in tuple(changes) if key in fields}
    populated = Populated(order=order, cleared_bar=False, **fields)
    served = isinstance(outcome, InSync) and isinstance(order, Ordered)
    base = Hold(
        populated=populated,
        guarded=GuardedRead(tuple(log), None) if served else None,
        comparison=compare(log, log) if served else None,
        log_rows=len(log),
        read_began_at=READ_AT,
        now=NOW,
    )
    return replace(base, **changes)


def verdict(found: Hold, windows: Windows = W) -> Verdict:
    return judge(found, windows).judgement.verdict


# -- healthy outcomes


@pytest.mark.parametrize("stored", [(), LOG[:2], LOG])
def test_match(stored: tuple[Event, ...]) -> None:
    assert judge(hold(stored=stored), W) == Ruling(Judgement(E, Verdict.MATCH, log_rows=3, stored_rows=3))


def test_empty() -> None:
    assert judge(hold(()), W) == Ruling(Judgement(E, Verdict.EMPTY))


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("log", [LOG, ()])
def test_none_after_a_healthy_outcome_is_unservable(reason: Reason, log: tuple[Event, ...]) -> None:
    found = hold(log, guarded=GuardedRead(None, reason), comparison=None)
    assert verdict(found) is Verdict.UNSERVABLE
    assert judge(found, W).judgement.detail == reason.value


def test_a_comparison_not_taken_is_never_agreement() -> None:
    for found, expected, why in (
        (hold(comparison=None), Verdict.GUARDED_READ_FAILED, "served and not compared"),
        (hold(guarded=None), Verdict.GUARDED_READ_FAILED, "not taken"),
        (hold(written=False), Verdict.POPULATE_FAILED, "the log read began before a revocation"),
    ):
        judgement = judge(found, W).judgement
        assert (judgement.verdict, judgement.detail) == (expected, why)


def test_an_axis_that_fails_is_divergent_with_its_kinds_and_place() -> None:
    ruling = judge(hold(comparison=WRONG), W)
    assert ruling == Ruling(Judgement(E, Verdict.DIVERGENT, (Kind.PAYLOAD,), 2, 3, 3))


# -- pending_settle


def test_i27_a_short_young_execution_in_motion_publishes_nothing() -> None:
    ruling = judge(hold(comparison=SHORT, partition=covered(LOG, first_seen_at=NOW - 99)), W)
    assert ruling == Ruling(Judgement(E, Verdict.PENDING_SETTLE, log_rows=3, stored_rows=3))


@pytest.mark.parametrize(
    ("comparison", "partition"),
    [
        (SHORT, covered(LOG, first_seen_at=NOW - 100)),
        (SHORT, covered(LOG, first_seen_at=None)),
        (SHORT, covered(LOG, first_seen_at=NOW, terminal=True)),
        (WRONG, covered(LOG, first_seen_at=NOW)),
        (compare((A, replace(B, body="x")), LOG), covered(LOG, first_seen_at=NOW)),
        (compare((), LOG), covered(LOG, first_seen_at=NOW)),
    ],
)
def test_settle_waits_for_nothing_else(comparison: Comparison, partition: Partition) -> None:
    assert verdict(hold(comparison=comparison, partition=partition)) is Verdict.DIVERGENT


@pytest.mark.parametrize("served", [LOG[:2], (*LOG, ev(40, 20)), (A, B, ev(21, 30))])
def test_settle_waits_on_count_and_membership(served: tuple[Event, ...]) -> None:
    found = hold(comparison=compare(served, LOG), partition=covered(LOG, first_seen_at=NOW))
    assert verdict(found) is Verdict.PENDING_SETTLE
    assert verdict(found, ZERO) is Verdict.DIVERGENT


# -- refusals


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ((A, ev(99)), Verdict.REFUSED_MULTIPLE_ROOTS),
        ((A, B, ev(31, 10)), Verdict.REFUSED_FORK),
        ((A, ev(2, 2)), Verdict.REFUSED_UNREACHABLE),
        ((A, A), Verdict.REFUSED_DUPLICATE_EVENT),
    ],
)
def test_i11_i13_i15_absorbing_refusals_are_final_at_once_and_no_divergence(
    log: tuple[Event, ...], expected: Verdict
) -> None:
    ruling = judge(hold(log), W)
    assert ruling.judgement.verdict is expected
    assert ruling.judgement.kinds == ()
    assert ruling.pending_key is None


def test_a_store_with_holes_is_refused() -> None:
    assert verdict(hold(outcome=Refused("store_gap"))) is Verdict.REFUSED_STORE_GAP


def test_row_2b_is_pruned() -> None:
    assert verdict(hold((), outcome=Refused("log_pruned"))) is Verdict.LOG_PRUNED


# -- pending_visibility

DANGLING = (A, C)
QUESTION = "dangling_prev:20:30"


def asked(**changes: Any) -> Due:
    return Due(E, **{"due_at": 0, "pending_key": QUESTION, "pending_since": 900, **changes})


def test_i08_i09_a_missing_predecessor_is_pending_and_remembers_its_question() -> None:
    assert judge(hold(DANGLING), W) == Ruling(
        Judgement(E, Verdict.PENDING_VISIBILITY, log_rows=2, detail=QUESTION), QUESTION, NOW
    )


def test_a_missing_root_is_pending_and_remembers_its_question() -> None:
    ruling = judge(hold((ev(1, 2), ev(2, 1))), W)
    assert (ruling.judgement.verdict, ruling.pending_key) == (Verdict.PENDING_VISIBILITY, "no_root")


def test_the_window_runs_from_when_the_tail_first_saw_the_row() -> None:
    ruling = judge(hold(DANGLING, first_saw=950), W)
    assert (ruling.judgement.verdict, ruling.pending_since) == (Verdict.PENDING_VISIBILITY, 950)


def test_an_old_row_needs_a_second_read_though_its_window_is_over() -> None:
    ruling = judge(hold(DANGLING, first_saw=10), W)
    assert (ruling.judgement.verdict, ruling.pending_since) == (Verdict.PENDING_VISIBILITY, 10)


def test_a_question_keeps_the_time_it_was_first_asked() -> None:
    ruling = judge(hold(DANGLING, first_saw=NOW, due=asked(pending_since=950)), W)
    assert (ruling.judgement.verdict, ruling.pending_since) == (Verdict.PENDING_VISIBILITY, 950)


@pytest.mark.parametrize(
    ("since", "expected"),
    [(NOW - 99, Verdict.PENDING_VISIBILITY), (NOW - 100, Verdict.REFUSED_DANGLING_PREV)],
)
def test_i10_the_same_question_past_its_window_is_final(since: int, expected: Verdict) -> None:
    ruling = judge(hold(DANGLING, due=asked(pending_since=since)), W)
    assert ruling.judgement.verdict is expected
    assert ruling.judgement.detail == QUESTION
    assert (ruling.pending_key is None) is (expected is Verdict.REFUSED_DANGLING_PREV)


def test_a_missing_root_past_its_window_is_final() -> None:
    due = asked(pending_key="no_root", pending_since=1)
    assert verdict(hold((ev(1, 2), ev(2, 1)), due=due)) is Verdict.REFUSED_NO_ROOT


@pytest.mark.parametrize(
    "key", [None, "dangling_prev:20:31", "dangling_prev:21:30", "no_root", "stale_log:1"]
)
def test_another_question_starts_a_window_of_its_own(key: str | None) -> None:
    ruling = judge(hold(DANGLING, due=asked(pending_key=key, pending_since=1)), W)
    assert (ruling.judgement.verdict, ruling.pending_since) == (Verdict.PENDING_VISIBILITY, NOW)


def test_a_question_without_a_time_starts_now() -> None:
    assert judge(hold(DANGLING, due=asked(pending_since=None)), W).pending_since == NOW


def test_a_window_of_zero_waives_the_second_read() -> None:
    assert verdict(hold(DANGLING), ZERO) is Verdict.REFUSED_DANGLING_PREV


# -- stale


def stale(due: Due | None = None) -> Hold:
    return hold(LOG[:2], LOG, due=due)


def test_c23_a_stale_read_is_pending_and_then_unresolved() -> None:
    first = judge(stale(), W)
    assert first == Ruling(Judgement(E, Verdict.PENDING_STALE, log_rows=2, stored_rows=3), "stale_log:1", NOW)
    second = judge(stale(asked(pending_key="stale_log:1", pending_since=700)), W)
    assert (second.judgement.verdict, second.pending_key) == (Verdict.PENDING_STALE, "stale_log:2")
    assert second.pending_since == 700
    third = judge(stale(asked(pending_key="stale_log:2", pending_since=700)), W)
    assert third.judgement.verdict is Verdict.STALE_LOG_UNRESOLVED
    assert third.judgement.kinds == ()
    assert third.judgement.detail == "judged stale 3 times in a row"
    assert (third.pending_key, third.pending_since) == (None, None)


@pytest.mark.parametrize("key", [None, QUESTION, "no_root"])
def test_stale_reads_are_counted_in_a_row(key: str | None) -> None:
    ruling = judge(stale(asked(pending_key=key, pending_since=700)), W)
    assert (ruling.pending_key, ruling.pending_since) == ("stale_log:1", NOW)


# -- spec 3.4


@pytest.mark.parametrize(
    ("resolution", "expected"),
    [
        (LogLost((30, 20)), Judgement(E, Verdict.LOG_LOST, detail="rows lost: 2")),
        (LogPruned(), Judgement(E, Verdict.LOG_PRUNED)),
        (
            WRITER,
            Judgement(
                E,
                Verdict.SECOND_WRITER,
                (Kind.SECOND_WRITER,),
                detail="not in the log: 77 (origin unknown)",
                stored_event_id=77,
            ),
        ),
        (
            SecondWriter((77, 78), ("log", "api"), 5),
            Judgement(
                E,
                Verdict.SECOND_WRITER,
                (Kind.SECOND_WRITER,),
                detail="not in the log: 77 (origin log), 78 (origin api) and 3 more",
                stored_event_id=77,
            ),
        ),
    ],
)
def test_i17_i25_a_resolution_is_the_verdict(resolution: Resolution, expected: Judgement) -> None:
    for found in (
        hold(LOG[:2], LOG),
        hold((A, ev(99)), LOG),
        hold((A, ev(31, 10)), LOG),
        hold(DANGLING, LOG),
    ):
        ruling = judge(replace(found, resolution=resolution), W)
        rows = {"log_rows": found.log_rows, "stored_rows": 3}
        assert ruling == Ruling(replace(expected, **rows))
    absent = judge_absent(E, resolution, log_rows=4, stored_rows=5)
    assert absent == replace(expected, log_rows=4, stored_rows=5)


def test_explained_rows_leave_the_verdict_to_the_outcome() -> None:
    absent = placed(LOG)[2:]
    assert verdict(hold(LOG, resolution=Explained())) is Verdict.MATCH
    assert verdict(hold(LOG[:2], LOG, absent=absent, resolution=Explained())) is Verdict.PENDING_STALE
    conflict = hold((A, ev(31, 10)), LOG, absent=absent, resolution=Explained())
    assert verdict(conflict) is Verdict.DIVERGENT
    with pytest.raises(InvariantError):
        judge_absent(E, Explained(), log_rows=1, stored_rows=1)


def test_absent_rows_that_nobody_asked_about_are_our_bug() -> None:
    with pytest.raises(InvariantError, match="not resolved"):
        judge(hold(LOG[:2], LOG, absent=placed(LOG)[2:]), W)


# -- row 4


def test_row_4_needs_no_window_and_names_kind_position_and_event() -> None:
    changed = replace(B, body="{}")
    ruling = judge(hold(LOG, (A, changed)), W)
    assert ruling.judgement == Judgement(E, Verdict.DIVERGENT, (Kind.PAYLOAD,), 1, 3, 2, "event 30", 30, 30)


@pytest.mark.parametrize("kind", ["conflict", "parent", "edge", "payload"])
def test_row_4_every_kind_is_a_divergence_kind(kind: Any) -> None:
    found = hold(outcome=Diverged(0, kind, A, A))
    assert judge(found, W).judgement.kinds == (Kind(kind),)


# -- labels of the feed


def with_label(found: Hold, label: str = "fork", at: int | None = READ_AT + 1) -> Hold:
    partition = replace(found.populated.partition, label=label, labelled_at=at)
    return replace(found, populated=replace(found.populated, partition=partition))


@pytest.mark.parametrize("log", [LOG, DANGLING])
def test_a_label_is_the_verdict_when_the_read_began_before_it(log: tuple[Event, ...]) -> None:
    assert verdict(with_label(hold(log))) is Verdict.REFUSED_FORK
    assert verdict(with_label(hold(log), at=READ_AT)) is Verdict.REFUSED_FORK
    assert judge(with_label(hold(log)), W).judgement.detail == "fork"


def test_a_label_of_a_withdrawn_join_says_so() -> None:
    found = with_label(hold(), "multiple_roots")
    partition = replace(found.populated.partition, revoked_reason="rejoin_withdrawn")
    found = replace(found, populated=replace(found.populated, partition=partition))
    judgement = judge(found, W).judgement
    assert (judgement.verdict, judgement.detail) == (Verdict.REJOIN_WITHDRAWN, "multiple_roots")
    assert verdict(with_label(found, at=READ_AT - 1)) is Verdict.MATCH, "the read is younger"


def test_a_refused_read_of_an_execution_with_a_withdrawn_join_is_that_verdict() -> None:
    for log in (DANGLING, (*LOG, ev(99))):
        found = hold(log)
        assert verdict(found) is not Verdict.REJOIN_WITHDRAWN
        withdrawn = replace(found, populated=replace(found.populated, withdrawn=True))
        judgement = judge(withdrawn, W).judgement
        assert judgement.verdict is Verdict.REJOIN_WITHDRAWN
        assert judgement.detail == order_by_links(log).label
        diverged = replace(withdrawn, resolution=WRITER)
        assert verdict(diverged) is Verdict.SECOND_WRITER


def test_a_match_over_joins_is_a_verdict_of_its_own() -> None:
    pieces = (*LOG, ev(99))
    join = Join(E, LOG[-1].event_id, 99, xid=7, anchor=7, epoch="e", joined_at=1)
    found = hold()
    joined = replace(found.populated, order=chain_order(pieces, (join,)))
    assert verdict(replace(found, populated=joined)) is Verdict.MATCH_REJOINED


def test_a_label_stands_above_a_read_that_was_too_old_to_write() -> None:
    assert verdict(with_label(hold(written=False))) is Verdict.REFUSED_FORK


def test_a_label_older_than_the_read_leaves_the_verdict_to_the_read() -> None:
    assert verdict(with_label(hold(DANGLING), at=READ_AT - 1)) is Verdict.PENDING_VISIBILITY
    assert verdict(with_label(hold((A, ev(99))), at=READ_AT - 1)) is Verdict.REFUSED_MULTIPLE_ROOTS


@pytest.mark.parametrize("label", ["multiple_roots", "fork", "unreachable", "duplicate_event"])
def test_among_link_refusals_the_reads_own_decides(label: str) -> None:
    for log, own in (
        ((A, ev(99)), "multiple_roots"),
        ((A, A), "duplicate_event"),
        ((A, ev(2, 2)), "unreachable"),
    ):
        assert verdict(with_label(hold(log), label)) is Verdict(f"refused_{own}")


# -- precedence


def test_precedence_pair_by_pair() -> None:
    """Every two findings that one hold can show together."""
    diverged = Diverged(0, "edge", A, A)
    assert verdict(hold(outcome=Refused("store_gap"), resolution=WRITER)) is Verdict.SECOND_WRITER
    assert verdict(hold(outcome=diverged, resolution=WRITER)) is Verdict.SECOND_WRITER
    assert verdict(with_label(hold(outcome=diverged))) is Verdict.DIVERGENT
    assert verdict(with_label(hold(outcome=Refused("store_gap")))) is Verdict.REFUSED_STORE_GAP
    for refused in ((A, ev(99)), (A, ev(2, 99)), (ev(2, 2),)):
        assert verdict(hold(refused, gap=True)) is Verdict.REFUSED_STORE_GAP
        assert verdict(hold(refused, gap=True, resolution=WRITER)) is Verdict.SECOND_WRITER
        told = judge_read_only(
            E, plan(LOG, order_by_links(refused)), None, log_rows=1, stored_rows=3, gap=True
        )
        assert told.judgement.verdict is Verdict.REFUSED_STORE_GAP
    assert verdict(with_label(hold(LOG[:2], LOG))) is Verdict.REFUSED_FORK
    assert verdict(with_label(hold(comparison=WRONG))) is Verdict.REFUSED_FORK
    assert verdict(with_label(hold(guarded=GuardedRead(None, Reason.NO_COVERAGE)))) is Verdict.REFUSED_FORK
    assert verdict(with_label(hold(LOG[:2], LOG, resolution=WRITER))) is Verdict.SECOND_WRITER


def test_the_order_of_precedence_is_that_of_the_spec() -> None:
    groups = [
        {"log_lost", "log_pruned"},
        {"second_writer"},
        {"refused_store_gap"},
        {"divergent"},
        {"rejoin_withdrawn"},
        {
            "refused_multiple_roots",
            "refused_fork",
            "refused_unreachable",
            "refused_duplicate_event",
        },
        {"refused_dangling_prev", "refused_no_root", "pending_visibility"},
        {"pending_stale", "stale_log_unresolved"},
        {"error", "populate_failed", "guarded_read_failed", "unservable"},
        {"pending_settle"},
        {"behind"},
        {"empty", "match", "match_rejoined"},
    ]
    assert [label for group in groups for label in sorted(group)] == list(
        itertools.chain.from_iterable(
            sorted(PRECEDENCE[start : start + len(group)])
            for start, group in zip(itertools.accumulate([0, *map(len, groups)]), groups, strict=False)
        )
    )


def test_every_divergent_second_writer_log_lost_and_final_refusal_revokes() -> None:
    refusals = {verdict for verdict in Verdict if verdict.startswith("refused_")}
    assert refusals | {"divergent", "second_writer", "log_lost", "rejoin_withdrawn"} == REVOKING
    assert not REVOKING & RETRY


@pytest.mark.parametrize("found", [stale(), hold(DANGLING), hold(comparison=SHORT, partition=covered(LOG))])
def test_pending_publishes_no_kind(found: Hold) -> None:
    ruling = judge(found, replace(W, settle=10**6))
    assert ruling.judgement.verdict in RETRY
    assert (ruling.judgement.kinds, ruling.judgement.position) == ((), None)


# -- verify --store


def read_only(
    stored: Sequence[Event], log: Sequence[Event], resolution: Resolution | None = None, *, gap: bool = False
) -> Judgement:
    outcome = plan(stored, order_by_links(log), gap=gap)
    comparison = compare(stored, log[: len(stored)]) if isinstance(outcome, InSync) else None
    return judge_read_only(
        E, outcome, comparison, log_rows=len(log), stored_rows=len(stored), resolution=resolution
    ).judgement


@pytest.mark.parametrize(
    ("stored", "log", "expected"),
    [
        (LOG, LOG, Verdict.MATCH),
        (LOG[:2], LOG, Verdict.BEHIND),
        ((), LOG, Verdict.BEHIND),
        ((), (), Verdict.EMPTY),
        (LOG, LOG[:2], Verdict.STALE_LOG_UNRESOLVED),
        (LOG, DANGLING, Verdict.REFUSED_DANGLING_PREV),
        (LOG, (ev(1, 1),), Verdict.REFUSED_NO_ROOT),
        (LOG, (A, ev(99)), Verdict.REFUSED_MULTIPLE_ROOTS),
    ],
)
def test_read_only_verdicts_need_no_window(
    stored: tuple[Event, ...], log: tuple[Event, ...], expected: Verdict
) -> None:
    assert read_only(stored, log) == Judgement(
        E,
        expected,
        log_rows=len(log),
        stored_rows=len(stored),
        detail=order_by_links(log).label if expected.startswith("refused") else "",
    )


def test_read_only_row_4_has_that_rows_kind() -> None:
    found = read_only((A, replace(B, body="{}")), LOG)
    assert (found.verdict, found.kinds, found.position) == (Verdict.DIVERGENT, (Kind.PAYLOAD,), 1)


def test_read_only_an_unreadable_body_is_divergent_though_the_store_is_behind() -> None:
    unreadable = (A, replace(B, body="{}"), C)
    for log in (unreadable, (*unreadable, ev(40, 20))):
        found = read_only(unreadable, log)
        assert (found.verdict, found.kinds) == (Verdict.DIVERGENT, (Kind.UNIDENTIFIED,))


@pytest.mark.parametrize(
    ("resolution", "expected"),
    [(WRITER, Verdict.SECOND_WRITER), (LogPruned(), Verdict.LOG_PRUNED), (LogLost((1,)), Verdict.LOG_LOST)],
)
def test_read_only_a_stored_id_that_the_log_lacks_is_resolved(
    resolution: Resolution, expected: Verdict
) -> None:
    assert read_only(LOG, LOG[:2], resolution).verdict is expected


def test_read_only_an_execution_that_the_store_lacks_is_not_missing() -> None:
    assert read_only((), LOG).kinds == ()


def test_read_only_holes_in_the_store() -> None:
    found = read_only((A, C), LOG, gap=True)
    assert (found.verdict, found.detail) == (Verdict.REFUSED_STORE_GAP, "store_gap")
    agreeing = judge_read_only(E, InSync(3, 0), compare(LOG, LOG), log_rows=3, stored_rows=3, gap=True)
    expected = Judgement(E, Verdict.REFUSED_STORE_GAP, (), None, 3, 3, "store_gap")
    assert agreeing.judgement == expected, "what agrees hides no hole"


def test_read_only_a_refused_log_whose_join_was_withdrawn() -> None:
    refused = Refused("multiple_roots")
    ruling = judge_read_only(E, refused, None, log_rows=3, stored_rows=2, withdrawn=True)
    assert ruling == Ruling(Judgement(E, Verdict.REJOIN_WITHDRAWN, (), None, 3, 2, "multiple_roots"))
    before = judge_read_only(E, refused, None, log_rows=3, stored_rows=2)
    assert before.judgement.verdict is Verdict.REFUSED_MULTIPLE_ROOTS


@pytest.mark.parametrize(("rejoined", "expected"), [(True, Verdict.MATCH_REJOINED), (False, Verdict.MATCH)])
def test_read_only_a_match_over_joins_is_a_verdict_of_its_own(rejoined: bool, expected: Verdict) -> None:
    same = compare(LOG, LOG)
    ruling = judge_read_only(E, InSync(3, 0), same, log_rows=3, stored_rows=3, rejoined=rejoined)
    assert ruling.judgement.verdict is expected


def test_read_only_an_untaken_comparison_is_no_agreement() -> None:
    with pytest.raises(InvariantError, match="untaken"):
        judge_read_only(E, InSync(3, 0), None, log_rows=3, stored_rows=3)


# -- a torn record


@pytest.mark.parametrize(
    ("what", "expected", "outcome"),
    [
        ("coverage", Verdict.POPULATE_FAILED, "populate_failed"),
        ("watermark", Verdict.GUARDED_READ_FAILED, "guarded_read_failed"),
        ("label", Verdict.ERROR, "populate_failed"),
    ],
)
def test_a_torn_record_is_the_failure_of_who_has_to_read_it(
    what: Any, expected: Verdict, outcome: str
) -> None:
    unreadable = Unreadable(what)
    partition = covered(LOG, torn=Torn(what, (1, None, None, None)), label="nobody's", labelled_at=NOW)
    ruling = judge(hold(outcome=unreadable, partition=partition, written=False), W)
    assert unreadable.label == outcome
    assert ruling.judgement == Judgement(
        E, expected, log_rows=3, stored_rows=3, detail=f"its {what} is malformed"
    )
    assert expected in RETRY
    assert expected not in REVOKING


def test_a_pending_key_that_nobody_wrote_counts_as_none() -> None:
    due = Due(E, 0, pending_key="stale_log:x", pending_since=3)
    ruling = judge(hold(LOG[:2], LOG, due=due, resolution=Explained()), W)
    assert (ruling.judgement.verdict, ruling.pending_key) == (Verdict.PENDING_STALE, "stale_log:1")
