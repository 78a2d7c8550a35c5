"""A pgbouncer in transaction mode in front of a test's server."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest

UNPRIVILEGED = "nobody"
READY_S = 10.0


def binary() -> str:
    """pgbouncer's program, or the test is skipped."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip("no pgbouncer on this machine")
    return found


@asynccontextmanager
async def pooler(dsn: str, *, backends: int) -> AsyncIterator[str]:
    """The way into the database of `dsn` through at most `backends` server connections."""
    program = binary()
    # Not the test's own folder: that one is closed to the user a root must become.
    with tempfile.TemporaryDirectory() as name:
        process = await asyncio.to_thread(_start, program, Path(name), dsn, backends)
        try:
            await _ready(process, Path(name))
            yield f"postgresql:///{urlsplit(dsn).path.lstrip('/')}?host={quote(name)}&port=6432&user=any"
        finally:
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait, 10)


def _start(program: str, folder: Path, dsn: str, backends: int) -> subprocess.Popen[bytes]:
    folder.chmod(0o777)
    config = folder / "pgbouncer.ini"
    config.write_text(_config(dsn, folder, backends))
    user = ["-u", UNPRIVILEGED] if os.geteuid() == 0 else []
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([program, *user, str(config)], stdout=log, stderr=log)


def _config(dsn: str, folder: Path, backends: int) -> str:
    parts = urlsplit(dsn)
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    server = {
        "host": query.get("host") or parts.hostname or "localhost",
        "port": query.get("port") or str(parts.port or 5432),
        "user": query.get("user") or parts.username or "postgres",
    }
    if parts.password:
        server["password"] = parts.password
    return "\n".join(
        [
            "[databases]",
            "* = " + " ".join(f"{key}={value}" for key, value in server.items()),
            "[pgbouncer]",
            "listen_addr =",
            "listen_port = 6432",
            f"unix_socket_dir = {folder}",
            "auth_type = any",
            "pool_mode = transaction",
            f"default_pool_size = {backends}",
            "",
        ]
    )


async def _ready(process: subprocess.Popen[bytes], folder: Path) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            try:
                _, writer = await asyncio.open_unix_connection(folder / ".s.PGSQL.6432")
            except OSError:
                if process.poll() is not None:
                    pytest.fail("pgbouncer ended: " + await asyncio.to_thread((folder / "log").read_text))
                await asyncio.sleep(0.02)  # it tells nobody when it listens
            else:
                writer.close()
                return
