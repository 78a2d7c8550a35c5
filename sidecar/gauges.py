"""What is read from the store once a tick and shown: the two numbers, what waits, how big it is."""

from __future__ import annotations

import asyncio
from typing import Final

from sidecar.core.due import SECOND
from sidecar.line import Instruments
from sidecar.settings import Settings
from sidecar.store import ChainStore
from sidecar.store.overview import coverage, due_counts, oldest, open_findings, sizes
from sidecar.telemetry.wal import WalWatch

WINDOWS_S: Final = {"5m": 300, "1h": 3600, "24h": 86_400}


class Gauges:
    """`measure` is called once a tick; elapsed time counts from the making."""

    def __init__(self, store: ChainStore, settings: Settings, instruments: Instruments) -> None:
        self._store = store
        self._metrics = instruments.metrics
        self._wal = WalWatch(instruments.log)
        self._settle = settings.windows.settle
        self._began = store.clock.now()

    async def measure(self) -> None:
        now = self._store.clock.now()
        metrics = self._metrics
        for window, seconds in WINDOWS_S.items():
            await self._cover(window, now - seconds * SECOND, now)
        await self._cover("start", self._began, now)
        metrics.observed((now - self._began) / SECOND)
        metrics.due(await due_counts(self._store))
        metrics.findings_open(await open_findings(self._store))
        pending, dangling = await oldest(self._store)
        metrics.oldest(pending_seconds=_age(pending, now), dangling_seconds=_age(dangling, now))
        size = await asyncio.to_thread(sizes, self._store.path)
        metrics.store_size(used=size.used, free=size.free, wal=size.wal)
        self._wal.saw(size.wal)

    async def _cover(self, window: str, since: int, now: int) -> None:
        found = await coverage(self._store, since=since, unjudged_before=now - self._settle)
        self._metrics.coverage(
            window,
            covered_executions=found.covered_executions,
            eligible_executions=found.eligible_executions,
            covered_events=found.covered_events,
            eligible_events=found.eligible_events,
            uncovered=found.uncovered,
        )


def _age(since: int | None, now: int) -> float:
    return 0.0 if since is None else max(0.0, (now - since) / SECOND)
