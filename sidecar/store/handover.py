"""A store knows which shard it was filled as; opened as another one, it lets go of the others' partitions.

Three steps, each of its own transactions, so that a process that dies anywhere goes on where it
was.  The first drops every lane's horizon: from then on nothing claims that the store holds what
lies below one, whoever opens it next and as whatever shard.  Then partitions go, a few at a time.
Last of all the store is the new shard's.

What is not to be had from the log again is set aside first: copied into a chain store beside this
one, `<file>.aside`, which is read by `inspect` and `verify` as any other.  The copy is on the disk
before the rows go; a copy made twice is one copy.  Source: spec 1.8, design 6.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from sidecar.core.shards import Shard
from sidecar.errors import StoreError
from sidecar.store import departure
from sidecar.store.chain import ChainStore
from sidecar.store.connection import finished
from sidecar.store.failure import sqlite_errors
from sidecar.store.findings import COLUMNS as FINDING_COLUMNS
from sidecar.store.format import Marker, gate, initialise, uri
from sidecar.store.reader import StoreReader
from sidecar.store.rows import EVENT_COLUMNS, PARTITION_COLUMNS
from sidecar.store.unit import StoreUnit

SHARD: Final = "shard"
MOVING: Final = "shard_moving"
PAGE: Final = 500

_SHARD: Final = re.compile(r"([0-9]{1,4}) of ([0-9]{1,4})", re.ASCII)
_META: Final = "SELECT key, value FROM meta WHERE key IN (?, ?)"
_PUT_META: Final = "REPLACE INTO meta (key, value) VALUES (?, ?)"
_HOLDS: Final = "SELECT EXISTS (SELECT 1 FROM partition) OR EXISTS (SELECT 1 FROM due)"
_BEGIN: Final = (
    "DELETE FROM tail_cursor",
    # Another part of the executions was watched; and a round that is under way began without the new ones.
    "DELETE FROM meta WHERE key IN ('observed_since', 'observed_us')",
    "DELETE FROM audit_progress WHERE finished_at IS NULL",
)
_KNOWN: Final = (
    "SELECT execution_id FROM ("
    + " UNION ".join(
        f"SELECT * FROM (SELECT DISTINCT execution_id FROM {table} WHERE execution_id >= ?1"
        " ORDER BY execution_id LIMIT ?2)"
        for table in ("partition", "event INDEXED BY event_identity", "due", "finding")
    )
    + ") ORDER BY execution_id LIMIT ?2"
)
_AMONG: Final = "execution_id IN (SELECT value FROM json_each(?1))"
_ROWS: Final = (
    f"SELECT execution_id, count(*) FROM event INDEXED BY event_identity WHERE {_AMONG} GROUP BY execution_id"
)
_REMARKED: Final = (
    f"SELECT execution_id FROM finding WHERE {_AMONG} UNION SELECT execution_id FROM rejoin WHERE {_AMONG}"
)
_LET_GO: Final = tuple(
    f"DELETE FROM {table} WHERE {_AMONG}"
    for table in ("event", "rejoin", "d3_projection", "due", "finding", "partition")
)
# Counted anew by whoever writes the next finding.
_FORGET_SIZE: Final = "DELETE FROM meta WHERE key = 'evidence_bytes'"

_FINDING: Final = FINDING_COLUMNS.removeprefix("finding_id, ")
_PUT_PARTITION: Final = (
    f"INSERT OR REPLACE INTO partition ({PARTITION_COLUMNS})"
    f" SELECT {PARTITION_COLUMNS} FROM live.partition WHERE {_AMONG}"
)
_PUT_EVENTS: Final = (
    f"INSERT OR IGNORE INTO event ({EVENT_COLUMNS}, gseq, commit_lsn)"
    f" SELECT {EVENT_COLUMNS}, gseq, commit_lsn FROM live.event WHERE {_AMONG}"
)
_PUT_JOINS: Final = f"INSERT OR IGNORE INTO rejoin SELECT * FROM live.rejoin WHERE {_AMONG}"
_PUT_FINDINGS: Final = (
    f"INSERT INTO finding ({_FINDING}) SELECT {_FINDING} FROM live.finding AS new WHERE {_AMONG}"
    " AND NOT EXISTS (SELECT 1 FROM finding AS old WHERE old.execution_id = new.execution_id"
    " AND old.verdict = new.verdict AND old.kind IS new.kind AND old.found_at = new.found_at)"
)
_SET_ASIDE: Final = (_PUT_PARTITION, _PUT_EVENTS, _PUT_JOINS, _PUT_FINDINGS)


@dataclass(frozen=True, slots=True)
class Filled:
    """What a store says of itself: as which shard it was filled, None when nobody said.

    `moving`: it is on its way to another one, and holds some of what falls to either.
    """

    shard: Shard | None
    moving: bool = False

    def differs(self, shard: Shard) -> bool | None:
        """Whether it is another shard's; None: that cannot be told."""
        return None if self.moving or self.shard is None else self.shard != shard


