"""What a store says of itself as a whole: how much is judged, how much waits, how big it is.

Numbers for people and gauges; nothing here decides anything.  Each call is one snapshot.
Source: spec 3.6, 3.8.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.core.verdict import NOT_ELIGIBLE, Verdict
from sidecar.errors import StoreError
from sidecar.store.findings import OPEN
from sidecar.store.reader import StoreReader

UNJUDGED: Final = "unjudged"

# An execution without a verdict is pending until `settle` after its first row, then eligible
# and uncovered, so that a stopped comparator cannot shrink the denominator.  GROUP BY 1: by
# name SQLite would take the column partition.label, and every execution without a label be one.
_BY_VERDICT: Final = """
SELECT CASE WHEN verdict IS NOT NULL THEN verdict
            WHEN coalesce(first_seen_at, last_change_at) > ?2 THEN 'pending' ELSE 'unjudged' END AS label,
       count(*), sum(verdict_rows), sum(max(rows_seen, head_seq))
  FROM partition INDEXED BY partition_by_change
 WHERE last_change_at >= ?1 GROUP BY 1"""
_DUE: Final = """
SELECT CASE WHEN reread IS NOT NULL THEN 'reread' WHEN changed IS NOT NULL THEN 'changed'
            WHEN labelled IS NOT NULL THEN 'label' WHEN terminal_seen IS NOT NULL THEN 'terminal'
            WHEN tries > 0 THEN 'retry' ELSE 'rows' END AS reason, count(*)
  FROM due GROUP BY 1"""
_OLDEST: Final = """
SELECT min(pending_since),
       min(CASE WHEN pending_key LIKE 'dangling_prev:%' THEN pending_since END)
  FROM due WHERE pending_since IS NOT NULL"""
_OLDEST_FINAL_DANGLING: Final = (
    "SELECT min(revoked_at) FROM partition WHERE verdict = 'refused_dangling_prev'"
)


@dataclass(frozen=True, slots=True)
class CoverageOf:
    """The two numbers of one window; `verdicts` counts executions by latest verdict."""

    covered_executions: int = 0
    eligible_executions: int = 0
    covered_events: int = 0
    eligible_events: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)

    @property
    def uncovered(self) -> dict[str, int]:
        """Eligible and not covered executions by verdict."""
        return {label: n for label, n in self.verdicts.items() if _eligible(label) and label != Verdict.MATCH}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes."""

    used: int
    free: int
    wal: int


async def coverage(store: StoreReader, *, since: int, unjudged_before: int) -> CoverageOf:
    """Coverage of the executions with a row since `since`.

    Args:
        since: Microseconds of the store's clock.
        unjudged_before: An execution without a verdict first seen before this is `unjudged`.
    """
    found = await store.query(_BY_VERDICT, (since, unjudged_before))
    eligible = [row for row in found if _eligible(row[0])]
    covered = [row for row in found if row[0] == Verdict.MATCH]
    return CoverageOf(
        covered_executions=sum(row[1] for row in covered),
        eligible_executions=sum(row[1] for row in eligible),
        covered_events=sum(row[2] for row in covered),
        eligible_events=sum(row[3] for row in eligible),
        verdicts={row[0]: row[1] for row in found},
    )


def _eligible(label: str) -> bool:
    return label != "pending" and label not in NOT_ELIGIBLE


async def due_counts(store: StoreReader) -> dict[str, int]:
    """Entries of the work list by the first reason that holds."""
    return dict(await store.query(_DUE))


async def open_findings(store: StoreReader) -> dict[str, int]:
    """Findings that count, by verdict: neither resolved by a match nor acknowledged."""
    return dict(await store.query(OPEN))


async def oldest(store: StoreReader) -> tuple[int | None, int | None]:
    """Since when the oldest open question, and the oldest missing predecessor, stand.

    A predecessor that was given up is still missing: its time counts from the verdict.
    """
    (pending, dangling), (final,) = (
        (await store.query(_OLDEST))[0],
        (await store.query(_OLDEST_FINAL_DANGLING))[0],
    )
    return pending, min((at for at in (dangling, final) if at is not None), default=None)


def sizes(path: Path) -> Sizes:
    """The database file, its write-ahead log, and what its file system has left.

    Raises:
        StoreError: the file or its folder is gone.
    """
    wal = path.with_name(path.name + "-wal")
    try:
        left = os.statvfs(path.parent)
        used, log = path.stat().st_size, wal.stat().st_size if wal.exists() else 0
    except OSError as error:
        raise StoreError(
            f"the store's file cannot be looked at: {error.strerror}",
            hint="put it back, or start again: a new store fills itself from the log",
        ) from None
    return Sizes(used, left.f_bavail * left.f_frsize, log)
