"""The running line: lanes into the feed, ticks of the comparator, pauses and retries.

Each lane is followed by a loop of its own, the comparator by another; a slow comparator never
slows a lane.  A failure of Postgres or a full disk pauses the loop that met it and is told to
people; everything else ends the process, which starts again from the store's cursors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from sidecar.certified import Certified
from sidecar.comparator.audit import Audit
from sidecar.comparator.loop import Comparator
from sidecar.comparator.report import Judged
from sidecar.core import pulse
from sidecar.core.certificate import MAX_CONSECUTIVE_SKIPS
from sidecar.core.ports import Batch, Lane
from sidecar.errors import SourceError, SourceReplaced, StoreBusy, StoreFull
from sidecar.feed import Feed, FeedReport
from sidecar.service.replicas import Replica, replicate
from sidecar.service.told import Instruments, Progress, Teller
from sidecar.telemetry.health import NotReady

LATE_LOOKS_EVERY_S: Final = 0.5
RETRY_PAUSE_MIN_S: Final = 0.2
RETRY_PAUSE_MAX_S: Final = 10.0


class LaneState(Protocol):
    """A lane as telemetry sees it."""

    @property
    def caught_up(self) -> bool:
        """Whether everything that stood in the table at the start has been handed over."""
        ...

    @property
    def horizon_age_s(self) -> float:
        """Seconds since this lane's horizon last advanced, Postgres's clock."""
        ...


class FollowedLane(Lane, Protocol):
    """A lane with its state."""

    @property
    def state(self) -> LaneState: ...


class Dropped(Protocol):
    """What one step of retention let go of."""

    @property
    def executions(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def pages(self) -> int:
        """Pages that went back to the disk."""
        ...


@dataclass(frozen=True, slots=True)
class Polled:
    """The last stored poll of a lane.

    `at`: seconds of the monotonic clock.  `lag_s`: the longest time from `ingest_time` to stored
    in the last batch that had rows, None before one.
    """

    at: float
    lag_s: float | None


class Line:
    """Runs until cancelled.

    Args:
        gauges: Called once a tick; reads sizes and coverage from the store.
        replicas: In the order of their indexes.
        retention: Called once a tick; lets go of a few partitions whose log is gone.
        ticked: Called after every tick of the comparator.
        judged: Called with every recorded verdict.
        beside: Further loops; whatever happens to one is its own and stops nothing else.
        audit: Compares the whole history, step by step.
        tick_s: Seconds between the comparator's ticks.
    """

    def __init__(
        self,
        lanes: Sequence[FollowedLane],
        feed: Feed,
        comparator: Comparator | None,
        gauges: Callable[[], Awaitable[None]],
        instruments: Instruments,
        *,
        tick_s: float,
        replicas: Sequence[Replica] = (),
        retention: Callable[[], Awaitable[Dropped]] | None = None,
        ticked: Callable[[], None] = lambda: None,
        judged: Callable[[Judged], None] = lambda judged: None,
        beside: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
        audit: Audit | None = None,
    ) -> None:
        self._ticked = ticked
        self._teller = Teller(instruments, judged)
        self._instruments = instruments
        self._beside = beside
        self._replicas = replicas
        self._audit = audit
        self._retention = retention
        self.lanes = lanes
        self._feed = feed
        self._comparator = comparator
        self._gauges = gauges
        self._metrics = instruments.metrics
        self._health = instruments.health
        self._log = instruments.log
        self._tick_s = tick_s
        self._troubled: dict[str, NotReady] = {}
        self._said: dict[str, str] = {}
        self.first_poll = asyncio.Event()
        """Set when the first batch with its cursor is stored."""
        self.polls: dict[str, Polled] = {}
        """By lane."""
        self.looks = 0
        """How often the gauges were measured."""
        self.progress = Progress()
        """Moves with every stored batch, every finished tick and every look of the gauges."""

    @property
    def certified(self) -> Certified:
        """Where the state of an execution is asked for."""
        return self._feed.certified

    async def run(self) -> None:
        """Follow and judge.

        Raises:
            ExceptionGroup: of what ended a loop, as SidecarError where it is somebody's fault.
        """
        self._health.mark(NotReady.CATCHING_UP)
        self._health.clear(NotReady.STARTING)
        async with asyncio.TaskGroup() as loops:
            for lane in self.lanes:
                loops.create_task(self._guarded(lane.name, partial(self._follow, lane)))
            loops.create_task(self._guarded("gauges", self._measure))
            if self._comparator is not None:
                loops.create_task(self._guarded("comparator", self._judge))
            if self._retention is not None:
                loops.create_task(self._guarded("retention", partial(self._retain, self._retention)))
            if self._audit is not None:
                loops.create_task(self._guarded("audit", partial(self._walk, self._audit)))
            for index, replica in enumerate(self._replicas):
                loops.create_task(replicate(index, replica, self._instruments, self.progress))
            for loop in self._beside:
                loops.create_task(loop())

    async def _guarded(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run one loop for ever; pause it where trying again can help."""
        self._health.watch(name, tick_seconds=self._tick_s)
        pulse.listen(partial(self._health.waits, name))
        pause = RETRY_PAUSE_MIN_S
        while True:
            began = time.monotonic()
            try:
                await work()
            except SourceReplaced:
                raise
            except SourceError as error:
                self._trouble(name, NotReady.SOURCE_UNAVAILABLE, error)
            except (StoreFull, StoreBusy) as error:
                self._trouble(name, NotReady.PAUSED, error)
            if time.monotonic() - began > RETRY_PAUSE_MAX_S:
                pause = RETRY_PAUSE_MIN_S
            with pulse.waiting(pause):
                await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_PAUSE_MAX_S)

    async def _follow(self, lane: FollowedLane) -> None:
        while lane.name == "late" and not self._swept():
            # At a first start all lie in both ranges; two lanes that read the same logs whole
            # only hold each other up, and the sweep has to read them anyway.
            self._health.ticked(lane.name)
            await asyncio.sleep(min(self._tick_s, LATE_LOOKS_EVERY_S))
        async with aclosing(lane.batches()) as batches:
            async for batch in batches:
                self._stored(lane, batch, await self._feed.take(batch, partial(self._teller.fed, lane.name)))

    def _swept(self) -> bool:
        return all(lane.state.caught_up for lane in self.lanes if lane.name == "sweep")

    def _stored(self, lane: FollowedLane, batch: Batch, report: FeedReport) -> None:
        self._metrics.polled(lane.name, at=time.time(), horizon_age=lane.state.horizon_age_s)
        before = self.polls.get(lane.name)
        kept = None if before is None else before.lag_s
        self.polls[lane.name] = Polled(time.monotonic(), max(report.lags) if report.lags else kept)
        self._well(lane.name)
        if batch.cursor is not None:
            self.first_poll.set()
        self._health.mark(NotReady.CATCHING_UP, not all(each.state.caught_up for each in self.lanes))
        self.progress.move()

    async def _judge(self) -> None:
        while not self.first_poll.is_set():
            # It may be long until there is one: a log that is away, a lane that catches up.
            with pulse.waiting(self._tick_s), suppress(TimeoutError):
                async with asyncio.timeout(self._tick_s):
                    await self.first_poll.wait()
        before: float | None = None
        while self._comparator is not None:
            began = time.monotonic()
            if before is not None:
                self._metrics.revalidation_window(MAX_CONSECUTIVE_SKIPS * (began - before))
            before = began
            await self._comparator.tick(self._teller.judged)
            self._metrics.tick(time.monotonic() - began, at=time.time())
            self._well("comparator")
            self._ticked()
            self.progress.move()
            await asyncio.sleep(self._tick_s)

    async def _measure(self) -> None:
        while True:
            for index, replica in enumerate(self._replicas):
                self._metrics.replica(index, lag=replica.lag)
            await self._gauges()
            self.looks += 1
            self._well("gauges")
            self.progress.move()
            await asyncio.sleep(self._tick_s)

    async def _retain(self, step: Callable[[], Awaitable[Dropped]]) -> None:
        while True:
            dropped = await step()
            self._metrics.dropped(dropped.executions)
            if dropped.executions:
                self._log.info(
                    "partitions_dropped",
                    executions=dropped.executions,
                    rows=dropped.rows,
                    pages_freed=dropped.pages,
                )
            self._well("retention")
            self.progress.move()
            await asyncio.sleep(self._tick_s)

    async def _walk(self, audit: Audit) -> None:
        while True:
            if not self._swept() or self._teller.controls_failed:
                # What the catch-up has not stored yet is no difference; and while a control fails nobody
                # gives a verdict.
                await self._rest("audit", min(self._tick_s, LATE_LOOKS_EVERY_S))
                continue
            report = await audit.step()
            self._teller.audited(report)
            self._well("audit")
            self.progress.move()
            await self._rest("audit", report.rest_s)

    async def _rest(self, name: str, seconds: float) -> None:
        """Wait, and tick meanwhile: a loop that rests is alive."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._health.ticked(name)
            await asyncio.sleep(min(left, self._tick_s))

    def _trouble(self, name: str, reason: NotReady, error: SourceError | StoreFull | StoreBusy) -> None:
        if self._said.get(name) != str(error):
            self._log.warning("loop_paused", loop=name, reason=str(error), hint=error.hint)
        self._troubled[name], self._said[name] = reason, str(error)
        self._show_troubles()

    def _well(self, name: str) -> None:
        self._health.ticked(name)
        self._said.pop(name, None)
        if self._troubled.pop(name, None) is not None:
            self._log.info("loop_resumed", loop=name)
            self._show_troubles()

    def _show_troubles(self) -> None:
        standing = set(self._troubled.values())
        for reason in (NotReady.SOURCE_UNAVAILABLE, NotReady.PAUSED):
            self._health.mark(reason, reason in standing)
        self._metrics.paused(NotReady.PAUSED in standing)
