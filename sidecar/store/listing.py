"""Pages of executions and findings for people, newest first; each call is one snapshot.

A list follows its index: however many executions a store holds, a page reads a few rows of each
verdict.  A place in a list is the last thing shown, so that nothing moves when something new
comes in front.  Source: design 4, HTTP.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidecar.core.authority import Partition
from sidecar.core.event import ID_MAX
from sidecar.core.exclusion import EXCLUDED
from sidecar.core.verdict import Verdict
from sidecar.store.connection import Row
from sidecar.store.findings import Kept, kept
from sidecar.store.reader import StoreReader
from sidecar.store.rows import PARTITION_COLUMNS, partition_record
from sidecar.store.wording import worded

UNJUDGED: Final = "unjudged"
"""In place of a verdict: executions that have none yet."""
VERDICTS: Final = (*(verdict.value for verdict in Verdict), EXCLUDED, UNJUDGED)
"""What a list of executions can be narrowed to."""


@dataclass(frozen=True, slots=True)
class Place:
    """An execution in the list: when it last changed, None for never told, and its id."""

    changed_at: int | None
    execution_id: int


# Every leaf has an index in this very order, with the verdict before it and without.
_PAGE_OF_ALL: Final = (
    "SELECT {columns} FROM partition WHERE {known}(last_change_at < $1::bigint"
    " OR (last_change_at = $1 OR last_change_at IS NULL AND $1 IS NULL)"
    " AND ($2::bigint IS NULL OR execution_id < $2) OR last_change_at IS NULL AND $1 IS NOT NULL)"
    " ORDER BY last_change_at DESC NULLS LAST, execution_id DESC LIMIT $3"
)


def _of(verdict: str) -> str:
    """The next executions with one verdict: a search in `partition_by_verdict`, which holds all of it.

    ?1: the time to go on from, NULL among those without one; ?2: the id; ?3: how many.
    """
    known = "verdict IS NULL" if verdict == UNJUDGED else f"verdict = '{verdict}'"
    return (
        "SELECT * FROM (SELECT last_change_at, execution_id FROM partition"
        f" WHERE {known} AND last_change_at <= ?1"
        " AND (last_change_at < ?1 OR ?2 IS NULL OR execution_id < ?2)"
        " ORDER BY last_change_at DESC, execution_id DESC LIMIT ?3)\nUNION ALL "
        "SELECT * FROM (SELECT last_change_at, execution_id FROM partition"
        f" WHERE {known} AND last_change_at IS NULL AND (?1 IS NOT NULL OR execution_id < ?2)"
        " ORDER BY execution_id DESC LIMIT ?3)"
    )


def listed(verdict: str | None) -> str:
    """The statement of one page; None: whatever the verdict."""
    parts = "\nUNION ALL ".join(_of(each) for each in (VERDICTS if verdict is None else (verdict,)))
    return worded(
        f"SELECT {PARTITION_COLUMNS} FROM partition WHERE execution_id IN (SELECT execution_id FROM ({parts})"
        " ORDER BY last_change_at DESC, execution_id DESC LIMIT ?3)"
        " ORDER BY last_change_at DESC, execution_id DESC",
        postgres=_PAGE_OF_ALL.format(
            columns=PARTITION_COLUMNS,
            known=""
            if verdict is None
            else "verdict IS NULL AND "
            if verdict == UNJUDGED
            else f"verdict = '{verdict}' AND ",
        ),
    )


async def executions(
    store: StoreReader, *, verdict: str | None, after: Place | None, limit: int
) -> list[Partition]:
    """The records of a page, what changed last in front.

    Args:
        verdict: One of VERDICTS; None: every one.
        after: The last one of the page before.

    Raises:
        StoreError: the store cannot be read now.
    """
    at, execution_id = (ID_MAX, None) if after is None else (after.changed_at, after.execution_id)
    found = await store.query(listed(verdict), (at, execution_id, limit))
    return [partition_record(row) for row in found]


_COLUMNS: Final = (
    "finding_id, execution_id, verdict, kind, position, detail, log_event, store_event, {evidence}, found_at,"
    " resolved_at, acknowledged_at, acknowledged_why"
)
_BARE: Final = _COLUMNS.format(evidence="NULL")
_PAGE: Final = (
    "finding_id < ?1 AND (CAST(?2 AS TEXT) IS NULL OR verdict = ?2) ORDER BY finding_id DESC LIMIT ?3"
)
FINDINGS: Final = f"SELECT {_BARE} FROM finding WHERE {_PAGE}"
# The plus keeps SQLite to the small index of what is open: by the key it would have to read past
# the evidence of every finding to see whether it is.
OPEN_FINDINGS: Final = (
    f"SELECT {_BARE} FROM finding WHERE finding_id IN (SELECT finding_id FROM finding"
    " WHERE resolved_at IS NULL AND acknowledged_at IS NULL"
    " AND +finding_id < ?1 AND (CAST(?2 AS TEXT) IS NULL OR verdict = ?2) ORDER BY +finding_id DESC LIMIT ?3)"
    " ORDER BY finding_id DESC"
)
OF_EXECUTION: Final = (
    f"SELECT {_BARE} FROM finding WHERE execution_id = ?1 ORDER BY found_at DESC, finding_id DESC LIMIT ?2"
)
FINDING: Final = f"SELECT {_COLUMNS.format(evidence='evidence')} FROM finding WHERE finding_id = ?1"


async def findings(
    store: StoreReader, *, verdict: str | None, only_open: bool, after: int | None, limit: int
) -> list[Kept]:
    """A page of findings without their evidence, the newest in front."""
    statement = OPEN_FINDINGS if only_open else FINDINGS
    return _kept(await store.query(statement, (ID_MAX if after is None else after, verdict, limit)))


async def findings_of(store: StoreReader, execution_id: int, limit: int) -> list[Kept]:
    """The newest findings of one execution without their evidence."""
    return _kept(await store.query(OF_EXECUTION, (execution_id, limit)))


async def finding(store: StoreReader, finding_id: int) -> Kept | None:
    """One finding with its evidence; None when there is none of this id."""
    found = _kept(await store.query(FINDING, (finding_id,)))
    return found[0] if found else None


def _kept(rows: list[Row]) -> list[Kept]:
    return [kept(row) for row in rows]
