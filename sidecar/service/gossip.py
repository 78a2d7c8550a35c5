"""The loop between gossip and the record of the fleet.

What gossip tells is recorded in small transactions with a pause between them, so a storm of it
holds up neither the store's writer nor the loop for long: what comes faster than it is recorded is
lost by the source, which then tells the whole view.  Whatever happens here slows nothing else and
ends nothing.  Source: spec 7.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Protocol

from sidecar.errors import GossipError, StoreError
from sidecar.fleet.notification import Notification, Source
from sidecar.fleet.sink import GossipSink, Refused
from sidecar.service.told import Instruments

BATCH: Final = 64
"""Notifications of one transaction."""
PACE_S: Final = 0.1
"""Pause after each."""
RETRY_MIN_S: Final = 0.5
RETRY_MAX_S: Final = 30.0
SAY_EVERY_S: Final = 60.0
"""How often the log tells of refusals, at most."""


class Joined(Source, Protocol):
    """A source with what is counted of it."""

    @property
    def lost(self) -> int:
        """Events that nobody read in time, since it began."""
        ...

    def refused_frames(self) -> int:
        """Frames since the last call that were not ours."""
        ...


Connect = Callable[[], AbstractAsyncContextManager[Joined]]


class GossipWatch:
    """`run` takes part without end, beside everything else.

    Args:
        connect: Begins to take part; every time anew after an end.
        alone: Lets go of whom an earlier part saw.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        sink: GossipSink,
        connect: Connect,
        alone: Callable[[], Awaitable[int]],
        instruments: Instruments,
        *,
        pace_s: float = PACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._connect = connect
        self._alone = alone
        self._metrics = instruments.metrics
        self._log = instruments.log
        self._pace_s = pace_s
        self._clock = clock
        self._say_at = 0.0
        self._unsaid = 0
        self.up = False
        """Whether this node takes part now."""

    async def run(self) -> None:
        pause, said = RETRY_MIN_S, ""
        while True:
            began = self._clock()
            try:
                await self._kept(self._alone)
                async with self._connect() as source:
                    said = ""
                    await self._follow(source)
            except GossipError as error:
                if said != str(error):
                    self._log.warning("gossip_down", reason=str(error))
                said = str(error)
            finally:
                self._is_up(False)
            if self._clock() - began > RETRY_MAX_S:
                pause = RETRY_MIN_S
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_S)

    async def _follow(self, source: Joined) -> None:
        self._is_up(True)
        self._log.info("gossip_up")
        lost = 0
        while True:
            told = await source.take(BATCH)
            self._metrics.gossip_frames_refused(source.refused_frames())
            self._metrics.gossip_lost(source.lost - lost)
            lost = source.lost
            if told:
                await self._kept(partial(self._record, told))
                await asyncio.sleep(self._pace_s)

    async def _record(self, told: Sequence[Notification]) -> None:
        results = await self._sink.apply(told)
        for each, result in zip(told, results, strict=True):
            self._metrics.gossiped(each.label, result.label)
            if isinstance(result, Refused):
                self._refused(result)

    async def _kept(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do it once it can be done; what is told meanwhile waits in the source."""
        pause, said = RETRY_MIN_S, ""
        while True:
            try:
                await work()
            except StoreError as error:
                if said != str(error):
                    self._log.warning("gossip_not_recorded", reason=str(error), hint=error.hint)
                said = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MAX_S)
            else:
                return

    def _refused(self, result: Refused) -> None:
        self._unsaid += 1
        if self._clock() >= self._say_at:
            self._log.warning("gossip_refused", reason=result.why, times=self._unsaid)
            self._unsaid, self._say_at = 0, self._clock() + SAY_EVERY_S

    def _is_up(self, up: bool) -> None:
        self.up = up
        self._metrics.gossip_up(up)