async def filled(store: StoreReader) -> Filled:
    """See `Filled`."""
    found: dict[str, str] = dict(await store.query(_META, (SHARD, MOVING)))
    said = _SHARD.fullmatch(found.get(SHARD, ""))
    known = said is not None and int(said[1]) < int(said[2])
    return Filled(Shard(int(said[1]), int(said[2])) if said and known else None, MOVING in found)


async def filled_as(store: StoreReader) -> Shard | None:
    """The shard that the store was filled as; None: nobody said, or it is on its way to another one."""
    found = await filled(store)
    return None if found.moving else found.shard


class Handover:
    """Letting go of what falls to others, step by step; see the module.

    A store of this class is nobody else's while it lasts: nothing is fed or judged.
    """

    def __init__(self, store: ChainStore) -> None:
        self._store = store
        self._path = store.path

    async def needed(self, shard: Shard) -> bool:
        """Whether the store may hold anything as another shard; an empty one is marked at once.

        Raises:
            StoreError: it cannot be read or marked, or belongs to another shard for good.
        """
        if await filled_as(self._store) == shard:
            return False
        found: dict[str, str] = dict(await self._store.query(_META, (SHARD, MOVING)))
        empty = await self._store.query(_HOLDS) == [(0,)]
        # A store from before stores knew their shard, opened as the only one: nothing falls to others.
        if empty or (not found and shard.count == 1):
            await self.finish(shard)
            return False
        if self._path is None:
            raise StoreError(
                f"the store holds another part of the executions than shard {shard}",
                hint="a store in PostgreSQL is not handed over: name a new schema, the log fills it",
            )
        return True

    async def begin(self, shard: Shard) -> None:
        """Drop every horizon and note that the store is on its way to `shard`."""

        async def work(unit: StoreUnit) -> None:
            for statement in _BEGIN:
                await unit.rows(statement)
            await unit.rows(_PUT_META, (MOVING, f"to {shard}"))

        await self._store.transact(work)

    async def known(self, low: int, limit: int = PAGE) -> list[int]:
        """The first executions from `low` on of which anything stands in the store, ascending."""
        return [row[0] for row in await self._store.query(_KNOWN, (low, limit))]

    async def rows(self, execution_ids: Collection[int]) -> dict[int, int]:
        """Event rows by execution, of those that have some."""
        return dict(await self._store.query(_ROWS, (json.dumps(list(execution_ids)),)))

    async def remarked(self, execution_ids: Collection[int]) -> set[int]:
        """Those of which something is known that no log says: findings, joins."""
        return {row[0] for row in await self._store.query(_REMARKED, (json.dumps(list(execution_ids)),))}

    async def set_aside(self, execution_ids: Collection[int]) -> None:
        """Copy them, as they stand; durable when this returns."""
        if execution_ids and self._path is not None:
            copy = partial(_copied, self._path, aside(self._path), list(execution_ids))
            await finished(asyncio.create_task(asyncio.to_thread(copy)))

    async def let_go(self, execution_ids: Collection[int]) -> None:
        """Delete them, all or none; stores that follow this one let go of them, too."""

        async def work(unit: StoreUnit) -> None:
            ids = json.dumps(list(execution_ids))
            for statement in _LET_GO:
                await unit.rows(statement, (ids,))
            await unit.rows(_FORGET_SIZE)
            for execution_id in execution_ids:
                await departure.note(unit, execution_id, rebuilt=False, now=unit.now())

        if execution_ids:
            await self._store.transact(work)

    async def finish(self, shard: Shard) -> None:
        """From here on the store is that shard's."""

        async def work(unit: StoreUnit) -> None:
            await unit.rows(_PUT_META, (SHARD, str(shard)))
            await unit.rows("DELETE FROM meta WHERE key = ?", (MOVING,))

        await self._store.transact(work)


def aside(path: Path) -> Path:
    """Where a store at `path` sets partitions aside."""
    return path.with_name(f"{path.name}.aside")


def _copied(source: Path, target: Path, execution_ids: list[int]) -> None:
    if gate(target) is Marker.ABSENT:
        initialise(target)
    ids = json.dumps(execution_ids)
    with (
        sqlite_errors(),
        closing(sqlite3.connect(uri(target, "rw"), uri=True, isolation_level=None)) as copy,
    ):
        copy.execute("PRAGMA synchronous = FULL")
        copy.execute("ATTACH ? AS live", (uri(source, "ro"),))
        copy.execute("BEGIN IMMEDIATE")
        for statement in _SET_ASIDE:
            copy.execute(statement, (ids,))
        copy.execute("COMMIT")
