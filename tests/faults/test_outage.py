"""Postgres goes away, or stops answering, or the store's disk is full, while `run` follows.

Each time it says so, loses nothing, and goes on by itself.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.processes import standing_still
from tests.support.rows import chain_rows
from tests.support.running import Running, intact, stored_rows

READY = "ready\n"


def _ready(text: str) -> bool:
    return text == READY


def _series(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, f"no series {name}"
    return float(found[1])


async def test_postgres_goes_away_and_comes_back(pg_server: StartServer, tmp_path: Path) -> None:
    server = await pg_server()
    database = Database(server.dsn(), "postgres")
    await database.insert(chain_rows(1, range(1, 11)))
    async with Running.start(server.dsn(), tmp_path / "chain.db") as sidecar:
        await sidecar.until("/readyz", _ready)
        server.kill()
        assert "source unavailable" in await sidecar.until("/readyz", lambda text: "source" in text)
        assert "alive" in await sidecar.get("/livez")
        server.restart()
        await database.insert(chain_rows(2, range(101, 121)))
        await sidecar.stores(30)
        await sidecar.until("/readyz", _ready)
        paused = [line for line in sidecar.lines if line["event"] == "loop_paused"]
        assert paused
        assert len(paused) <= 10  # told once a loop, not once a try
        assert await sidecar.stopped() == 0
    assert intact(tmp_path / "chain.db")


async def test_a_server_that_stands_still_meets_the_deadline(pg_server: StartServer, tmp_path: Path) -> None:
    server = await pg_server()
    database = Database(server.dsn(), "postgres")
    await database.insert(chain_rows(1, range(1, 11)))
    store = tmp_path / "chain.db"
    async with Running.start(server.dsn(), store, NOETL_CHAIN_QUERY_TIMEOUT_S="1") as sidecar:
        await sidecar.until("/readyz", _ready)
        assert server.pid is not None
        with standing_still(server.pid):
            await sidecar.until("/readyz", lambda text: "source unavailable" in text)
        reasons = {line["reason"] for line in sidecar.lines if line["event"] == "loop_paused"}
        assert "Postgres did not answer in time" in reasons
        await database.insert(chain_rows(2, range(101, 121)))
        await sidecar.stores(30)
        await sidecar.until("/readyz", _ready)
        assert await sidecar.stopped() == 0
    assert intact(store)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB with 9 MiB of ballast on it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    (folder / "ballast").write_bytes(b"\0" * 9 * 2**20)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_pauses_and_nothing_is_lost(pg: Database, small_disk: Path) -> None:
    store = small_disk / "chain.db"
    await pg.insert(chain_rows(1, range(1, 11)))
    async with Running.start(pg.dsn, store) as sidecar:
        await sidecar.until("/readyz", _ready)
        assert _series(await sidecar.get("/metrics"), "noetl_chain_store_paused") == 0
        for execution_id in range(2, 42):
            first = execution_id * 1000
            rows = chain_rows(execution_id, range(first, first + 50), error="x" * 2000)
            await pg.insert(rows)
        await sidecar.until("/readyz", lambda text: "store paused" in text)
        await asyncio.sleep(1)  # several tries later it still says so
        assert "store paused" in await sidecar.get("/readyz")
        assert "alive" in await sidecar.get("/livez")
        assert _series(await sidecar.get("/metrics"), "noetl_chain_store_paused") == 1
        before = stored_rows(store)
        assert 10 <= before < 2010
        (small_disk / "ballast").unlink()
        await sidecar.stores(2010)
        await sidecar.until("/readyz", _ready)
        assert _series(await sidecar.get("/metrics"), "noetl_chain_store_paused") == 0
        assert await sidecar.stopped() == 0
    assert intact(store)
