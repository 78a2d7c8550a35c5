"""Let go of partitions whose log is gone, and give their pages back to the disk.

A partition goes when its last verdict is that nothing of its log is left, that verdict and its
last row are older than the bound, and nothing of it waits to be judged.  Each is one small
transaction, so that the feed has its turn in between; a reader that is on its way keeps its
snapshot.  Findings stay, and no number of the engine's sequence is given again.
Source: spec 11, decision 1.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from sidecar.core.verdict import Verdict
from sidecar.store import departure
from sidecar.store.chain import ChainStore
from sidecar.store.unit import StoreUnit

DAY_US: Final = 86_400_000_000
EXECUTIONS_MAX: Final = 50
ROWS_MAX: Final = 20_000
"""What one step lets go of, whichever is reached first; one execution always."""

FREE_PAGES_KEPT: Final = 1024
"""Free pages that stay in the file: the next rows want some."""
VACUUM_PAGES: Final = 200
VACUUMS_MAX: Final = 10

INDEX: Final = (
    "CREATE INDEX IF NOT EXISTS partition_pruned ON partition (verdict_at)"
    f" WHERE verdict = '{Verdict.LOG_PRUNED}'"
)
# `verdict_rows`: a log that lost its first rows only is pruned too, and would come back at once.
_GONE: Final = (
    f"verdict = '{Verdict.LOG_PRUNED}' AND verdict_rows = 0 AND verdict_at < ?1"
    " AND coalesce(last_change_at, 0) < ?1"
    " AND NOT EXISTS (SELECT 1 FROM due WHERE due.execution_id = partition.execution_id)"
)
CANDIDATES: Final = (
    "SELECT execution_id FROM partition INDEXED BY partition_pruned"
    f" WHERE {_GONE} ORDER BY verdict_at LIMIT ?2"
)
_STILL: Final = f"SELECT head_seq FROM partition WHERE execution_id = ?2 AND {_GONE}"
_DROP: Final = tuple(
    f"DELETE FROM {table} WHERE execution_id = ?"
    for table in ("event", "rejoin", "d3_projection", "partition")
)


@dataclass(frozen=True, slots=True)
class Dropped:
    """What one step let go of; `pages` went back to the disk."""

    executions: int = 0
    rows: int = 0
    pages: int = 0


class Retention:
    """The sweep of one store.

    Args:
        keep_us: Microseconds that a partition stays after its log was found gone.
    """

    def __init__(self, store: ChainStore, keep_us: int) -> None:
        self._store = store
        self._keep_us = keep_us
        self._prepared = False

    async def step(self) -> Dropped:
        """Let go of a few partitions and of a few free pages.

        Raises:
            StoreError: what was dropped before it is gone, the rest stands.
        """
        if not self._prepared:
            await self._store.transact(_prepare)
            self._prepared = True
        before = self._store.clock.now() - self._keep_us
        executions = rows = 0
        for (execution_id,) in await self._store.query(CANDIDATES, (before, EXECUTIONS_MAX)):
            gone = await self._store.transact(partial(_drop, execution_id=execution_id, before=before))
            executions += gone is not None
            rows += gone or 0
            if rows >= ROWS_MAX:
                break
        return Dropped(executions, rows, await self._vacuum())

    async def _vacuum(self) -> int:
        freed = 0
        if self._store.path is None:
            return freed  # PostgreSQL's autovacuum sees to it
        for _ in range(VACUUMS_MAX):
            spare = await self._free_pages() - FREE_PAGES_KEPT
            if spare <= 0:
                break
            await self._store.transact(partial(_vacuum, pages=min(spare, VACUUM_PAGES)))
            left = await self._free_pages() - FREE_PAGES_KEPT
            if left >= spare:
                break  # a file that was made without: it keeps its size and fills its pages again
            freed += spare - left
        return freed

    async def _free_pages(self) -> int:
        return int((await self._store.query("PRAGMA freelist_count"))[0][0])


async def _prepare(unit: StoreUnit) -> None:
    await unit.rows(INDEX)


async def _drop(unit: StoreUnit, *, execution_id: int, before: int) -> int | None:
    """Drop one partition if it is still to go; its rows, None when it stays."""
    if not await unit.rows(_STILL, (before, execution_id)):
        return None
    rows = (await unit.row_counts((execution_id,)))[execution_id][0]
    for statement in _DROP:
        await unit.rows(statement, (execution_id,))
    await departure.note(unit, execution_id, rebuilt=False, now=unit.now())
    return rows


async def _vacuum(unit: StoreUnit, *, pages: int) -> None:
    for _ in range(pages):
        # It gives one page back for each step of its statement, and the driver steps a
        # statement without columns once, whatever number stands in it.
        await unit.rows("PRAGMA incremental_vacuum(1)")
