"""A backend is killed with synchronous_commit off: rows vanish, xids are used again."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import asyncpg
import pytest

from sidecar.errors import SourceUnavailable
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.tailing import Follower, MemoryStore, Ticks, log_keys, opened

E = 500
CONNECTION_LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


async def _insert(conn: Any, event_id: int) -> None:
    await conn.execute(
        "INSERT INTO noetl.event (execution_id, catalog_id, event_id, created_at, event_type)"
        f" VALUES ({E}, 1, {event_id}, now() AT TIME ZONE 'UTC', 'x')"
    )


async def _connected(pg: Database) -> Any:
    """A connection to a server that may still recover."""
    while True:
        try:
            return await pg.connect()
        except CONNECTION_LOST:
            await asyncio.sleep(0.01)


RESET = "SELECT stats_reset::text FROM pg_stat_bgwriter"


async def _crash(pg: Database) -> None:
    """Kill one backend; the postmaster ends the others and recovers by itself."""
    conn = await pg.connect()
    before = await conn.fetchval(RESET)
    os.kill(await conn.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
    with pytest.raises(CONNECTION_LOST):
        await conn.execute("SELECT pg_sleep(60)")
    while True:  # until then the postmaster may still let us in, and throw us out again
        try:
            if await (await _connected(pg)).fetchval(RESET) != before:
                return
        except CONNECTION_LOST:
            await asyncio.sleep(0.01)


async def _caught_up(source: Any, store: MemoryStore, goal: Any) -> None:
    """Run all three lanes, each anew when its connection breaks, until `goal` holds."""

    async def follow(lane: Any) -> None:
        while True:
            follower = Follower(lane, store)
            try:
                await follower.until(lambda: goal() and lane.state.caught_up)
            except SourceUnavailable:
                await asyncio.sleep(0.01)
                continue
            else:
                await follower.kill()
                return

    await asyncio.gather(*(follow(lane) for lane in source.lanes(store, Ticks())))


@pytest.mark.parametrize(
    "crashes", [2, pytest.param(12, marks=[pytest.mark.torture, pytest.mark.timeout(600)])]
)
async def test_rows_that_reuse_an_xid_after_a_crash_are_found_and_vanished_ones_named(
    pg_server: StartServer, crashes: int
) -> None:
    server = await pg_server(
        {"synchronous_commit": "off", "wal_writer_delay": "10s", "fsync": "off", "autovacuum": "off"}
    )
    pg = Database(server.dsn(), "postgres")
    store, vanished, epochs = MemoryStore(), set[tuple[int, int]](), set[str]()
    next_id = reused = 0
    async with opened(pg.dsn) as source:
        for _ in range(crashes):
            writer = await _connected(pg)
            await writer.execute("CHECKPOINT")
            for _ in range(5):
                next_id += 1
                await _insert(writer, next_id)
            want = await log_keys(writer)
            await _caught_up(source, store, lambda want=want: want <= set(store.bodies))
            epochs |= {cursor.epoch for cursor in store.lane_cursors.values()}
            await _crash(pg)
            writer = await _connected(pg)
            left = await log_keys(writer)
            lost = {key for key in store.bodies if key not in left} - vanished
            vanished |= lost
            for _ in range(5):
                next_id += 1
                await _insert(writer, next_id)
            want = await log_keys(writer)
            xmins = {row[0] for row in await writer.fetch("SELECT xmin::text::bigint FROM noetl.event")}
            reused += len(xmins & {store.first_rows[key].xmin for key in lost})
            store.gone.clear()
            await _caught_up(source, store, lambda want=want: want <= set(store.bodies))
            assert want <= set(store.bodies)
            if vanished:
                assert E in store.gone
        await pg.close()
    assert len(epochs) == crashes
    assert reused, "no xid was used again: the test proves nothing"
