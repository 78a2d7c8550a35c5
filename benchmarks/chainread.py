"""The guarded read of one chain: its latency beside the same rows from Postgres."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.data import BASE_ID, Table
from benchmarks.result import Result, median, quantile
from sidecar.commands.backfill import backfilled
from sidecar.settings import Settings
from sidecar.source.log import PostgresLog
from sidecar.source.opened import LogSource
from sidecar.source.options import SourceOptions
from sidecar.store import ChainStore

READS: Final = 400
ID_STEP: Final = 4_194_304


async def measure(table: Table) -> Result:
    """Milliseconds of `chain_if_authoritative`; the limit is the complete read of the log."""
    with TemporaryDirectory(prefix="noetl-chain-bench-") as folder:
        path = str(Path(folder) / "chain.db")
        await backfilled(Settings.given(dsn=table.dsn, store=path))
        source = await LogSource.open(SourceOptions(table.dsn))
        try:
            async with ChainStore.open(path) as store:
                log = source.reader(store.clock)
                ours = await _timed(table, lambda i: _from_store(store, i))
                postgres = await _timed(table, lambda i: _from_log(log, i))
        finally:
            await source.close()
    return Result(
        f"guarded read of {table.events} events, p50",
        median(ours),
        "ms",
        limit=median(postgres),
        ratio=median(postgres) / median(ours),
        turns={"ours": [quantile(ours, 0.5), quantile(ours, 0.99)]},
        note=f"p99 {quantile(ours, 0.99):.2f} ms; limit: the same chain read from Postgres",
    )


async def _timed(table: Table, read: Callable[[int], Awaitable[int]]) -> list[float]:
    pick = random.Random(1)
    taken = []
    for turn in range(READS):
        execution_id = BASE_ID + ID_STEP * pick.randrange(table.executions)
        began = time.perf_counter()
        events = await read(execution_id)
        if turn >= READS // 10:  # the first ones warm up
            taken.append((time.perf_counter() - began) * 1000)
        if events != table.events:
            raise SystemExit(f"{events} of {table.events} events were answered")
    return taken


async def _from_store(store: ChainStore, execution_id: int) -> int:
    return len((await store.chain_if_authoritative(execution_id)).events or ())


async def _from_log(log: PostgresLog, execution_id: int) -> int:
    return len((await log.read((execution_id,)))[0].events or ())
