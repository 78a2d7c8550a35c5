"""A real `noetl-chain run` in a process of its own, made to be killed; watched through its store."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Self

LOOK_S: Final = 0.02
SETTINGS: Final = {
    "POPULATE": "on",
    "COMPARE": "on",
    "POLL_MS": "20",
    "LATE_POLL_S": "0.5",
    "SWEEP_ROUND_S": "1",
    "TICK_S": "0.1",
    "SETTLE_S": "0.5",
    "DANGLING_S": "60",
    "METRICS_BIND": "127.0.0.1:0",
    "API_BIND": "127.0.0.1:0",
    "LOG_FORMAT": "json",
}


class Killable:
    """A running sidecar."""

    def __init__(self, process: asyncio.subprocess.Process, store: Path) -> None:
        self._process = process
        self.store = store

    @classmethod
    async def start(cls, dsn: str, store: Path, **settings: str) -> Self:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NOETL", "PG"))}
        ours = SETTINGS | {"DSN": dsn, "STORE": str(store)} | settings
        with (store.parent / "sidecar.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "sidecar",
                "run",
                env=kept | {f"NOETL_CHAIN_{name}": value for name, value in ours.items()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return cls(process, store)

    async def kill(self) -> None:
        """SIGKILL; it must have been running until now."""
        assert self._process.returncode is None, "it had ended by itself"
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> int:
        """SIGTERM; its exit code."""
        if self._process.returncode is None:
            self._process.terminate()
        async with asyncio.timeout(15):
            return await self._process.wait()

    async def until(self, holds: Callable[[sqlite3.Connection], bool], *, patience_s: float = 30.0) -> None:
        """Wait until the store shows a state; another process gives no event to wait for."""
        async with asyncio.timeout(patience_s):
            while True:
                assert self._process.returncode is None, "the sidecar ended by itself"
                if await asyncio.to_thread(self._holds, holds):
                    return
                await asyncio.sleep(LOOK_S)

    def _holds(self, holds: Callable[[sqlite3.Connection], bool]) -> bool:
        try:
            with closing(sqlite3.connect(f"{self.store.as_uri()}?mode=ro", uri=True, timeout=10.0)) as conn:
                conn.execute("BEGIN")
                return holds(conn)
        except sqlite3.OperationalError as error:
            # Before the first start has made it, there is no file, or no table in it.
            if "unable to open" in str(error) or "no such table" in str(error):
                return False
            raise

    async def polled(self, *, lane: str = "live") -> None:
        """Wait until two polls begun after this call are stored."""
        seen: set[int] = set()

        def holds(conn: sqlite3.Connection) -> bool:
            seen.update(
                row[0] for row in rows(conn, "SELECT polled_at FROM tail_cursor WHERE lane = ?", lane)
            )
            return len(seen) > 3

        await self.until(holds)


def rows(conn: sqlite3.Connection, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    return conn.execute(sql, parameters).fetchall()
