"""The store cannot take rows for a while: the line says so, waits, and goes on by itself.

Nothing is opened again: the same connection is full or locked out, and then it is not.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from sidecar.store import ChainStore
from sidecar.telemetry.health import NotReady
from tests.support.databases import Database
from tests.support.rows import chain_rows
from tests.support.running import intact
from tests.support.service import Service, service
from tests.support.waiting import until

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
"""
ROWS = 50
EXECUTIONS = range(2, 12)


async def pragma(running: Service, text: str) -> int:
    ((value,),) = await running.store._writer.rows(f"PRAGMA {text}")
    return int(value)


async def paused(running: Service) -> bool:
    return running.value("store_paused") == 1 and NotReady.PAUSED in running.health.reasons()


async def stored_whole(running: Service) -> None:
    """Everything came, the line is well again, and what is served is what the log holds."""
    for e in EXECUTIONS:
        await running.stored(e, ROWS)
    await running.caught_up()
    assert running.value("store_paused") == 0
    for e in EXECUTIONS:
        events = (await running.read(e)).events
        assert events is None or [event.event_id for event in events] == ids(e)
        assert [event.event_id for event in await running.store.chain(e)] == ids(e)


def ids(e: int) -> list[int]:
    return list(range(e * 1000, e * 1000 + ROWS))


async def insert_all(pg: Database) -> None:
    for e in EXECUTIONS:
        await pg.insert(chain_rows(e, range(e * 1000, e * 1000 + ROWS), error="x" * 2000))


async def test_a_database_that_may_not_grow_pauses_and_goes_on(pg: Database, tmp_path: Path) -> None:
    await pg.insert(chain_rows(1, range(1, 11)))
    async with service(pg.dsn, tmp_path / "chain.db") as running:
        await running.stored(1, 10)
        await running.caught_up()
        assert running.value("store_paused") == 0
        await pragma(running, f"max_page_count = {await pragma(running, 'page_count')}")
        await insert_all(pg)
        await until(lambda: paused(running))
        assert len(await running.store.chain(1)) == 10  # reading goes on
        await pragma(running, "max_page_count = 1000000")
        await stored_whole(running)
    assert intact(tmp_path / "chain.db")


async def test_a_store_that_reached_its_bound_pauses_and_a_larger_bound_lets_it_go_on(
    pg: Database, tmp_path: Path
) -> None:
    await pg.insert(chain_rows(1, range(1, 11)))
    async with ChainStore.open(str(tmp_path / "chain.db")) as empty:
        size = (await empty.query("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"))[
            0
        ][0]
    bound = size + 64 * 1024
    async with service(pg.dsn, tmp_path / "chain.db", store_max_bytes=bound) as running:
        await running.stored(1, 10)
        await running.caught_up()
        await insert_all(pg)
        await until(lambda: paused(running))
        assert (tmp_path / "chain.db").stat().st_size <= bound
    assert intact(tmp_path / "chain.db")
    async with service(pg.dsn, tmp_path / "chain.db", store_max_bytes=2**30) as running:
        await stored_whole(running)
        assert running.value("store_paused") == 0


async def test_a_store_that_somebody_else_holds_pauses_and_goes_on(pg: Database, tmp_path: Path) -> None:
    await pg.insert(chain_rows(1, range(1, 11)))
    async with service(pg.dsn, tmp_path / "chain.db") as running:
        await running.stored(1, 10)
        await running.caught_up()
        await pragma(running, "busy_timeout = 50")
        holder = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLDER, str(tmp_path / "chain.db"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert holder.stdout is not None
            await until(lambda: said(holder.stdout))
            await insert_all(pg)
            await until(lambda: paused(running))
            assert len(await running.store.chain(EXECUTIONS[0])) == 0
        finally:
            await holder.communicate(b"\n")
        await stored_whole(running)
    assert intact(tmp_path / "chain.db")


async def said(stream: asyncio.StreamReader | None) -> bool:
    assert stream is not None
    return await stream.readline() == b"held\n"
