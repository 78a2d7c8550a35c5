"""Live: how long after its commit an event can be read from the store, and what that costs.

The sidecar runs as a process of its own.  A writer commits single events at a steady rate into
many running executions; an observer looks at the store file whenever it changed.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import asyncpg
import psutil

from benchmarks.data import BASE_ID
from benchmarks.result import Result, quantile

EXECUTIONS: Final = 25
ID_STEP: Final = 4_194_304
LIVE_BASE: Final = BASE_ID + ID_STEP * 1_000_000
LOOK_S: Final = 0.002
PATIENCE_S: Final = 30.0

_INSERT: Final = (
    "insert into noetl.event (execution_id, catalog_id, event_id, prev_event_id, created_at, event_type,"
    " node_name, status, context) values ($1, 1, $2, $3, now() at time zone 'UTC', 'step.exit', 'live',"
    " 'COMPLETED', jsonb_build_object('pad', repeat('x', 300)))"
)


async def measure(dsn: str, *, seconds: float, rate: int) -> list[Result]:
    """Freshness p50 and p99 in milliseconds, and the sidecar's share of one CPU."""
    with TemporaryDirectory(prefix="noetl-chain-bench-") as folder:
        path = Path(folder) / "chain.db"
        with running(dsn, path) as process:
            seen: dict[int, float] = {}
            ended = threading.Event()
            observer = threading.Thread(target=_observe, args=(path, seen, ended))
            committed = await written(dsn, 1, rate, base=LIVE_BASE - ID_STEP * EXECUTIONS)  # warms up
            observer.start()
            busy, began = process.cpu_times(), time.perf_counter()
            committed = await written(dsn, seconds, rate, base=LIVE_BASE)
            took, after = time.perf_counter() - began, process.cpu_times()
            await _all_seen(seen, committed)
            ended.set()
            observer.join()
    lags = [(seen[event_id] - at) * 1000 for event_id, at in committed.items()]
    share = 100 * (after.user + after.system - busy.user - busy.system) / took
    done = len(committed) / took
    note = f"{done:,.0f} events/s for {took:.0f} s, poll every 150 ms, commit to readable in the store"
    return [
        Result("live freshness, p50", quantile(lags, 0.5), "ms", note=note),
        Result("live freshness, p99", quantile(lags, 0.99), "ms", note=f"longest {max(lags):.0f} ms"),
        Result("sidecar at that rate", share, "% of a CPU", note="user and system time of the process"),
    ]


@contextmanager
def running(dsn: str, store: Path, more: Mapping[str, str] | None = None) -> Iterator[psutil.Process]:
    """The sidecar as a process of its own, following.

    Args:
        more: Further settings by their environment names.
    """
    environment = os.environ | {
        "NOETL_CHAIN_DSN": dsn,
        "NOETL_CHAIN_STORE": str(store),
        "NOETL_CHAIN_POPULATE": "on",
        "NOETL_CHAIN_COMPARE": "on",
        "NOETL_CHAIN_METRICS_BIND": "127.0.0.1:0",
        "NOETL_CHAIN_API_BIND": "127.0.0.1:0",
        "NOETL_CHAIN_LOG_LEVEL": "error",
        **(more or {}),
    }
    process = subprocess.Popen([sys.executable, "-m", "sidecar", "run"], env=environment)
    try:
        _await_cursor(store, process)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(10)


def _await_cursor(store: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the live lane follows."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        if store.exists() and _follows(store):
            return
        time.sleep(0.05)
    raise SystemExit("the sidecar does not follow")


def _follows(store: Path) -> bool:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        try:
            found = connection.execute(
                "SELECT count(*) FROM tail_cursor WHERE lane = 'live' AND horizon IS NOT NULL"
            ).fetchone()
        except sqlite3.OperationalError:
            return False  # the layout is not there yet
    return bool(found[0])


async def written(dsn: str, seconds: float, rate: int, *, base: int) -> dict[int, float]:
    """Write at the rate; the commit time of each event."""
    connections = [await asyncpg.connect(dsn) for _ in range(4)]
    committed: dict[int, float] = {}
    began = time.perf_counter()
    try:
        await asyncio.gather(
            *(
                _write(
                    connection,
                    committed,
                    began,
                    seconds,
                    rate / len(connections),
                    base,
                    lane,
                    len(connections),
                )
                for lane, connection in enumerate(connections)
            )
        )
    finally:
        for connection in connections:
            await connection.close()
    return committed


async def _write(
    connection: Any,
    committed: dict[int, float],
    began: float,
    seconds: float,
    rate: float,
    base: int,
    lane: int,
    lanes: int,
) -> None:
    mine = [base + ID_STEP * n for n in range(EXECUTIONS) if n % lanes == lane]
    heads: dict[int, int] = {}
    for number in range(int(seconds * rate)):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        execution_id = mine[number % len(mine)]
        before = heads.get(execution_id)
        event_id = execution_id if before is None else before + 1
        await connection.execute(_INSERT, execution_id, event_id, before)
        committed[event_id] = time.perf_counter()
        heads[execution_id] = event_id


def _observe(store: Path, seen: dict[int, float], ended: threading.Event) -> None:
    """Note when each event of the measured executions can first be read."""
    places = {LIVE_BASE + ID_STEP * n: 0 for n in range(EXECUTIONS)}
    version = None
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        while not ended.wait(LOOK_S):
            found = connection.execute("PRAGMA data_version").fetchone()
            if found == version:
                continue
            version, now = found, time.perf_counter()
            for execution_id, place in places.items():
                rows = connection.execute(
                    "SELECT event_id, exec_seq FROM event WHERE execution_id = ? AND exec_seq > ?",
                    (execution_id, place),
                ).fetchall()
                for event_id, exec_seq in rows:
                    seen[event_id] = now
                    places[execution_id] = exec_seq


async def _all_seen(seen: dict[int, float], committed: dict[int, float]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not committed.keys() <= seen.keys():
        if time.monotonic() > deadline:
            raise SystemExit(f"{len(committed.keys() - seen.keys())} events never arrived")
        await asyncio.sleep(0.05)
