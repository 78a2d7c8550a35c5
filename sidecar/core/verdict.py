"""Verdicts and axes: what one comparison of store and log comes to.

Every way of not knowing has its own label and none of them is `match`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Verdict(StrEnum):
    """The closed list of spec 3.3, in its order."""

    MATCH = "match"
    MATCH_REJOINED = "match_rejoined"
    DIVERGENT = "divergent"
    SECOND_WRITER = "second_writer"
    REFUSED_MULTIPLE_ROOTS = "refused_multiple_roots"
    REFUSED_NO_ROOT = "refused_no_root"
    REFUSED_FORK = "refused_fork"
    REFUSED_DANGLING_PREV = "refused_dangling_prev"
    REFUSED_UNREACHABLE = "refused_unreachable"
    REFUSED_DUPLICATE_EVENT = "refused_duplicate_event"
    REFUSED_STORE_GAP = "refused_store_gap"
    REJOIN_WITHDRAWN = "rejoin_withdrawn"
    PENDING_VISIBILITY = "pending_visibility"
    PENDING_STALE = "pending_stale"
    PENDING_SETTLE = "pending_settle"
    STALE_LOG_UNRESOLVED = "stale_log_unresolved"
    LOG_PRUNED = "log_pruned"
    LOG_LOST = "log_lost"
    BEHIND = "behind"
    UNSERVABLE = "unservable"
    LOG_READ_FAILED = "log_read_failed"
    LOG_TRUNCATED = "log_truncated"
    POPULATE_FAILED = "populate_failed"
    GUARDED_READ_FAILED = "guarded_read_failed"
    ERROR = "error"
    EMPTY = "empty"


class Kind(StrEnum):
    """Divergence kinds: the axes of spec 3.2, and the two of 2.8 and 3.4."""

    MISSING_EXECUTION = "missing_execution"
    COUNT = "count"
    MISSING_EVENT = "missing_event"
    EXTRA_EVENT = "extra_event"
    ORDER = "order"
    EDGE = "edge"
    PARENT = "parent"
    PAYLOAD = "payload"
    STATE = "state"
    UNIDENTIFIED = "unidentified"
    CONFLICT = "conflict"
    SECOND_WRITER = "second_writer"


PENDING: Final = frozenset({Verdict.PENDING_VISIBILITY, Verdict.PENDING_STALE, Verdict.PENDING_SETTLE})
"""Verdicts that keep a question open; they publish no kind."""

RETRY: Final = frozenset(
    {
        Verdict.PENDING_VISIBILITY,
        Verdict.PENDING_STALE,
        Verdict.PENDING_SETTLE,
        Verdict.LOG_READ_FAILED,
        Verdict.POPULATE_FAILED,
        Verdict.GUARDED_READ_FAILED,
        Verdict.ERROR,
    }
)
"""Verdicts that are asked again; all others are final until a row or a changed body comes."""

NOT_ELIGIBLE: Final = frozenset(
    {
        Verdict.PENDING_VISIBILITY,
        Verdict.PENDING_STALE,
        Verdict.PENDING_SETTLE,
        Verdict.LOG_PRUNED,
        Verdict.EMPTY,
    }
)
"""Verdicts that leave the execution out of coverage's denominator."""

ALARMING: Final = frozenset(
    {
        Verdict.DIVERGENT,
        Verdict.SECOND_WRITER,
        Verdict.REJOIN_WITHDRAWN,
        Verdict.STALE_LOG_UNRESOLVED,
        Verdict.LOG_LOST,
        Verdict.UNSERVABLE,
    }
)
"""Verdicts with an alarm of their own.  Their findings are dropped last."""

EVIDENCED: Final = tuple(v for v in Verdict if v in ALARMING or v.startswith("refused_"))
"""Final verdicts that leave a finding with evidence, in the order of the list."""

RESOLVING: Final = frozenset({Verdict.MATCH, Verdict.MATCH_REJOINED})
"""Verdicts that resolve every finding of their execution."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One verdict with what an engineer needs first.

    `position` counts from 0; `log_event_id` and `stored_event_id` are what each side holds
    there, None where it holds nothing or the verdict is about no single place.
    """

    execution_id: int
    verdict: Verdict
    kinds: tuple[Kind, ...] = ()
    position: int | None = None
    log_rows: int = 0
    stored_rows: int = 0
    detail: str = ""
    log_event_id: int | None = None
    stored_event_id: int | None = None
