"""`noetl-chain run` as a process of its own: its log line by line, its listener, its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

from tests.support.processes import catches
from tests.support.waiting import until

PATIENCE_S: Final = 30.0

FAST: Final = {
    "NOETL_CHAIN_POPULATE": "on",
    "NOETL_CHAIN_COMPARE": "on",
    "NOETL_CHAIN_METRICS_BIND": "127.0.0.1:0",
    "NOETL_CHAIN_API_BIND": "127.0.0.1:0",
    "NOETL_CHAIN_LOG_FORMAT": "json",
    "NOETL_CHAIN_POLL_MS": "20",
    "NOETL_CHAIN_LATE_POLL_S": "1",
    "NOETL_CHAIN_SWEEP_ROUND_S": "1",
    "NOETL_CHAIN_TICK_S": "0.2",
    "NOETL_CHAIN_SETTLE_S": "0.3",
}


class Running:
    """One sidecar process; made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process, store: Path | str) -> None:
        self.store = Path(store)
        self.lines: list[dict[str, Any]] = []
        self._process = process
        self._moved = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    @staticmethod
    @asynccontextmanager
    async def start(dsn: str, store: Path | str, **variables: str) -> AsyncIterator[Running]:
        """Start it; it is killed at the end of the block if it still runs."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("NOETL_CHAIN_", "POSTGRES_"))}
        given = FAST | {"NOETL_CHAIN_DSN": dsn, "NOETL_CHAIN_STORE": str(store)} | variables
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sidecar", "run", env=clean | given, stderr=asyncio.subprocess.PIPE
        )
        running = Running(process, store)
        try:
            yield running
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await running._reading

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            text = line.decode()
            self.lines.append(json.loads(text) if text.startswith("{") else {"event": "text", "text": text})
            async with self._moved:
                self._moved.notify_all()
        async with self._moved:
            self._moved.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def says(self, event: str, *, times: int = 1) -> dict[str, Any]:
        """Wait for a log line with this event name; the line."""
        async with asyncio.timeout(PATIENCE_S), self._moved:
            while True:
                found = [line for line in self.lines if line.get("event") == event]
                if len(found) >= times:
                    return found[times - 1]
                assert self._process.returncode is None, self.lines
                await self._moved.wait()

    async def get(self, path: str) -> str:
        """The body of a route, whatever its status."""
        port = (await self.says("listening"))["port"]
        return await asyncio.to_thread(_get, f"http://127.0.0.1:{port}{path}")

    async def api(self) -> str:
        """The address of the API listener."""
        port = (await self.says("listening", times=2))["port"]
        return f"http://127.0.0.1:{port}"

    async def ended(self) -> int:
        """Wait until it ends by itself and everything it wrote is in `lines`; the exit code."""
        async with asyncio.timeout(PATIENCE_S):
            await self.silent()
            return await self._process.wait()

    async def until(self, path: str, holds: Callable[[str], bool], *, patience_s: float = PATIENCE_S) -> str:
        """Ask a route until its body is as wanted."""
        body = ""

        async def held() -> bool:
            nonlocal body
            body = await self.get(path)
            return holds(body)

        await until(held, within_s=patience_s, every_s=0.05, showing=lambda: body)
        return body

    async def stores(self, rows: int, *, patience_s: float = PATIENCE_S) -> None:
        """Wait until so many event rows are in the store."""

        def held() -> bool:
            assert self._process.returncode is None, self.lines
            return stored_rows(self.store) >= rows

        await until(held, within_s=patience_s, showing=lambda: f"{stored_rows(self.store)} of {rows} rows")

    async def listens_to_signals(self) -> None:
        """Wait until the program has its handlers: before that the interpreter starts."""
        await until(lambda: catches(self.pid, signal.SIGTERM), within_s=PATIENCE_S, every_s=0.001)

    async def silent(self) -> None:
        """Wait until everything it wrote is in `lines`."""
        await asyncio.wait({self._reading})

    def send(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    async def stopped(self, signum: signal.Signals = signal.SIGTERM, *, within_s: float = 10.0) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.send(signum)
        async with asyncio.timeout(within_s):
            return await self._process.wait()


async def fetched(url: str) -> tuple[int, str]:
    """Status and body of one GET."""
    return await asyncio.to_thread(_fetch, url)


def _get(url: str) -> str:
    return _fetch(url)[1]


def _fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            body: bytes = answer.read()
            status = answer.status
    except urllib.error.HTTPError as refused:
        with refused:
            body = refused.read()
            status = refused.code
    return status, body.decode()


def stored_rows(store: Path) -> int:
    """Event rows in a store file that may not be there yet."""
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=5)) as connection:
            found: int = connection.execute("SELECT count(*) FROM event").fetchone()[0]
    except sqlite3.OperationalError:
        return 0
    return found


def intact(store: Path) -> bool:
    """Whether SQLite finds nothing wrong with the file."""
    with closing(sqlite3.connect(store, timeout=5)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
