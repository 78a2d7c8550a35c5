"""A batch of a lane, whole: taken apart, the logs it needs read, and stored step by step.

A batch's rows, their coverage, the held work and the lane's horizon commit together, so a
crash anywhere re-reads, never loses and never invents authority.  Log reads come before the
transaction that needs them.  Source: spec 2.12.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice

from sidecar.certified import Certified
from sidecar.core import pulse
from sidecar.core.due import Windows
from sidecar.core.horizon import TailRow
from sidecar.core.ports import Batch, BoundedReader, ExecutionLog, Store
from sidecar.core.settle import Limits
from sidecar.errors import PartitionUnreadable
from sidecar.feed import reads
from sidecar.feed.reads import Reads
from sidecar.feed.report import FeedReport, lane_label
from sidecar.feed.settling import Settling
from sidecar.feed.step import Step
from sidecar.feed.write import Write


@dataclass(frozen=True, slots=True)
class _Part:
    """What one transaction takes of a batch."""

    rows: Mapping[int, tuple[TailRow, ...]]
    logs: tuple[ExecutionLog, ...]


class Feed:
    """Stores batches, one at a time.

    Args:
        store: The chain store.
        reader: Complete log reads, for executions seen for the first time.
        comparing: A comparator works off the due list.  Without one the feed reads the logs
            of flagged executions itself and keeps entries only for what is not stored.
        certified: Observes what is stored; None: nobody does.
    """

    def __init__(
        self,
        store: Store,
        reader: BoundedReader,
        *,
        windows: Windows,
        limits: Limits,
        comparing: bool,
        certified: Certified | None = None,
    ) -> None:
        self.certified = certified or Certified(store.clock, on=False)
        self.settling = Settling(store, self.certified, limits)
        self._store = store
        self._windows = windows
        self._comparing = comparing
        self._reads = Reads(store, reader, self.settling.held_back, windows, comparing=comparing)
        self._one_batch = asyncio.Lock()

    async def take(self, batch: Batch, tell: Callable[[FeedReport], None] = lambda _: None) -> FeedReport:
        """Store a batch; when this returns, the batch and its cursor are durable.

        Args:
            tell: Called with what each transaction came to: what is stored is known when the batch
                comes again and counts no more, so it is told also when the rest fails.

        Raises:
            SourceError: a first log read failed, as `Reads.first`; what was stored before it stands,
                and the cursor has not moved.
            StoreError: as `Store.transact`; the cursor has not moved.
        """
        async with self._turn():
            began = self._store.clock.now()
            report = FeedReport(lane_label(batch.lane))
            parts = list(self._parts(batch))

            def stored(step: FeedReport) -> None:
                waited = (self._store.clock.now() - began) / 1e6
                step.lags = [lag + waited for lag in step.lags]
                report.add(step)
                tell(step)

            for number, part in enumerate(parts, start=1):
                await self._take_part(batch, part, stored, last=number == len(parts))
            return report

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        # However long it takes: who has the turn is watched himself.
        with pulse.waiting(math.inf):
            await self._one_batch.acquire()
        try:
            yield
        finally:
            self._one_batch.release()

    async def _take_part(
        self, batch: Batch, part: _Part, stored: Callable[[FeedReport], None], *, last: bool
    ) -> None:
        """Store a part; in several transactions where its log reads are too large for one."""
        wanted = await self._reads.wanted(part.rows, part.logs)
        waiting = set(wanted)
        rows = {i: group for i, group in part.rows.items() if i not in waiting}
        delivered = part.logs
        while True:
            read, left = await self._reads.first(wanted) if wanted else ([], [])
            done = (*(log.execution_id for log in read), *left)
            wanted = wanted[len(done) :]
            rows |= {i: part.rows.get(i, ()) for i in done}
            logs = {log.execution_id: log for log in (*delivered, *read)}
            now = self._store.clock.now()
            rows = {i: group for i, group in rows.items() if group}
            step = Step(batch, rows, logs, delivered, last and not wanted, now, left=tuple(left))
            stored(await self._written(step))
            if not wanted:
                return
            rows, delivered = {}, ()

    async def _written(self, step: Step) -> FeedReport:
        """Store a step; executions whose stored rows cannot be read are left to the comparator."""
        try:
            return await self._store.transact(self._write(step))
        except PartitionUnreadable:
            executions = (*step.rows, *(i for i in step.logs if i not in step.rows))
            unreadable = [i for i in executions if not await self._is_readable(i)]
            if not unreadable:
                raise
            return await self._store.transact(self._write(step.without(unreadable)))

    def _write(self, step: Step) -> Write:
        return Write(self.settling, self._windows, self._comparing, step)

    async def _is_readable(self, execution_id: int) -> bool:
        try:
            await self._store.transact(lambda unit: unit.chain(execution_id))
        except PartitionUnreadable:
            return False
        return True

    def _parts(self, batch: Batch) -> Iterator[_Part]:
        groups: dict[int, list[TailRow]] = {}
        for row in self.settling.held_back.news(batch.rows):
            groups.setdefault(row.event.execution_id, []).append(row)
        executions = iter(groups)
        yield _Part(_some(groups, islice(executions, reads.FIRST_SIGHTS_MAX)), batch.logs)
        while rows := _some(groups, islice(executions, reads.FIRST_SIGHTS_MAX)):
            yield _Part(rows, ())


def _some(groups: Mapping[int, list[TailRow]], executions: Iterable[int]) -> dict[int, tuple[TailRow, ...]]:
    return {i: tuple(groups[i]) for i in executions}
