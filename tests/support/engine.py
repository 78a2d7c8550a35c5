"""An engine that writes chains and goes on after a crash of the server from the tips it finds."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import count
from typing import Any

import asyncpg
import pytest

from tests.support.databases import Database
from tests.support.rows import event_row, insert_rows

LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
RESET = "SELECT stats_reset::text FROM pg_stat_bgwriter"
UNFLUSHED = "SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()"
Key = tuple[int, int]


class Engine:
    """Writes chains with single-row transactions; after a crash it reads every tip again."""

    def __init__(self, pg: Database) -> None:
        self._pg = pg
        self._ids = count(1)
        self._tips: dict[int, int] = {}
        self.written: set[Key] = set()
        self.xmins: dict[Key, int] = {}

    async def connected(self) -> Any:
        """A connection, also to a server that still recovers."""
        while True:
            try:
                return await self._pg.connect()
            except LOST:
                await asyncio.sleep(0.01)

    async def resume(self, executions: range) -> None:
        """Go on from the tips that the log shows."""
        conn = await self.connected()
        self._tips = {
            row[0]: row[1]
            for row in await conn.fetch(
                "SELECT execution_id, event_id FROM noetl.event e WHERE NOT EXISTS (SELECT FROM noetl.event n"
                " WHERE n.execution_id = e.execution_id AND n.prev_event_id = e.event_id)"
            )
            if row[0] in executions
        }
        await conn.close()

    async def write(self, executions: range, rows: int) -> None:
        conn = await self.connected()
        for _ in range(rows):
            await self._extend(conn, executions)
        await conn.close()

    async def _extend(self, conn: Any, executions: range) -> None:
        for execution in executions:
            event_id = next(self._ids)
            await insert_rows(conn, [event_row(execution, event_id, prev=self._tips.get(execution))])
            self._tips[execution] = event_id
            self.written.add((execution, event_id))

    async def log(self) -> dict[Key, int]:
        """Every row of the table with its xmin."""
        conn = await self.connected()
        rows = await conn.fetch("SELECT execution_id, event_id, xmin::text::bigint FROM noetl.event")
        await conn.close()
        found = {(row[0], row[1]): row[2] for row in rows}
        self.xmins |= found
        return found

    async def write_until_lost(self, executions: range) -> None:
        """Write single-row transactions over one connection until the server goes away."""
        conn = await self.connected()
        try:
            while True:
                await self._extend(conn, executions)
        except LOST:
            return

    async def unflushed(self) -> int:
        """Bytes of WAL that are not on the disk: commits that an end would take along."""
        conn = await self.connected()
        size = int(await conn.fetchval(UNFLUSHED))
        await conn.close()
        return size

    async def kill_a_backend(self) -> None:
        conn = await self.connected()
        before = await conn.fetchval(RESET)
        os.kill(await conn.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
        with pytest.raises(LOST):
            await conn.execute("SELECT pg_sleep(60)")
        while True:  # until it has recovered the postmaster may let us in and throw us out again
            try:
                if await (await self.connected()).fetchval(RESET) != before:
                    return
            except LOST:
                await asyncio.sleep(0.01)
