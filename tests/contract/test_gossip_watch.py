"""The loop between gossip and the record: what it bounds, what it tries again, what it says.

The source is scripted, the store is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from sidecar.core.membership import Identity
from sidecar.errors import GossipError
from sidecar.fleet.notification import MemberDown, MemberUp, Notification
from sidecar.fleet.origin import RejectUnsigned
from sidecar.fleet.sink import GossipSink, Result
from sidecar.service.gossip import BATCH, GossipWatch
from sidecar.service.told import Instruments
from sidecar.store import ChainStore
from sidecar.store.runtime import RuntimeStore
from sidecar.telemetry import logs
from sidecar.telemetry.health import Health
from sidecar.telemetry.metrics import Metrics
from tests.contract.backends import SqliteBackend
from tests.support.service import value

A = Identity("10.0.0.5:7946", 0, "node-a", 1)
B = Identity("10.0.0.6:7946", 0, "node-b", 1)


class Told:
    """A source that tells everything, at most `part` of it at a time, and then ends, or waits for ever."""

    def __init__(self, told: Sequence[Notification], *, ends: bool = False, part: int = BATCH) -> None:
        self._told = list(told)
        self._part = part
        self._ends = ends
        self.lost = 0
        self.silent = asyncio.Event()

    def refused_frames(self) -> int:
        return 3

    async def take(self, limit: int) -> Sequence[Notification]:
        limit = min(limit, self._part)
        part, self._told = self._told[:limit], self._told[limit:]
        if not part:
            if self._ends:
                raise GossipError("gossip ended: the node stopped")
            self.silent.set()
            await asyncio.Event().wait()
        return part


class Counting(GossipSink):
    """Remembers how large its batches were."""

    def __init__(self, runtime: RuntimeStore) -> None:
        super().__init__(runtime, "own")
        self.batches: list[int] = []

    async def apply(self, notifications: Sequence[Notification]) -> list[Result]:
        results = await super().apply(notifications)
        self.batches.append(len(results))
        return results


class Watched:
    def __init__(self, sink: GossipSink, *sources: Told, pace_s: float = 0.0) -> None:
        self.metrics = Metrics()
        self.steps: list[str] = []
        self._sources = iter(sources)
        instruments = Instruments(self.metrics, Health(), logs.get("test"))
        self.watch = GossipWatch(sink, self._connect, self._alone, instruments, pace_s=pace_s)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Told]:
        self.steps.append("connect")
        yield next(self._sources)

    async def _alone(self) -> int:
        self.steps.append("alone")
        return 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.watch.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    def results(self, result: str) -> float:
        return value(self.metrics.registry, "gossip_results_total", result=result)


@pytest.fixture
async def store(sqlite: SqliteBackend) -> AsyncIterator[ChainStore]:
    async with sqlite.open() as opened:
        yield opened


def crowd(count: int) -> list[Notification]:
    """Workers that come and go, a few hundred names."""
    nodes = [Identity(f"10.0.0.1:{n % 300}", 0, f"node-{n % 300}", n) for n in range(count // 2)]
    return [each for node in nodes for each in (MemberUp(node), MemberDown(node))]


async def test_a_storm_is_recorded_in_small_transactions_and_others_write_between(store: ChainStore) -> None:
    storm = Told(crowd(10_000))
    sink = Counting(RuntimeStore(store))
    watched = Watched(sink, storm)
    seen: list[int] = []
    async with watched.running():
        while not storm.silent.is_set():
            # The feed's next batch.
            await store.transact(lambda unit: unit.rows("SELECT 1"))
            seen.append(len(sink.batches))
    assert sum(sink.batches) == 10_000
    assert max(sink.batches) == BATCH
    assert watched.results("registered") == watched.results("deregistered") == 5_000
    # Whoever waits for the writer waits for one transaction of the storm, never for the storm.
    assert max(after - before for before, after in pairwise(seen)) <= 2
    assert len(seen) > len(sink.batches) / 2


@pytest.mark.parametrize("part", [BATCH, 1])
async def test_after_every_transaction_there_is_a_pause(store: ChainStore, part: int) -> None:
    """However few are told at a time: a stream of them is as many transactions a second as a storm."""
    sink = Counting(RuntimeStore(store))
    async with Watched(sink, Told(crowd(200), part=part), pace_s=3600).running():
        async with asyncio.timeout(10):
            while not sink.batches:
                await store.transact(lambda unit: unit.rows("SELECT 1"))
        for _ in range(10):
            await store.transact(lambda unit: unit.rows("SELECT 1"))
        assert sink.batches == [part]


async def test_what_could_not_be_written_is_written_later(store: ChainStore, sqlite: SqliteBackend) -> None:
    sqlite.run("CREATE TRIGGER full BEFORE INSERT ON d8_runtime BEGIN SELECT raise(ABORT, 'no'); END")
    told = Told([MemberUp(A), MemberUp(B)])
    watched = Watched(GossipSink(RuntimeStore(store), "own"), told)
    with capture_logs() as lines:
        async with watched.running():
            await said(lines, "gossip_not_recorded")
            assert not told.silent.is_set()
            assert watched.results("registered") == 0
            sqlite.run("DROP TRIGGER full")
            await told.silent.wait()
    assert watched.results("registered") == 2
    assert [worker.worker_id for worker in await RuntimeStore(store).list_live()] == ["node-a", "node-b"]


async def test_after_an_end_it_begins_again_with_nobody(store: ChainStore) -> None:
    first, second = Told([MemberUp(A)], ends=True), Told([MemberUp(B)])
    watched = Watched(GossipSink(RuntimeStore(store), "own"), first, second)
    with capture_logs() as lines:
        async with watched.running():
            await second.silent.wait()
            assert watched.watch.up
            assert value(watched.metrics.registry, "gossip_up") == 1
            assert watched.steps == ["alone", "connect", "alone", "connect"]
    assert value(watched.metrics.registry, "gossip_up") == 0
    assert value(watched.metrics.registry, "gossip_frames_refused_total") == 6
    assert [line["event"] for line in lines] == ["gossip_up", "gossip_down", "gossip_up"]


async def test_refusals_are_all_counted_and_told_once_a_minute(store: ChainStore) -> None:
    told = Told(crowd(200))
    watched = Watched(GossipSink(RuntimeStore(store).with_origin(RejectUnsigned()), "own"), told)
    with capture_logs() as lines:
        async with watched.running():
            await told.silent.wait()
    refused = [line for line in lines if line["event"] == "gossip_refused"]
    assert [(line["times"], "no signing key" in line["reason"]) for line in refused] == [(1, True)]
    assert watched.results("refused") == 100  # who never came is not let go of: ignored
    assert watched.results("ignored") == 100
    assert await RuntimeStore(store).ops_after(0, 10) == []


async def said(lines: list[EventDict], event: str) -> None:
    async with asyncio.timeout(10):
        while all(line["event"] != event for line in lines):  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.01)
