"""The sums of stored chains on PostgreSQL, recomputed from their rows; see `store.sums`.

Rows come through a cursor, a piece at a time from one snapshot, and are hashed in another thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from sidecar.core.authority import NO_JOINS
from sidecar.core.event import Event
from sidecar.core.rejoin import predecessors
from sidecar.core.sums import StoredRow, StoredSums, stored_sums
from sidecar.store import joins
from sidecar.store.connection import Row
from sidecar.store.postgres.connection import PostgresConnection
from sidecar.store.reads import EXECUTIONS
from sidecar.store.wording import worded

PIECE: Final = 500

_ROWS: Final = (
    "SELECT exec_seq, execution_id, event_id, prev_event_id, parent_execution_id,"
    " convert_to(event_type, 'UTF8'), convert_to(body, 'UTF8') FROM event"
)
_BETWEEN: Final = f"{_ROWS} WHERE execution_id BETWEEN $1 AND $2 ORDER BY execution_id, exec_seq"
_AMONG: Final = f"{_ROWS} WHERE execution_id = ANY($1::bigint[]) ORDER BY execution_id, exec_seq"
_STARTS: Final = worded(
    "postgres: starts",
    postgres="SELECT execution_id, event_id, prev_event_id, parent_execution_id, event_type, body FROM event"
    " WHERE exec_seq = 1 AND execution_id = ANY($1::bigint[])",
)
_COUNTED: Final = worded(
    "postgres: counted",
    postgres="SELECT execution_id, count(*) FROM event WHERE execution_id = ANY($1::bigint[])"
    " GROUP BY execution_id",
)


class PostgresSums:
    """`core.ports.StoredSummer`; the connection is used by nobody else."""

    def __init__(self, connection: PostgresConnection, *, rejoining: bool = False) -> None:
        self._connection = connection
        self._rejoining = rejoining

    async def counts(self, low: int, high: int, limit: int) -> list[tuple[int, int]]:
        """(execution_id, event rows) of the first `limit` executions of a range, ascending.

        An execution of which only a record is left has no rows.
        """
        connection = self._connection

        async def work() -> list[tuple[int, int]]:
            ids = [row[0] for row in await connection.rows(EXECUTIONS, (low, high, limit))]
            counted = dict[int, int](await connection.among(_COUNTED, ids))
            return [(execution_id, counted.get(execution_id, 0)) for execution_id in ids]

        return await connection.hold(work)

    async def between(self, low: int, high: int) -> dict[int, StoredSums]:
        """The sums of every execution with rows and low <= execution_id <= high."""
        return await self._summed(_BETWEEN, joins.BETWEEN, (low, high))

    async def of(self, execution_ids: Collection[int]) -> dict[int, StoredSums]:
        """The same for those of some executions that have rows."""
        return await self._summed(_AMONG, joins.AMONG, (list(execution_ids),))

    async def starts(self, execution_ids: Collection[int]) -> dict[int, Event]:
        """The event at the first place of those that have one."""
        connection = self._connection
        found: list[Row] = await connection.hold(lambda: connection.among(_STARTS, execution_ids))
        return {row[0]: Event(*row) for row in found}

    async def _summed(self, text: str, kept: str, arguments: Sequence[Any]) -> dict[int, StoredSums]:
        async def work() -> dict[int, StoredSums]:
            found = joins.grouped(await self._connection.rows(kept, arguments)) if self._rejoining else {}
            joined = {execution_id: predecessors(each) for execution_id, each in found.items()}
            return await self._hashed(text, arguments, joined)

        return await self._connection.hold(work)

    async def _hashed(
        self, text: str, arguments: Sequence[Any], joined: Mapping[int, Mapping[int, int]]
    ) -> dict[int, StoredSums]:
        found: dict[int, StoredSums] = {}
        whole: list[StoredRow] = []
        async for piece in self._connection.pieces(text, arguments, PIECE):
            whole += piece
            # The last execution of a piece may go on in the next one.
            done = [row for row in whole if row[1] != whole[-1][1]]
            whole = whole[len(done) :]
            found.update(await asyncio.to_thread(_sums, done, joined))
        found.update(await asyncio.to_thread(_sums, whole, joined))
        return found


def _sums(rows: Sequence[StoredRow], joined: Mapping[int, Mapping[int, int]]) -> dict[int, StoredSums]:
    return {
        execution_id: stored_sums(group, joined.get(execution_id, NO_JOINS))
        for execution_id, group in groupby(rows, key=itemgetter(1))
    }
