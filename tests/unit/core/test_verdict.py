"""The closed lists that metrics, reports and readers rely on."""

from __future__ import annotations

from sidecar.core.verdict import Judgement, Verdict


def test_the_verdicts_are_those_of_the_spec_in_its_order() -> None:
    assert [verdict.value for verdict in Verdict] == [
        "match",
        "match_rejoined",
        "divergent",
        "second_writer",
        "refused_multiple_roots",
        "refused_no_root",
        "refused_fork",
        "refused_dangling_prev",
        "refused_unreachable",
        "refused_duplicate_event",
        "refused_store_gap",
        "rejoin_withdrawn",
        "pending_visibility",
        "pending_stale",
        "pending_settle",
        "stale_log_unresolved",
        "log_pruned",
        "log_lost",
        "behind",
        "unservable",
        "log_read_failed",
        "log_truncated",
        "populate_failed",
        "guarded_read_failed",
        "error",
        "empty",
    ]


def test_a_judgement_of_nothing_says_nothing() -> None:
    judgement = Judgement(7, Verdict.ERROR)
    assert (judgement.kinds, judgement.position, judgement.detail) == ((), None, "")
    assert (judgement.log_rows, judgement.stored_rows) == (0, 0)
