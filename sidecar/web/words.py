"""Verdicts, reasons and gates in words, for people who read a page at night.

Each label stands beside its words: the words explain, the label is what logs and metrics call it.
Source: spec 3.3, 2.6.
"""

from __future__ import annotations

from typing import Final

from sidecar.core.coverage import AWAITED, UNJUDGED
from sidecar.core.verdict import ALARMING, PENDING, Verdict

WORDS: Final = {
    Verdict.MATCH: "Store and log hold the same chain.",
    Verdict.MATCH_REJOINED: "Store and log hold the same chain, over a join that is proven.",
    Verdict.DIVERGENT: "Store and log hold different chains.",
    Verdict.SECOND_WRITER: "The store holds rows that the log does not have.",
    Verdict.REFUSED_MULTIPLE_ROOTS: "The log has several events without a predecessor: no one chain.",
    Verdict.REFUSED_NO_ROOT: "The log has no event without a predecessor: no beginning.",
    Verdict.REFUSED_FORK: "Two events of the log name the same predecessor: no one chain.",
    Verdict.REFUSED_DANGLING_PREV: "An event of the log names a predecessor that the log does not have.",
    Verdict.REFUSED_UNREACHABLE: "Some events of the log cannot be reached from its root.",
    Verdict.REFUSED_DUPLICATE_EVENT: "One event stands in the log more than once.",
    Verdict.REFUSED_STORE_GAP: "The stored chain has a hole in its sequence.",
    Verdict.REJOIN_WITHDRAWN: "A join that was taken for proven was contradicted by a later row.",
    Verdict.PENDING_VISIBILITY: "A predecessor is not visible yet; it may still come.",
    Verdict.PENDING_STALE: "The log read lacked rows that are stored; it is read again.",
    Verdict.PENDING_SETTLE: "It is still being written; it is judged when it has settled.",
    Verdict.STALE_LOG_UNRESOLVED: "The store ran ahead of the log reads again and again; nothing is decided.",
    Verdict.LOG_PRUNED: "The log no longer has this execution; the stored copy stays readable.",
    Verdict.LOG_LOST: "Postgres lost committed rows in a restart or a failover.",
    Verdict.BEHIND: "The store lacks rows that the log has; what both have is equal.",
    Verdict.UNSERVABLE: "Populating went well, and the guarded read does not answer.",
    Verdict.LOG_READ_FAILED: "The log could not be read: nothing is known.",
    Verdict.LOG_TRUNCATED: "The log is longer than the read limit: nothing is known.",
    Verdict.POPULATE_FAILED: "The store could not be populated: nothing is known.",
    Verdict.GUARDED_READ_FAILED: "The store could not be read back: nothing is known.",
    Verdict.ERROR: "What stands in the store cannot be read: nothing is known.",
    Verdict.EMPTY: "Neither side holds a row.",
}
_BESIDE: Final = {
    AWAITED: "No verdict yet; it was first seen a moment ago.",
    UNJUDGED: "No verdict, though the settle time is over.",
}
LANES: Final = {"live": "every row as it comes", "late": "what committed late", "sweep": "the whole table"}


def words(label: str | None) -> str:
    """What a verdict says; no verdict is none yet."""
    if label is None:
        return "No verdict yet."
    return WORDS.get(Verdict(label), "") if label in set(Verdict) else _BESIDE.get(label, "")


def tone(label: str | None) -> str:
    """good, bad, wait or warn: how a verdict is shown, never the only way it is told."""
    if label is None or label == AWAITED or label in PENDING:
        return "wait"
    if label in {Verdict.MATCH, Verdict.MATCH_REJOINED}:
        return "good"
    return "bad" if label in ALARMING else "warn"
