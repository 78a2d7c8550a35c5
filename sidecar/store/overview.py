"""What a store says of itself as a whole: how much is judged, how much waits, how big it is.

Numbers for people and gauges; nothing here decides anything.  Each call is one snapshot.
Source: spec 3.6, 3.8.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

from collections import Counter
from typing import Final

from sidecar.core.acceptance import OPEN
from sidecar.core.coverage import AWAITED, UNJUDGED, Coverage, Tally, covered
from sidecar.core.exclusion import EXCLUDED
from sidecar.core.verdict import Kind, Verdict
from sidecar.store.chain import ChainStore
from sidecar.store.findings import OPEN as OPEN_FINDINGS
from sidecar.store.reader import StoreReader
from sidecar.store.unit import StoreUnit
from sidecar.store.wording import worded

# One search a verdict in an index that holds every column asked for: no row is fetched and nothing
# is sorted, a tenth of the time of a grouping scan.  Rows of an execution are counted once.
_BY_VERDICT: Final = worded(
    "\nUNION ALL ".join(
        (
            *(
                f"SELECT '{verdict}', count(*), total(verdict_rows), total(max(rows_seen, head_seq))"
                f" FROM partition WHERE verdict = '{verdict}' AND last_change_at >= ?1"
                for verdict in Verdict
            ),
            # Without a verdict it is pending until `settle` after its first row, then eligible and
            # uncovered, so that a stopped comparator cannot shrink the denominator.
            *(
                f"SELECT '{label}', count(*), 0, total(max(rows_seen, head_seq)) FROM partition"
                " WHERE verdict IS NULL AND last_change_at >= ?1"
                f" AND coalesce(first_seen_at, last_change_at) {than} ?2"
                for label, than in ((AWAITED, ">"), (UNJUDGED, "<="))
            ),
        )
    ),
    # One pass there: each search would be one for every leaf, and planning them all takes longer.
    postgres="SELECT coalesce(verdict, CASE WHEN coalesce(first_seen_at, last_change_at) > $2::bigint"
    f" THEN '{AWAITED}' ELSE '{UNJUDGED}' END) AS said, count(*),"
    " sum(CASE WHEN verdict IS NULL THEN 0 ELSE verdict_rows END)::bigint,"
    " sum(greatest(rows_seen, head_seq))::bigint"
    f" FROM partition WHERE last_change_at >= $1::bigint AND verdict IS DISTINCT FROM '{EXCLUDED}'"
    " GROUP BY 1",
)
INDEXES: Final = (
    (
        "CREATE INDEX IF NOT EXISTS partition_by_verdict ON partition"
        " (verdict, last_change_at, verdict_rows, rows_seen, head_seq, first_seen_at)"
    ),
    "DROP INDEX IF EXISTS partition_by_change",
)
"""For a store that was made before the layout had the first one."""
_ALARMS: Final = ", ".join(f"'{verdict}'" for verdict in OPEN)
_FORGOTTEN: Final = f"""
SELECT verdict, count(*) FROM partition AS p WHERE verdict IN ({_ALARMS})
   AND NOT EXISTS (SELECT 1 FROM finding AS f
                    WHERE f.execution_id = p.execution_id AND f.verdict = p.verdict
                      AND f.resolved_at IS NULL)
 GROUP BY verdict"""
_COUNTED: Final = (
    "SELECT counted_kinds FROM partition"
    f" WHERE verdict IN ('{Verdict.DIVERGENT}', '{Verdict.SECOND_WRITER}') AND counted_kinds <> ''"
)
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


async def coverage(store: StoreReader, *, since: int, unjudged_before: int) -> Coverage:
    """Coverage of the executions with a row since `since`, in one snapshot.

    Args:
        since: Microseconds of the store's clock.
        unjudged_before: An execution without a verdict first seen before this is `unjudged`.
    """
    found = await store.query(_BY_VERDICT, (since, unjudged_before))
    return covered(Tally(label, count, int(read), int(events)) for label, count, read, events in found)


async def open_findings(store: StoreReader) -> dict[str, int]:
    """Findings that count, by verdict: neither resolved by a match nor acknowledged.

    An execution whose verdict stands against acceptance and of which no finding was ever kept (an
    older store, another hand) counts as one: what nobody wrote down nobody has settled.
    """
    counts: Counter[str] = Counter(dict(await store.query(OPEN_FINDINGS)))
    counts.update(dict(await store.query(_FORGOTTEN)))
    return dict(counts)


async def divergences(store: StoreReader) -> dict[str, int]:
    """Executions by divergence kind that was counted and not cleared by a match since."""
    kinds: Counter[str] = Counter()
    for (counted,) in await store.query(_COUNTED):
        kinds.update(counted.split(","))
    return {kind.value: kinds[kind.value] for kind in Kind}


async def prepare(store: ChainStore) -> None:
    """Give an older store the indexes that these queries search."""

    async def work(unit: StoreUnit) -> None:
        for statement in INDEXES:
            await unit.rows(statement)

    await store.transact(work)


async def due_counts(store: StoreReader) -> dict[str, int]:
    """Entries of the work list by the first reason that holds."""
    return dict(await store.query(_DUE))


async def oldest(store: StoreReader) -> tuple[int | None, int | None]:
    """Since when the oldest open question, and the oldest missing predecessor, stand.

    A predecessor that was given up is still missing: its time counts from the verdict.
    """
    (pending, dangling), (final,) = (
        (await store.query(_OLDEST))[0],
        (await store.query(_OLDEST_FINAL_DANGLING))[0],
    )
    return pending, min((at for at in (dangling, final) if at is not None), default=None)
