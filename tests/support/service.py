"""The whole sidecar in one process of the test: real Postgres, real store file, short windows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import structlog
from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from sidecar.app import assembled
from sidecar.core.authority import GuardedRead, Partition
from sidecar.readings import Reading
from sidecar.service.board import Board
from sidecar.service.line import Line
from sidecar.service.told import Instruments
from sidecar.settings import Settings
from sidecar.store import ChainStore
from sidecar.store.unit import StoreUnit
from sidecar.telemetry.health import Health
from sidecar.telemetry.metrics import Metrics

T = TypeVar("T")

PATIENCE_S = 20.0

FAST: dict[str, Any] = {
    "populate": "on",
    "compare": "on",
    "poll_ms": 20,
    "late_poll_s": 0.5,
    "sweep_round_s": 1,
    "tick_s": 0.1,
    "settle_s": 0.3,
    "dangling_s": 3,
    "audit_share": 0,  # a test that wants an audit says so
}


class Writes:
    """The write transactions under way: what one has committed can be read before it is told."""

    def __init__(self, store: ChainStore) -> None:
        self._real = store.transact
        self._under_way: set[asyncio.Event] = set()

    async def transact(self, work: Callable[[StoreUnit], Awaitable[T]]) -> T:
        ended = asyncio.Event()
        self._under_way.add(ended)
        try:
            return await self._real(work)
        finally:
            self._under_way.discard(ended)
            ended.set()

    async def told(self) -> None:
        """Wait until the caller of each has gone on: it counts and logs before it waits again."""
        for each in [*self._under_way]:
            await each.wait()


class Service:
    """A running line.  Waiting looks again whenever a batch is stored or a tick has ended.

    A state that was waited for is in the metrics and in the log when the wait is over.
    """

    def __init__(
        self,
        store: ChainStore,
        line: Line,
        metrics: Metrics,
        health: Health,
        board: Board,
        writes: Writes,
    ) -> None:
        self._writes = writes
        self.board = board
        self.store = store
        self.line = line
        self.metrics = metrics
        self.health = health

    async def until(self, holds: Callable[[], Awaitable[bool]], *, patience_s: float = PATIENCE_S) -> None:
        """Wait for a state, or fail."""
        async with asyncio.timeout(patience_s):
            await self.line.progress.until(holds)
            await self._writes.told()

    async def stored(self, execution_id: int, rows: int) -> None:
        """Wait until so many rows of the execution are stored."""

        async def holds() -> bool:
            return len(await self.store.chain(execution_id)) == rows

        await self.until(holds)

    async def verdict(self, execution_id: int, verdict: str, *, patience_s: float = PATIENCE_S) -> Partition:
        """Wait until the latest verdict is this one; the record."""

        async def holds() -> bool:
            found = await self.store.partition(execution_id)
            return found is not None and found.verdict == verdict

        await self.until(holds, patience_s=patience_s)
        return await self.partition(execution_id)

    async def seen(self, execution_id: int, rows: int) -> Partition:
        """Wait until so many rows of the execution were delivered, stored or not; the record."""

        async def holds() -> bool:
            found = await self.store.partition(execution_id)
            return found is not None and found.rows_seen >= rows

        await self.until(holds)
        return await self.partition(execution_id)

    async def partition(self, execution_id: int) -> Partition:
        partition = await self.store.partition(execution_id)
        assert partition is not None
        return partition

    async def polls(self, more: int, *, lane: str = "live", patience_s: float = PATIENCE_S) -> None:
        """Wait for so many stored batches with a cursor, each of a poll begun after this call."""
        seen: set[int] = set()

        async def holds() -> bool:
            cursor = (await self.store.cursors()).get(lane)
            seen.update(() if cursor is None else (cursor.polled_at,))
            # The first is the one that stands, the second may have been under way.
            return len(seen) > more + 1

        await self.until(holds, patience_s=patience_s)

    async def ticks(self, more: int) -> None:
        """Wait for the end of so many ticks of the comparator, each begun after this call."""
        goal = self.value("shadow_tick_seconds_count") + more + 1

        async def holds() -> bool:
            return self.value("shadow_tick_seconds_count") >= goal

        await self.until(holds)

    async def asleep(self) -> None:
        """Wait for the first tick; with a long `tick_s` the comparator sleeps from then on."""

        async def holds() -> bool:
            return self.value("shadow_tick_seconds_count") == 1

        await self.until(holds)

    async def caught_up(self) -> None:
        """Wait until every lane has a horizon: only from then on an UPDATE is delivered."""

        async def holds() -> bool:
            return not self.health.reasons()

        await self.until(holds)

    async def followed(self) -> None:
        """Wait until every lane has a horizon and nothing is due.

        From then on a row is first seen by a poll that knows its xid, and by no log read.  A lane gets
        its horizon with its second poll.
        """

        async def holds() -> bool:
            cursors = await self.store.cursors()
            lanes = {lane.partition(":")[0] for lane in cursors}
            return lanes == {"live", "late", "sweep"} and all(each.horizon for each in cursors.values())

        await self.until(holds)
        await self.idle()

    async def looked(self) -> None:
        """Wait for a look at the store that began after this call."""
        goal = self.line.looks + 2  # the first may be under way

        async def holds() -> bool:
            return self.line.looks >= goal

        await self.until(holds)

    async def idle(self, *, patience_s: float = PATIENCE_S) -> None:
        """Wait until every lane has caught up and nothing is due."""

        async def holds() -> bool:
            (due,) = (await self.store.query("SELECT count(*) FROM due"))[0]
            return not self.health.reasons() and due == 0

        await self.until(holds, patience_s=patience_s)

    async def read(self, execution_id: int) -> GuardedRead:
        return await self.store.chain_if_authoritative(execution_id)

    def value(self, name: str, **labels: str) -> float:
        """The value of one series now."""
        return value(self.metrics.registry, name, **labels)

    def moved(self, name: str) -> dict[str, float]:
        """Every series of a metric with one label that is not at 0, by the label's value."""
        return {
            next(iter(sample.labels.values())): sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"noetl_chain_{name}" and sample.value
        }

    def divergences(self) -> dict[str, float]:
        return self.moved("shadow_divergence_total")

    def verdicts(self) -> dict[str, float]:
        return self.moved("shadow_verdict_total")


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    found = registry.get_sample_value(f"noetl_chain_{name}", labels)
    assert found is not None, f"no series {name} {labels}"
    return found


