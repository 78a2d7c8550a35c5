"""Through a transaction pooler: no prepared statements, no session state, no `options`."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.tailing import MemoryStore, Ticks, following, opened

PGBOUNCER = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")

pytestmark = [
    pytest.mark.pgbouncer,
    pytest.mark.skipif(PGBOUNCER is None, reason="no pgbouncer binary: apt-get install pgbouncer"),
]

CONFIG = """
[databases]
* = host={host} port={port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = 50
ignore_startup_parameters = extra_float_digits,options
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def _pooled(pg: Database, folder: Path) -> AsyncIterator[str]:
    query = parse_qs(urlsplit(pg.dsn).query)
    if "host" not in query:
        pytest.skip("the given server is not reached by a Unix socket")
    listen = _free_port()
    process = _started(folder, CONFIG.format(host=query["host"][0], port=query["port"][0], listen=listen))
    dsn = f"postgresql://postgres@127.0.0.1:{listen}/{pg.name}"
    try:
        await _answers(dsn, process)
        yield dsn
    finally:
        process.kill()
        process.wait()


def _started(folder: Path, config: str) -> subprocess.Popen[bytes]:
    """pgbouncer refuses root; its user reads the file through a descriptor of ours."""
    file = folder / "pgbouncer.ini"
    file.write_text(config)
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(file, nobody.pw_uid, nobody.pw_gid)
        as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    with file.open("rb") as opened_file:
        number = opened_file.fileno()
        return subprocess.Popen(
            [str(PGBOUNCER), "-q", f"/dev/fd/{number}"],
            pass_fds=(number,),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **as_user,
        )


async def _answers(dsn: str, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(10):
        while True:
            assert process.poll() is None, "pgbouncer ended"
            try:
                conn = await asyncpg.connect(dsn, statement_cache_size=0)
            except (OSError, asyncpg.PostgresError):
                await asyncio.sleep(0.02)
            else:
                await conn.close()
                return


async def test_lanes_and_reads_work_through_a_transaction_pooler(pg: Database, tmp_path: Path) -> None:
    """Three server connections serve more clients than that, so sessions are shared for certain."""
    await pg.insert(chain_rows(500, range(1, 11)) + chain_rows(10**12, [1, 2], created_at="2025-01-01"))
    store = MemoryStore()
    async with _pooled(pg, tmp_path) as dsn, opened(dsn) as source:
        live, late, sweep = source.lanes(store, Ticks())
        async with following(live, store) as follower, following(late, store), following(sweep, store):
            await follower.until(lambda: live.state.caught_up and sweep.state.caught_up)
            await pg.insert([event_row(500, 11, prev=10)])
            await follower.until(lambda: (500, 11) in store.bodies)
            readers = [source.reader(Ticks()) for _ in range(4)]
            logs = await asyncio.gather(*(reader.read([500, 10**12]) for reader in readers))
        (backends,) = await pg.fetch(
            "SELECT count(*) AS n FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'noetl-chain'"
        )
        assert backends["n"] <= 3
    assert len(store.bodies) == 13
    for read in logs:
        assert [len(log.events or ()) for log in read] == [11, 2]
        assert {e.body for log in read for e in log.events or ()} == set(store.bodies.values())
