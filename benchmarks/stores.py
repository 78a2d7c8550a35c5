"""The engines of the store beside each other: a file, one PostgreSQL, leaves on three of them.

The same units of work and the same reads, turn by turn in one run; the log is left out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.result import Result, median, quantile
from sidecar.core.event import Event
from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog
from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.store import ChainStore
from sidecar.store.postgres.nodes import spread
from sidecar.store.unit import StoreUnit

FILE: Final = "a file"
ONE: Final = "one PostgreSQL"
THREE: Final = "three PostgreSQL"

ROWS_OF_A_UNIT: Final = 6000
READS: Final = 200
BODY: Final = '{"status":"COMPLETED","result":"' + "x" * 560 + '"}'


class Servers:
    """Four servers of this run: one keeps stores, three lend leaves."""

    def __init__(self) -> None:
        self.home = EmbeddedPostgres.start()
        self.lenders = [EmbeddedPostgres.start() for _ in range(3)]

    def stop(self) -> None:
        for server in (self.home, *self.lenders):
            server.stop()


async def measure(servers: Servers, *, rows: int, events: int, turns: int) -> list[Result]:
    """Rows a second of populate, and milliseconds of a guarded read, by engine."""
    rates: dict[str, list[float]] = {FILE: [], ONE: [], THREE: []}
    reads: dict[str, list[float]] = {FILE: [], ONE: [], THREE: []}
    for turn in range(turns):
        with TemporaryDirectory(prefix="noetl-chain-bench-") as folder:
            for engine, url in (await _places(servers, Path(folder), turn)).items():
                async with AsyncExitStack() as opened:
                    store = await opened.enter_async_context(ChainStore.open(url))
                    rates[engine].append(await _filled(store, rows, events))
                    reads[engine] += await _read(store, rows // events, events)
    return [*_rates(rates, events), *_reads(reads, events)]


async def _places(servers: Servers, folder: Path, turn: int) -> Mapping[str, str]:
    home = servers.home.dsn()
    far = f"{home}&schema=far_{turn}&partitions=18"
    await spread(far, [server.dsn() for server in servers.lenders])
    return {FILE: str(folder / "chain.db"), ONE: f"{home}&schema=near_{turn}", THREE: far}


async def _filled(store: ChainStore, rows: int, events: int) -> float:
    executions = [_chain(e, events) for e in range(1, rows // events + 1)]
    size = max(1, ROWS_OF_A_UNIT // events)
    began = time.perf_counter()
    for at in range(0, len(executions), size):
        await _populate(store, executions[at : at + size])
    return len(executions) * events / (time.perf_counter() - began)


async def _populate(store: ChainStore, chains: Sequence[Sequence[Event]]) -> None:
    read = LogRead(store.clock.now())

    async def work(unit: StoreUnit) -> None:
        await unit.populate([ExecutionLog(each[0].execution_id, tuple(each), read) for each in chains])

    await store.transact(work)


def _chain(execution_id: int, events: int) -> list[Event]:
    ids = range(execution_id * 100_000, execution_id * 100_000 + events)
    return [
        Event(execution_id, i, p, None, "step.exit", BODY) for i, p in zip(ids, (None, *ids), strict=False)
    ]


async def _read(store: ChainStore, executions: int, events: int) -> list[float]:
    pick, taken = random.Random(1), []
    for turn in range(READS):
        began = time.perf_counter()
        answer = await store.chain_if_authoritative(pick.randint(1, executions))
        if turn >= READS // 10:  # the first ones warm up
            taken.append((time.perf_counter() - began) * 1000)
        if len(answer.events or ()) != events:
            raise SystemExit(f"{answer.reason} instead of {events} events")
    return taken


def _rates(rates: Mapping[str, Sequence[float]], events: int) -> list[Result]:
    limit = median(rates[FILE])
    return [
        Result(
            f"populate, {engine}",
            median(found),
            "rows/s",
            limit=limit,
            ratio=median(found) / limit,
            turns={"ours": found},
            note=f"{events} rows an execution, {ROWS_OF_A_UNIT:,} a unit; limit: a file",
        )
        for engine, found in rates.items()
    ]


def _reads(reads: Mapping[str, Sequence[float]], events: int) -> list[Result]:
    limit = median(reads[FILE])
    return [
        Result(
            f"guarded read of {events} events, {engine}, p50",
            median(found),
            "ms",
            limit=limit,
            ratio=limit / median(found),
            turns={"ours": [quantile(found, 0.5), quantile(found, 0.99)]},
            note=f"p99 {quantile(found, 0.99):.2f} ms; limit: a file",
        )
        for engine, found in reads.items()
    ]
