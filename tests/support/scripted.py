"""Feed and comparator over a real store file and a log that the test writes: no lanes, no Postgres.

The test says what is committed, what a lane delivers and when somebody ticks, so every order of
events is one line of a test.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from sidecar.certified import Certified
from sidecar.comparator.loop import Comparator
from sidecar.comparator.report import TickReport
from sidecar.core.authority import GuardedRead, Partition
from sidecar.core.due import SECOND, Due, Windows
from sidecar.core.event import Event
from sidecar.core.horizon import Cursor, TailRow
from sidecar.core.populate import LogRead
from sidecar.core.ports import Batch, ExecutionLog
from sidecar.core.settle import Limits
from sidecar.feed import Feed, FeedReport
from sidecar.store import ChainStore

LONG = Windows(tick=1, settle=3600 * SECOND, dangling=3600 * SECOND)
"""Nothing that was judged is due again before its time."""

SERVER_NOW = 1_700_000_000 * SECOND


class Scripted:
    """A log, a store, a feed, a comparator.

    `after_read` runs between a log read and what is done with it.  `reads`: every read so far.
    """

    def __init__(self, path: Path, store: ChainStore, **options: Any) -> None:
        self.path = path
        self.store = store
        self.log: dict[int, dict[int, Event]] = {}
        self.epoch = "epoch-1"
        self.newest_at = SERVER_NOW
        self.reads: list[tuple[int, ...]] = []
        self.after_read: Callable[[], Awaitable[object]] | None = None
        self._xmin = 100
        self._xmins: dict[Event, int] = {}
        self._options = options
        self._compose(**options)

    @classmethod
    async def open(cls, folder: Path, *, rejoining: bool = False, **options: Any) -> Self:
        path = folder / "chain.db"
        return cls(path, await ChainStore.open(str(path), rejoining=rejoining), **options)

    def _compose(
        self,
        *,
        windows: Windows = LONG,
        limits: Limits | None = None,
        comparing: bool = True,
        cert: bool = False,
        projecting: bool | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.certified = Certified(self.store.clock, on=cert)
        self.feed = Feed(
            self.store,
            self,
            windows=windows,
            limits=self.limits,
            comparing=comparing,
            certified=self.certified,
        )
        self.comparator = Comparator(
            self.store,
            self,
            self.feed.settling,
            windows,
            projecting=cert if projecting is None else projecting,
            certified=self.certified,
        )

    async def restart(self, *, rejoining: bool | None = None, **options: Any) -> None:
        """What is in memory is gone; what is stored is not."""
        await self.store.close()
        on = self.store.rejoining if rejoining is None else rejoining
        self.store = await ChainStore.open(str(self.path), rejoining=on)
        self._compose(**(self._options | options))
        await self.store.flag_held()
        await self.certified.begin(self.store)

    # The log

    def commit(self, *events: Event) -> tuple[Event, ...]:
        """Make rows visible; a row with a known id was updated."""
        for event in events:
            self._xmin += 1
            self._xmins[event] = self._xmin
            self.log.setdefault(event.execution_id, {})[event.event_id] = event
        return events

    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        """See `core.ports.LogReader`."""
        self.reads.append(tuple(execution_ids))
        logs = [self.whole(execution_id) for execution_id in execution_ids]
        if self.after_read is not None:
            then, self.after_read = self.after_read, None
            await then()
        return logs

    async def read_some(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        """See `core.ports.BoundedReader`."""
        return await self.read(execution_ids)

    def whole(self, execution_id: int) -> ExecutionLog:
        events = tuple(self.log.get(execution_id, {}).values())
        read = LogRead(self.store.clock.now(), self.epoch, self._xmin + 1)
        known = events if len(events) < self.limits.read else None
        return ExecutionLog(execution_id, known, read, self.newest_at)

    # What happens

    def batch(self, *events: Event, lane: str = "live", **more: Any) -> Batch:
        began_at = self.store.clock.now()
        rows = tuple(
            TailRow(event, xmin, xmin, self.epoch, self._xmin + 1, self.store.clock.now())
            for event, xmin in ((event, self._xmins[event]) for event in events)
        )
        cursor = Cursor(lane, self._xmin, self.epoch, "scope", "tree", SERVER_NOW)
        return Batch(
            lane,
            self.epoch,
            self._xmin + 1,
            SERVER_NOW,
            rows=rows,
            cursor=cursor,
            **({"read_at": began_at, "began_at": began_at} | more),
        )

    async def deliver(self, *events: Event, lane: str = "live", **more: Any) -> FeedReport:
        """A lane hands rows over."""
        return await self.feed.take(self.batch(*events, lane=lane, **more))

    async def write(self, *events: Event) -> FeedReport:
        """Rows become visible and the live lane hands them over at once."""
        return await self.deliver(*self.commit(*events))

    async def sweep(self, *executions: int, gone: tuple[int, ...] = ()) -> FeedReport:
        """The sweep without horizon hands whole executions over."""
        logs = tuple(self.whole(execution_id) for execution_id in executions)
        return await self.deliver(lane="sweep:1:1", logs=logs, gone=gone)

    async def tick(self) -> TickReport:
        return await self.comparator.tick()

    async def judge(self, execution_id: int) -> TickReport:
        """The comparator looks at one execution, due or not."""
        report = TickReport()
        await self.comparator.judge([execution_id], report)
        return report

    # What has become of it

    async def partition(self, execution_id: int) -> Partition:
        partition = await self.store.partition(execution_id)
        assert partition is not None
        return partition

    async def due(self, execution_id: int) -> Due | None:
        return (await self.store.due((execution_id,))).get(execution_id)

    async def is_due(self, execution_id: int) -> bool:
        return execution_id in await self.store.due_now(self.store.clock.now(), 1000)

    async def stored(self, execution_id: int) -> list[int]:
        return [event.event_id for event in await self.store.chain(execution_id)]

    async def guarded(self, execution_id: int) -> GuardedRead:
        return await self.store.chain_if_authoritative(execution_id)
