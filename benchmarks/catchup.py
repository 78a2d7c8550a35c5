"""Catch-up: `backfill` into an empty store beside the limit, turn by turn on the same data."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import limit
from benchmarks.data import Table
from benchmarks.result import Result, median, versus
from sidecar.commands.backfill import backfilled
from sidecar.commands.verify import verification
from sidecar.settings import Settings

GOAL: Final = 0.75


async def measure(label: str, table: Table, *, turns: int) -> Result:
    """Rows a second of both sides, and their ratio, of `turns` turns after one that warms up."""
    ours: list[float] = []
    limits: list[float] = []
    for turn in range(turns + 1):
        for rates, work in ((limits, _limit), (ours, _ours))[:: 1 if turn % 2 else -1]:
            rate = await rate_of(table, work)
            if turn:
                rates.append(rate)
    return Result(
        f"catch-up, rows of {label}",
        median(ours),
        "rows/s",
        limit=median(limits),
        ratio=versus(ours, limits),
        goal=GOAL,
        turns={"ours": ours, "limit": limits},
        note=f"{table.rows:,} rows, {table.events} an execution; limit: fetch and insert, overlapped",
    )


async def verify_rate(label: str, table: Table, *, turns: int) -> Result:
    """Rows a second of `verify` with its temporary store, beside the same limit."""
    ours: list[float] = []
    limits: list[float] = []
    for _ in range(turns):
        limits.append(await rate_of(table, _limit))
        ours.append(await rate_of(table, _verify))
    return Result(
        f"verify, rows of {label}",
        median(ours),
        "rows/s",
        limit=median(limits),
        ratio=versus(ours, limits),
        turns={"ours": ours, "limit": limits},
        note="populate, guarded read and comparison of every execution; limit: fetch and insert",
    )


async def rate_of(table: Table, work: Callable[[Table, Path], Awaitable[int]]) -> float:
    with TemporaryDirectory(prefix="noetl-chain-bench-") as folder:
        began = time.perf_counter()
        done = await work(table, Path(folder) / "chain.db")
        seconds = time.perf_counter() - began
    if done != table.rows:
        raise SystemExit(f"{done} of {table.rows} rows arrived")
    return done / seconds


async def _limit(table: Table, store: Path) -> int:
    return await limit.copy(table.dsn, store, body_bytes=table.body_bytes)


async def _ours(table: Table, store: Path) -> int:
    settings = Settings.given(dsn=table.dsn, store=str(store))
    _, rows = await backfilled(settings)
    return rows


async def _verify(table: Table, store: Path) -> int:
    found = await verification(Settings.given(dsn=table.dsn))
    return found.events
