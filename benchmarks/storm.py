"""A storm of gossip beside the feed: the rate of a catch-up with it and without, turn by turn.

Ten thousand notifications are told at once while the rows of the table go into the same store.
They are recorded at a bounded pace, so the table is caught up with until the last one is.
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
    """A source that has everything to tell at once, and counts what was recorded of it."""

    def __init__(self, told: Sequence[Notification]) -> None:
        self._told = told
        self._taken = 0
        self._asked = asyncio.Event()
        self.recorded = 0
        self.lost = 0

    @property
    def over(self) -> bool:
        return self.recorded == len(self._told)

    def refused_frames(self) -> int:
        return 0

    async def take(self, limit: int) -> Sequence[Notification]:
        """The next of them: whoever asks again has recorded what was taken before."""
        self.recorded += self._taken
        part = self._told[self.recorded : self.recorded + limit]
        self._taken = len(part)
        self._asked.set()
        if not part:
            await asyncio.Event().wait()
        return part

    async def settled(self) -> None:
        """Wait until what has been taken is recorded; what is taken then is told once more, elsewhere."""
        before = self.recorded
        while self._taken and self.recorded == before:
            self._asked.clear()
            await self._asked.wait()
        self._taken = 0


def told(count: int) -> list[Notification]:
    """Workers that come, are renamed, and go, again and again."""
    made: list[Notification] = []
    life = 0
    while len(made) < count:
        for number in range(WORKERS):
            node = Identity(f"10.0.{number // 250}.{number % 250}:7946", 0, f"node-{number}", life)
            new = Identity(node.addr, 0, f"node-{number}-{life}", life + 1)
            made += (MemberUp(node), Rename(node, new), MemberDown(new))
        life += 1
    return made[:count]


async def measure(table: Table, *, turns: int) -> Result:
    """Rows a second with the storm, held against the same without it."""
    notifications = told(min(NOTIFICATIONS, table.rows))
    await _caught_up(table, Storm(()))
    made = [await _turn(table, notifications) for _ in range(turns)]
    storming, quiet, times = ([turn[side] for turn in made] for side in range(3))
    return Result(
        "catch-up in a storm of gossip",
        median(storming),
        "rows/s",
        limit=median(quiet),
        ratio=versus(storming, quiet),
        goal=GOAL,
        turns={"storm": storming, "quiet": quiet, "catch-ups": times},
        note=f"{len(notifications):,} notifications told at once, all recorded beside {median(times):,.0f}"
        " catch-ups; limit: without them",
    )


async def _turn(table: Table, notifications: Sequence[Notification]) -> tuple[float, float, int]:
    """Rows a second with the storm and without, and how many catch-ups the storm lasted.

    The table is caught up with again and again, each time into a new store, until everything
    told is recorded; beside each such catch-up stands a quiet one.
    """
    gossip = Storm(notifications)
    storming = quiet = 0.0
    times = 0
    while not gossip.over:
        for source in (gossip, Storm(()))[:: 1 if times % 2 else -1]:
            seconds = await _caught_up(table, source)
            if source is gossip:
                storming += seconds
            else:
                quiet += seconds
        times += 1
    return times * table.rows / storming, times * table.rows / quiet, times


async def _caught_up(table: Table, gossip: Storm) -> float:
    """The seconds of a catch-up into a new store, with the gossip going into the same."""
    async with AsyncExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="noetl-chain-bench-")))
        settings = Settings.given(dsn=table.dsn, store=str(folder / "chain.db"))
        source = await opened.enter_async_context(open_log(settings, structlog.get_logger()))
        store = await opened.enter_async_context(ChainStore.open(settings.store))
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
        seconds = time.perf_counter() - began
        await gossip.settled()
        watching.cancel()
        await asyncio.wait({watching})
        if rows != table.rows:
            raise SystemExit(f"{rows} of {table.rows} rows arrived")
    return seconds


def _watch(store: ChainStore, gossip: Storm) -> GossipWatch:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Storm]:
        yield gossip

    async def alone() -> int:
        return 0

    instruments = Instruments(Metrics(), Health(), structlog.get_logger())
    return GossipWatch(GossipSink(RuntimeStore(store)), connect, alone, instruments)
