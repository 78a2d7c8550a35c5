"""How far an audit has come, and what it has handed over: durable, so that a crash loses nothing.

What the comparator is to read, what was already handed over, and how far the round has come are
one transaction.  Source: design 3.4, 5 (audit_progress).
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar

from sidecar.core.audit import Round, Standing
from sidecar.core.ports import Unit
from sidecar.store.chain import ChainStore
from sidecar.store.unit import StoreUnit
from sidecar.store.wording import worded

T = TypeVar("T")
ROUNDS_KEPT: Final = 100

_COLUMNS: Final = "round, after_id, started_at, finished_at, executions, differing"
_LATEST: Final = f"SELECT {_COLUMNS} FROM audit_progress ORDER BY round DESC LIMIT 1"
_LAST_FINISHED: Final = "SELECT max(finished_at) FROM audit_progress"
_PUT: Final = f"REPLACE INTO audit_progress ({_COLUMNS}) VALUES (?,?,?,?,?,?)"
_FORGET_ROUNDS: Final = "DELETE FROM audit_progress WHERE round <= ?"
_COUNT: Final = "SELECT count(*) FROM partition WHERE execution_id <= ?"

# A table of its own: a store of this layout that was made before there was an audit lacks it.
_SEEN_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS audit_seen"
    " (execution_id INTEGER NOT NULL PRIMARY KEY, seen TEXT NOT NULL) STRICT"
)
_PUT_SEEN: Final = "REPLACE INTO audit_seen (execution_id, seen) VALUES (?,?)"
_FORGET: Final = "DELETE FROM audit_seen WHERE execution_id = ?"
# What waits to be read for the first time has no record yet.
_FORGET_GONE: Final = (
    "DELETE FROM audit_seen WHERE execution_id NOT IN (SELECT execution_id FROM partition)"
    " AND execution_id NOT IN (SELECT execution_id FROM due)"
)

STANDINGS: Final = worded(
    "SELECT x.value, p.verdict, coalesce(p.verdict_rows, 0), d.execution_id IS NOT NULL, s.seen"
    " FROM json_each(?) AS x LEFT JOIN partition AS p ON p.execution_id = x.value"
    " LEFT JOIN due AS d ON d.execution_id = x.value"
    " LEFT JOIN audit_seen AS s ON s.execution_id = x.value",
    postgres="SELECT x.value, p.verdict, coalesce(p.verdict_rows, 0), d.execution_id IS NOT NULL, s.seen"
    " FROM unnest($1::bigint[]) AS x(value)"
    + "".join(
        f" LEFT JOIN (SELECT * FROM {table} WHERE execution_id = ANY($1::bigint[])) AS {name}"
        f" ON {name}.execution_id = x.value"
        for table, name in (("partition", "p"), ("due", "d"), ("audit_seen", "s"))
    ),
)


class StoreAuditBook:
    """`core.ports.AuditBook` over one store."""

    def __init__(self, store: ChainStore) -> None:
        self._store = store

    async def latest(self) -> tuple[Round | None, int | None]:
        """The round that was begun last, and when one was last finished.

        Raises:
            StoreError: the store cannot be read, or cannot be written.
        """

        async def work(unit: StoreUnit) -> tuple[Round | None, int | None]:
            await unit.rows(_SEEN_TABLE)
            found = await unit.rows(_LATEST)
            return Round(*found[0]) if found else None, (await unit.rows(_LAST_FINISHED))[0][0]

        return await self._store.transact(work)

    async def executions(self, up_to: int) -> int:
        """How many executions with an id up to this one the store knows."""
        return int((await self._store.query(_COUNT, (up_to,)))[0][0])

    async def standings(self, execution_ids: Collection[int]) -> dict[int, Standing]:
        """What is known of each beside its rows."""
        rows = await self._store.query(STANDINGS, (json.dumps(list(execution_ids)),))
        return {row[0]: Standing(row[1], row[2], bool(row[3]), row[4]) for row in rows}

    async def save(
        self,
        progress: Round,
        seen: Mapping[int, str],
        forgotten: Collection[int],
        work: Callable[[Unit], Awaitable[T]],
    ) -> T:
        """Run `work` and note the rest in its transaction.

        Args:
            seen: Fingerprints of what is handed over in `work`.
            forgotten: Executions whose fingerprint is of no use any more.
        """

        async def save(unit: StoreUnit) -> T:
            if progress.finished_at is not None:
                # First: what is handed over below has neither record nor entry in the tables yet.
                await unit.rows(_FORGET_ROUNDS, (progress.number - ROUNDS_KEPT,))
                await unit.rows(_FORGET_GONE)
            result = await work(unit)
            for execution_id, fingerprint in seen.items():
                await unit.rows(_PUT_SEEN, (execution_id, fingerprint))
            for execution_id in forgotten:
                await unit.rows(_FORGET, (execution_id,))
            await unit.rows(
                _PUT,
                (
                    progress.number,
                    progress.after_id,
                    progress.started_at,
                    progress.finished_at,
                    progress.executions,
                    progress.differing,
                ),
            )
            return result

        return await self._store.transact(save)