@asynccontextmanager
async def service(dsn: str, store: Path | str, **settings: Any) -> AsyncIterator[Service]:
    """Run the sidecar over `dsn` and the store file until the block ends.

    What ends the line before that is raised at the end of the block.

    Args:
        settings: By their field names; and `log`, the line's logger, and `health`.
    """
    log: FilteringBoundLogger = settings.pop("log", None) or structlog.get_logger()
    health: Health = settings.pop("health", None) or Health()
    given = Settings.given(dsn=dsn, store=str(store), **(FAST | settings))
    metrics = Metrics(replicas=len(given.store_replicas))
    instruments = Instruments(metrics, health, log)
    board = Board(given, instruments.health)
    async with (
        ChainStore.open(
            given.store,
            evidence_max_bytes=given.evidence_max_bytes,
            max_bytes=given.store_max_bytes,
            rejoining=given.rejoin is Reading.ON,
        ) as opened,
        assembled(given, opened, instruments, board) as line,
    ):
        writes = Writes(opened)
        with patch.object(opened, "transact", writes.transact):
            running = asyncio.create_task(line.run())
            try:
                yield Service(opened, line, instruments.metrics, instruments.health, board, writes)
            finally:
                running.cancel()
                await asyncio.wait({running})
                if not running.cancelled():
                    running.result()
