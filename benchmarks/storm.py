"""A storm of gossip beside the feed: the rate of a catch-up with it and without, turn by turn.

Ten thousand notifications are told at once while the rows of the table go into the same store.
The ratio says what the storm takes from the feed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog

from benchmarks.data import Table
from benchmarks.result import Result, median, versus
from sidecar.app import make_feed, open_log
from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.membership import Identity
from sidecar.core.ports import Batch
from sidecar.fleet.notification import MemberDown, MemberUp, Notification, Rename
from sidecar.fleet.sink import GossipSink
from sidecar.service.gossip import GossipWatch
from sidecar.service.told import Instruments
from sidecar.settings import Settings
from sidecar.source.compare import Comparison, compared
from sidecar.store import ChainStore
from sidecar.store.runtime import RuntimeStore
from sidecar.telemetry.health import Health
from sidecar.telemetry.metrics import Metrics

NOTIFICATIONS: Final = 10_000
WORKERS: Final = 1_000
GOAL: Final = 0.9


class Storm:
    """A source that has everything to tell at once."""

    def __init__(self, told: Sequence[Notification]) -> None:
        self._told = told
        self.recorded = 0
        self.lost = 0

    def refused_frames(self) -> int:
        return 0

    async def take(self, limit: int) -> Sequence[Notification]:
        part = self._told[self.recorded : self.recorded + limit]
        if not part:
            await asyncio.Event().wait()
        self.recorded += len(part)
        return part


def told() -> list[Notification]:
    """Workers that come, are renamed, and go, again and again."""
    made: list[Notification] = []
    life = 0
    while len(made) < NOTIFICATIONS:
        for number in range(WORKERS):
            node = Identity(f"10.0.{number // 250}.{number % 250}:7946", 0, f"node-{number}", life)
            new = Identity(node.addr, 0, f"node-{number}-{life}", life + 1)
            made += (MemberUp(node), Rename(node, new), MemberDown(new))
        life += 1
    return made[:NOTIFICATIONS]


async def measure(table: Table, *, turns: int) -> Result:
    """Rows a second with the storm, held against the same without it."""
    storming: list[float] = []
    quiet: list[float] = []
    recorded: list[float] = []
    for turn in range(turns + 1):
        for storm in (True, False)[:: 1 if turn % 2 else -1]:
            rate, done = await _rate(table, storm=storm)
            if turn:
                (storming if storm else quiet).append(rate)
                recorded += [done] if storm else []
    return Result(
        "catch-up in a storm of gossip",
        median(storming),
        "rows/s",
        limit=median(quiet),
        ratio=versus(storming, quiet),
        goal=GOAL,
        turns={"storm": storming, "quiet": quiet, "recorded": recorded},
        note=f"{NOTIFICATIONS:,} notifications told at once; {median(recorded):,.0f} recorded meanwhile;"
        " limit: without them",
    )


async def _rate(table: Table, *, storm: bool) -> tuple[float, int]:
    """Rows a second, and the notifications that were recorded before the last row."""
    async with AsyncExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="noetl-chain-bench-")))
        settings = Settings.given(dsn=table.dsn, store=str(folder / "chain.db"))
        source = await opened.enter_async_context(open_log(settings, structlog.get_logger()))
        store = await opened.enter_async_context(ChainStore.open(settings.store))
        gossip = Storm(told() if storm else ())
        watching = asyncio.create_task(_watch(store, gossip).run())
        log = source.reader(store.clock)
        feed = make_feed(settings, store, log)
        began, rows = time.perf_counter(), 0
        everything = Comparison(log, store, source.options.shard, ID_MIN, ID_MAX)
        async with aclosing(compared(everything)) as steps:
            async for step in steps:
                facts = step.facts
                batch = Batch("backfill", facts.epoch, None, facts.server_now, logs=step.logs, gone=step.gone)
                rows += (await feed.take(batch)).rows
        seconds, recorded = time.perf_counter() - began, gossip.recorded
        watching.cancel()
        await asyncio.wait({watching})
        if rows != table.rows:
            raise SystemExit(f"{rows} of {table.rows} rows arrived")
        if storm and recorded == 0:
            raise SystemExit("the storm was over before it began")
    return rows / seconds, recorded


def _watch(store: ChainStore, gossip: Storm) -> GossipWatch:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Storm]:
        yield gossip

    async def alone() -> int:
        return 0

    instruments = Instruments(Metrics(), Health(), structlog.get_logger("quiet"))
    return GossipWatch(GossipSink(RuntimeStore(store)), connect, alone, instruments)
