"""What an event and an execution cost, in CPU time of the sidecar and of Postgres.

CPU time, not wall time: whoever else runs on the machine does not count.  An event's and an
execution's part are told apart by the same number of events in long and in short executions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import asyncpg
import psutil

from benchmarks.data import Table, filled
from benchmarks.live import EXECUTIONS, ID_STEP, LIVE_BASE, running, written
from benchmarks.result import Result, median
from sidecar.commands.backfill import backfilled
from sidecar.commands.verify import verification
from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.service.resharding import hand_over
from sidecar.settings import Settings
from sidecar.source.opened import LogSource
from sidecar.source.options import Shard, SourceOptions
from sidecar.source.poll import Window, poll_sql
from sidecar.store import ChainStore
from sidecar.telemetry import logs

LONG: Final = 60
SHORT: Final = 6
EVERYTHING: Final = Window(1e9)
HORIZON: Final = "select (pg_snapshot_xmin(pg_current_snapshot())::text::bigint % 4294967296)::text"
SHARDS: Final = 8
STEEPER: Final = 4
POLL_S: Final = 0.15
BACKENDS: Final = (
    "select pid from pg_stat_activity where application_name = 'noetl-chain' and datname = current_database()"
)

REAPED_S: Final = 0.3
"""Until the postmaster has counted a backend that ended."""

Spent = tuple[float, float]
"""CPU seconds of this process, and of Postgres."""


class Meter:
    """CPU seconds spent by this process and by a server's processes, those that have ended included."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = psutil.Process(server.pid)

    def now(self) -> Spent:
        theirs = cpu(self._server, ended=True)
        for child in self._server.children(recursive=True):
            try:
                theirs += cpu(child)
            except psutil.NoSuchProcess:
                continue  # counted with its parent's ended ones
        return time.process_time(), theirs

    async def of(self, work: Callable[[], Awaitable[object]]) -> Spent:
        """What `work` costs."""
        began = self.now()
        await work()
        await asyncio.sleep(REAPED_S)
        ended = self.now()
        return ended[0] - began[0], ended[1] - began[1]


def cpu(process: psutil.Process, *, ended: bool = False) -> float:
    spent = process.cpu_times()
    own: float = spent.user + spent.system
    return own + spent.children_user + spent.children_system if ended else own


async def measure(
    server: EmbeddedPostgres, *, rows: int, turns: int, rate: int, seconds: float
) -> list[Result]:
    """Microseconds of CPU; the names are those of `shardmodel.Costs` and of docs/scale.md."""
    meter = Meter(server)
    long = await filled(server, "costs_long", rows=rows, events=LONG, body_bytes=600)
    short = await filled(server, "costs_short", rows=rows, events=SHORT, body_bytes=600)
    results = []
    for name, work in (("stored by catching up", _backfill), ("stored, read back, compared", _verify)):
        parts = [await _parted(meter, long, short, work, side, turns) for side in (0, 1)]
        for (event, execution), who in zip(parts, ("sidecar", "Postgres"), strict=True):
            results.append(Result(f"an event, {name}: {who}", event, "us CPU", note=f"{long.rows:,} events"))
            results.append(Result(f"an execution, {name}: {who}", execution, "us CPU"))
    results += await _polls(long, turns)
    results += await _live(server, rate, seconds)
    return [*results, *await _handover(meter, long)]


async def _parted(
    meter: Meter,
    long: Table,
    short: Table,
    work: Callable[[Table, Path], Awaitable[object]],
    side: int,
    turns: int,
) -> tuple[float, float]:
    """An event's and an execution's part of what one side spends."""
    each = [await _per_event(meter, table, work, side, turns) for table in (long, short)]
    execution = (each[1] - each[0]) / (1 / SHORT - 1 / LONG)
    return each[0] - execution / LONG, execution


async def _per_event(
    meter: Meter, table: Table, work: Callable[[Table, Path], Awaitable[object]], side: int, turns: int
) -> float:
    spent = []
    for _ in range(turns):
        with TemporaryDirectory(prefix="noetl-chain-bench-") as folder:
            store = Path(folder) / "chain.db"
            spent.append((await meter.of(lambda store=store: work(table, store)))[side])  # type: ignore[misc]
    return median(spent) / table.rows * 1e6


async def _backfill(table: Table, store: Path) -> None:
    await backfilled(Settings.given(dsn=table.dsn, store=str(store)))


async def _verify(table: Table, store: Path) -> None:
    await verification(Settings.given(dsn=table.dsn))


