"""Lanes under test: a store in memory, a lane that runs beside the test, tails that lose rows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from sidecar.core.horizon import Cursor, TailRow
from sidecar.core.ports import Batch, Key, Lane
from sidecar.source.opened import LogSource
from sidecar.source.options import SourceOptions

SOON_S = 20.0
ASK_S = 0.02


class Ticks:
    """A clock that counts."""

    def __init__(self) -> None:
        self._now = 0

    def now(self) -> int:
        self._now += 1
        return self._now


class MemoryStore:
    """What a lane asks the chain store, over two dicts: bodies and cursors.

    `take` is one store transaction.  A stored key with other bytes is kept and noted in
    `changed`, as the feed does.
    """

    def __init__(self) -> None:
        self.bodies: dict[Key, str] = {}
        self.lane_cursors: dict[str, Cursor] = {}
        self.first_rows: dict[Key, TailRow] = {}
        self.changed: dict[Key, TailRow] = {}
        self.gone: list[int] = []
        self.batches: list[Batch] = []
        self.asked_missing = 0

    async def cursors(self) -> dict[str, Cursor]:
        return dict(self.lane_cursors)

    async def missing(self, keys: Sequence[Key]) -> list[Key]:
        self.asked_missing += 1
        return [key for key in keys if key not in self.bodies]

    async def sums(self, low: int, high: int) -> Mapping[int, tuple[int, int]]:
        sums: dict[int, tuple[int, int]] = {}
        for execution_id, event_id in self.bodies:
            if low <= execution_id <= high:
                rows, total = sums.get(execution_id, (0, 0))
                sums[execution_id] = (rows + 1, total + event_id)
        return sums

    def take(self, batch: Batch) -> None:
        self.batches.append(batch)
        for row in batch.rows:
            key = (row.event.execution_id, row.event.event_id)
            if self.bodies.setdefault(key, row.event.body) != row.event.body:
                self.changed[key] = row
            self.first_rows.setdefault(key, row)
        for log in batch.logs:
            for event in log.events or ():
                self.bodies.setdefault((event.execution_id, event.event_id), event.body)
        self.gone += batch.gone
        if batch.cursor is not None:
            self.lane_cursors[batch.cursor.lane] = batch.cursor
        for lane in batch.dropped_lanes:
            self.lane_cursors.pop(lane, None)

    def horizon(self, lane: str) -> int | None:
        cursor = self.lane_cursors.get(lane)
        return cursor.horizon if cursor is not None else None

    def polls(self, lane: str) -> int:
        """How many polls of the lane were stored to their end."""
        return sum(batch.lane == lane and batch.cursor is not None for batch in self.batches)


class Follower:
    """A lane that is followed by a task; `until` waits for what the test expects of the store."""

    def __init__(self, lane: Lane, store: MemoryStore) -> None:
        self.store = store
        self._lane = lane
        self._stored = asyncio.Condition()
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            async with aclosing(self._lane.batches()) as batches:
                async for batch in batches:
                    async with self._stored:
                        self.store.take(batch)
                        self._stored.notify_all()
        finally:
            async with self._stored:
                self._stored.notify_all()

    async def until(self, condition: Callable[[], bool], timeout_s: float = SOON_S) -> None:
        """Wait until `condition` holds after a batch; a failed lane raises its failure."""
        async with asyncio.timeout(timeout_s):
            while not (condition() or self._task.done()):
                async with self._stored:
                    # A lane's own state moves without a batch, so it is asked now and then.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stored.wait(), ASK_S)
        if self._task.done():
            self._task.result()

    async def polls(self, lane: str, more: int) -> None:
        """Wait for `more` complete polls, each begun after this call."""
        # The poll that is under way may have taken its snapshot already.
        goal = self.store.polls(lane) + more + 1
        await self.until(lambda: self.store.polls(lane) >= goal)

    async def kill(self) -> None:
        """End the task wherever it is."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()


@asynccontextmanager
async def following(lane: Lane, store: MemoryStore) -> AsyncIterator[Follower]:
    follower = Follower(lane, store)
    try:
        yield follower
    finally:
        await follower.kill()


@asynccontextmanager
async def opened(dsn: str, **options: Any) -> AsyncIterator[LogSource]:
    """The log side with a poll every 20 ms and a sweep round of a second, unless told otherwise."""
    settings: dict[str, Any] = {"poll_ms": 20, "sweep_round_s": 1.0, "late_poll_s": 0.1, **options}
    source = await LogSource.open(SourceOptions(dsn, **settings))
    try:
        yield source
    finally:
        await source.close()


async def drained(lane: Lane, store: MemoryStore, *, polls: int = 1) -> list[Batch]:
    """Follow a lane in this task for some complete polls; the batches it gave."""
    begun, wanted = len(store.batches), polls
    async with aclosing(lane.batches()) as batches:
        async for batch in batches:
            store.take(batch)
            wanted -= batch.cursor is not None
            if not wanted:
                break
    return store.batches[begun:]


class IdCursorTail:
    """The tail everybody writes first: `event_id > cursor`.  It loses rows."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self._cursor = -1
        self.keys: set[Key] = set()

    async def poll(self) -> None:
        rows = await self._conn.fetch(
            "SELECT execution_id, event_id FROM noetl.event WHERE event_id > $1 ORDER BY event_id",
            self._cursor,
        )
        self.keys |= {(row[0], row[1]) for row in rows}
        if rows:
            self._cursor = rows[-1][1]


async def log_keys(conn: Any) -> set[Key]:
    """Every key the table has now."""
    return {(row[0], row[1]) for row in await conn.fetch("SELECT execution_id, event_id FROM noetl.event")}
