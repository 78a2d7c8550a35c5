"""The closed sets of label values.

Each value is there at 0 from the first scrape; one outside its set is our bug.  Source: spec 3.8, 8.1.
"""

from __future__ import annotations

from typing import Final

from sidecar.core.acceptance import Reason
from sidecar.core.certificate import Decision
from sidecar.core.verdict import EVIDENCED, Kind, Verdict
from sidecar.core.walgap import Gap
from sidecar.fleet.notification import KINDS as KINDS_OF_NOTIFICATION
from sidecar.fleet.sink import RESULTS

POPULATE_OUTCOMES: Final = (
    "opened",
    "open_failed",
    "in_sync",
    "extended",
    "diverged",
    "stale_log",
    "stale_log_unresolved",
    "log_read_failed",
    "log_truncated",
    "populate_failed",
    "guarded_read_refused",
    "guarded_read_failed",
    "length_disagreement",
    "multiple_roots",
    "no_root",
    "fork",
    "dangling_prev",
    "unreachable",
    "duplicate_event",
    "store_gap",
    "log_pruned",
)
"""The reference's 18 and three of ours.  Source: spec 3.8."""

VERDICTS: Final = tuple(verdict.value for verdict in Verdict if verdict is not Verdict.BEHIND)
PROBED: Final = tuple(verdict.value for verdict in Verdict)
FINDINGS: Final = tuple(verdict.value for verdict in EVIDENCED)
KINDS: Final = tuple(kind.value for kind in Kind)
LANES: Final = ("live", "late", "sweep", "wal")
WAL_GAPS: Final = tuple(gap.value for gap in Gap)
FINDERS: Final = (*LANES, "comparator")
WAYS: Final = ("extend", "populate")
DUE_REASONS: Final = ("reread", "changed", "label", "terminal", "retry", "rows")
WINDOWS: Final = ("5m", "1h", "24h", "start")
DECISIONS: Final = tuple(decision.value for decision in Decision)
AUDIT_RESULTS: Final = ("equal", "different", "read")
AUTHORITY_STATES: Final = ("not_populated", "authoritative")
ACCEPTANCE_REASONS: Final = tuple(reason.value for reason in Reason)
NOTIFICATIONS: Final = tuple(kind.label for kind in KINDS_OF_NOTIFICATION)
GOSSIP_RESULTS: Final = tuple(result.label for result in RESULTS)
CONTROL_RESULTS: Final = ("expected", "unexpected")
