"""`run` ends within two seconds of SIGTERM or SIGINT, whatever it is doing, and can start again.

The seconds are those of the timer that cuts off what has not ended; here, on a machine that others
load, it is seen that the timer is set, and that nothing else ends the program late or never.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from sidecar import app
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.processes import standing_still
from tests.support.rows import chain_rows
from tests.support.running import Running, intact, stored_rows

WITHIN_S: Final = 30.0
"""However slow the machine is; what holds the program up in these tests does so for longer."""
LONGER: Final = {"NOETL_CHAIN_QUERY_TIMEOUT_S": "300"}
STEP: Final = 4_194_304
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


async def _ends(sidecar: Running, signum: signal.Signals) -> None:
    """Stopped in time, with 0, the store whole, and nothing on stderr that is no log line."""
    assert await sidecar.stopped(signum, within_s=WITHIN_S) == 0, sidecar.lines
    await sidecar.silent()
    assert [line for line in sidecar.lines if line["event"] == "text"] == []
    assert not sidecar.store.exists() or intact(sidecar.store)


async def _fill(pg: Database, executions: int, events: int = 50) -> int:
    """Executions of 1 kB events; how many rows."""
    await pg.execute(
        "INSERT INTO noetl.event (execution_id, catalog_id, event_id, prev_event_id, created_at, event_type,"
        f" context) SELECT e * {STEP}, 1, e * {STEP} + n, CASE WHEN n > 1 THEN e * {STEP} + n - 1 END,"
        " now() at time zone 'UTC', 'step.exit', jsonb_build_object('pad', repeat('x', 900))"
        f" FROM generate_series(1, {executions}::bigint) e, generate_series(1, {events}) n"
    )
    return executions * events


@pytest.mark.parametrize(
    ("signum", "after_s"),
    [(signal.SIGTERM, 0.0), (signal.SIGTERM, 0.05), (signal.SIGTERM, 0.5), (signal.SIGINT, 0.05)],
)
async def test_stop_while_it_starts(
    pg: Database, tmp_path: Path, signum: signal.Signals, after_s: float
) -> None:
    async with Running.start(pg.dsn, tmp_path / "chain.db") as sidecar:
        await sidecar.listens_to_signals()
        await asyncio.sleep(after_s)
        await _ends(sidecar, signum)


@pytest.mark.torture
async def test_stop_during_the_catch_up_and_start_again(pg: Database, tmp_path: Path) -> None:
    rows = await _fill(pg, 300)
    store = tmp_path / "chain.db"
    async with Running.start(pg.dsn, store) as sidecar:
        await sidecar.stores(1)
        await _ends(sidecar, signal.SIGTERM)
    assert 0 < stored_rows(store) < rows
    async with Running.start(pg.dsn, store) as sidecar:
        await sidecar.stores(rows)
        await sidecar.until("/readyz", lambda text: text == "ready\n")
        await _ends(sidecar, signal.SIGTERM)


@asynccontextmanager
async def _load(pg: Database) -> AsyncIterator[list[int]]:
    """Single-row transactions as fast as they go; the number of rows committed so far."""
    committed = [0]

    async def write(lane: int) -> None:
        conn = await pg.connect()
        for number in range(1_000_000):
            execution_id, place = (lane + 1) * 10**9 + (number // 40) * 1000, number % 40
            prev = execution_id + place - 1 if place else None
            await conn.execute(
                "INSERT INTO noetl.event (execution_id, catalog_id, event_id, prev_event_id, event_type)"
                " VALUES ($1, 1, $2, $3, 'step.exit')",
                execution_id,
                execution_id + place,
                prev,
            )
            committed[0] += 1

    writers = [asyncio.create_task(write(lane)) for lane in range(2)]
    try:
        yield committed
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


@pytest.mark.torture
async def test_stop_under_load_and_nothing_is_lost(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    async with _load(pg) as committed, Running.start(pg.dsn, store) as sidecar:
        await sidecar.stores(200)
        await _ends(sidecar, signal.SIGINT)
    async with Running.start(pg.dsn, store) as sidecar:
        # A write that was cut off may have committed unseen.
        (rows,) = (await pg.fetch("SELECT count(*) FROM noetl.event"))[0]
        assert rows >= committed[0]
        await sidecar.stores(rows)


async def test_stop_while_postgres_does_not_answer(pg_server: StartServer, tmp_path: Path) -> None:
    server = await pg_server()
    await Database(server.dsn(), "postgres").insert(chain_rows(1, [1, 2, 3]))
    async with Running.start(server.dsn(), tmp_path / "chain.db", **LONGER) as sidecar:
        await sidecar.until("/readyz", lambda text: text == "ready\n")
        assert server.pid is not None
        with standing_still(server.pid):
            await asyncio.sleep(0.5)  # every lane now waits for an answer
            await _ends(sidecar, signal.SIGTERM)
    assert stored_rows(tmp_path / "chain.db") == 3


async def test_stop_while_a_client_of_the_listener_dawdles(pg: Database, tmp_path: Path) -> None:
    async with Running.start(pg.dsn, tmp_path / "chain.db") as sidecar:
        port = (await sidecar.says("listening"))["port"]
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n")  # and never the end
            with socket.create_connection(("127.0.0.1", port)) as reader:
                reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 200)  # and never reads
                await sidecar.get("/livez")
                await _ends(sidecar, signal.SIGTERM)


DEAF = """
import asyncio, sys
sys.argv = ["noetl-chain", "run", "--dsn", "postgresql://h/d"]
from sidecar import app

async def deaf(settings):
    print("deaf", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

app._serve = deaf
from sidecar.__main__ import main
main()
"""


def test_stop_does_not_wait_for_what_never_ends() -> None:
    assert app.STOP_GRACE_S < 2, "two seconds are promised"
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"deaf\n"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0
        assert time.monotonic() - began >= app.STOP_GRACE_S, "what would have ended was waited for"


@pytest.mark.torture
async def test_stop_at_any_moment(pg: Database, tmp_path: Path) -> None:
    seed = int(os.environ.get("NOETL_CHAIN_TEST_SEED", str(time.time_ns() % 10**6)))
    print(f"NOETL_CHAIN_TEST_SEED={seed}")  # noqa: T201 - shown when it fails
    pick = random.Random(seed)
    rows = await _fill(pg, 400)
    store = tmp_path / "chain.db"
    async with _load(pg):
        for _ in range(30):
            async with Running.start(pg.dsn, store) as sidecar:
                signum = pick.choice(SIGNALS)
                await sidecar.listens_to_signals()
                await asyncio.sleep(pick.random() * 3)
                await _ends(sidecar, signum)
    async with Running.start(pg.dsn, store) as sidecar:
        (rows,) = (await pg.fetch("SELECT count(*) FROM noetl.event"))[0]
        await sidecar.stores(rows, patience_s=120)
        await _ends(sidecar, signal.SIGTERM)