async def _polls(table: Table, turns: int) -> list[Result]:
    """What a poll costs Postgres that finds nothing new: by itself, and for every row of its range."""
    source = await LogSource.open(SourceOptions(table.dsn))
    conn = await asyncpg.connect(table.dsn)
    backend = psutil.Process(conn.get_server_pid())
    horizon = await conn.fetchval(HORIZON)

    async def spent(over: Window, shard: Shard, times: int) -> float:
        sql = poll_sql(source.table, over, shard, filtered=True, bodies=True)
        each = []
        for _ in range(turns + 1):
            began = cpu(backend)
            for _ in range(times):
                await conn.fetch(sql, None, horizon)
            each.append((cpu(backend) - began) / times * 1e6)
        return median(each[1:])

    itself = await spent(Window(0.001), Shard(), 200)
    one, many = [
        (await spent(EVERYTHING, shard, 5) - itself) / table.rows for shard in (Shard(), Shard(3, SHARDS))
    ]
    await conn.close()
    await source.close()
    return [
        Result("a poll by itself: Postgres", itself, "us CPU", note="nothing in its range"),
        Result(
            "a row that a poll looks at: Postgres",
            one,
            "us CPU",
            note=f"{table.rows:,} rows, all stored before",
        ),
        Result(f"the same for one of {SHARDS} shards", many, "us CPU", ratio=one / many),
    ]


async def _live(server: EmbeddedPostgres, rate: int, seconds: float) -> list[Result]:
    """A sidecar that follows: idle, and at two rates: what a poll costs, and what an event does."""
    table = await filled(server, "costs_live", rows=600, events=LONG, body_bytes=600)
    conn = await asyncpg.connect(table.dsn)
    with (
        TemporaryDirectory(prefix="noetl-chain-bench-") as folder,
        running(table.dsn, Path(folder) / "chain.db") as it,
    ):

        async def now() -> Spent:
            return cpu(it), sum(cpu(psutil.Process(row[0])) for row in await conn.fetch(BACKENDS))

        async def during(work: Awaitable[object]) -> Spent:
            (ours, theirs), began = await now(), time.perf_counter()
            await work
            took, ended = time.perf_counter() - began, await now()
            return (ended[0] - ours) / took, (ended[1] - theirs) / took

        await asyncio.sleep(2.0)  # what it does once, at the start
        idle = await during(asyncio.sleep(seconds))
        slow = await during(written(table.dsn, seconds, rate, base=LIVE_BASE))
        fast = await during(
            written(table.dsn, seconds, STEEPER * rate, base=LIVE_BASE + EXECUTIONS * ID_STEP)
        )
    await conn.close()
    results = []
    for side, who in enumerate(("sidecar", "Postgres")):
        event = (fast[side] - slow[side]) / ((STEEPER - 1) * rate)
        poll = (slow[side] - rate * event) * POLL_S
        results += [
            Result(f"idle: {who}", idle[side] * 100, "% of a CPU", note="poll every 150 ms, tick every 5 s"),
            Result(f"following {rate} events/s: {who}", slow[side] * 100, "% of a CPU"),
            Result(f"following {STEEPER * rate} events/s: {who}", fast[side] * 100, "% of a CPU"),
            Result(f"an event more, followed live: {who}", event * 1e6, "us CPU"),
            Result(
                f"a poll that finds something: {who}", poll * 1e6, "us CPU", note="with all that runs beside"
            ),
        ]
    return results


async def _handover(meter: Meter, table: Table) -> list[Result]:
    """One store of everything becomes the first of two: half of it goes."""
    with TemporaryDirectory(prefix="noetl-chain-bench-") as folder:
        path = Path(folder) / "chain.db"
        await _backfill(table, path)
        size = path.stat().st_size / table.rows
        async with ChainStore.open(str(path)) as store:
            source = await LogSource.open(SourceOptions(table.dsn, shard=Shard(0, 2)))
            moved = 0

            async def moving() -> None:
                nonlocal moved
                done = await hand_over(store, source, logs.get("bench"))
                moved = 0 if done is None else done.rows

            spent = await meter.of(moving)
            await source.close()
    return [
        Result(
            "an event that is handed over: sidecar",
            spent[0] / moved * 1e6,
            "us CPU",
            note=f"{moved:,} events",
        ),
        Result("an event that is handed over: Postgres", spent[1] / moved * 1e6, "us CPU"),
        Result("an event in the store", size, "bytes", note=f"bodies of {table.body_bytes} bytes"),
    ]
