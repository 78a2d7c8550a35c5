"""What is read from the store once a tick and shown: the two numbers, what waits, how big it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sidecar.certified import Certified
from sidecar.core.acceptance import Controls, Floors
from sidecar.core.coverage import Coverage
from sidecar.core.due import SECOND
from sidecar.service.standing import Looker, Standing
from sidecar.service.told import Instruments
from sidecar.settings import Reading, Settings, micros
from sidecar.store import ChainStore
from sidecar.store.observation import load, save
from sidecar.store.overview import prepare
from sidecar.telemetry.health import SILENCE_MIN_S, TICKS_MAX
from sidecar.telemetry.wal import WalWatch

SAVE_EVERY: Final = 10 * SECOND
"""Microseconds of observation that a crash may forget."""


def floors(settings: Settings) -> Floors:
    return Floors(settings.accept_coverage, settings.accept_executions, settings.accept_hours * 3600)


class Gauges:
    """`measure` is called once a tick, `ticked` after every tick of the comparator.

    Make it with `begun`: observation goes on where the store's last sidecar left it.

    Args:
        controls: The totals of the self-controls.
        certified: Whose decisions are shown; None: nobody's.
    """

    def __init__(
        self,
        store: ChainStore,
        settings: Settings,
        instruments: Instruments,
        *,
        controls: Callable[[], Controls] = Controls,
        certified: Certified | None = None,
    ) -> None:
        self._store = store
        self._certified = certified
        self._metrics = instruments.metrics
        self._health = instruments.health
        self._wal = WalWatch(instruments.log)
        self.controls = controls
        self._comparing = settings.compare is Reading.ON
        self._gap_max = micros(max(TICKS_MAX * settings.tick_s, SILENCE_MIN_S))
        self._began = store.clock.now()
        self._looker = Looker(
            store, floors=floors(settings), settle=settings.windows.settle, began=self._began
        )
        self.standing: Standing | None = None
        """The last look, None before the first one."""

    async def begun(self) -> Gauges:
        """Bring the store's indexes and its record of the observation in order.

        Raises:
            StoreError: the store cannot be used, or the record is none.
        """
        await prepare(self._store)
        self._observation = await load(self._store)
        if self._comparing and self._observation.since is None:
            self._observation = replace(self._observation, since=self._began)
            await save(self._store, self._observation)
        self._saved = self._observation.elapsed
        return self

    def ticked(self) -> None:
        """A tick of the comparator ended; it was observation if nothing stands against readiness."""
        good = not self._health.reasons()
        now = self._store.clock.now()
        self._observation = self._observation.ticked(now, good=good, gap_max=self._gap_max)

    async def measure(self) -> None:
        """Look, export, and keep what was observed.

        Raises:
            StoreError: the store cannot be read or written.
        """
        now, observation = self._store.clock.now(), self._observation
        watched = observation.goes_on(now, gap_max=self._gap_max) and not self._health.reasons()
        found = await self._looker.look(now, observation, self.controls(), watched=watched)
        self.standing = found
        metrics = self._metrics
        for window, each in found.coverage.items():
            self._cover(window, each)
        metrics.observed(found.elapsed_s)
        metrics.acceptance(found.acceptance.accepted, found.acceptance.reasons)
        metrics.findings_open(found.findings_open)
        metrics.due(found.due)
        metrics.oldest(pending_seconds=found.pending_s, dangling_seconds=found.dangling_s)
        metrics.store_size(used=found.size.used, free=found.size.free, wal=found.size.wal)
        metrics.fleet(found.live_workers)
        self._wal.saw(found.size.wal)
        if self._certified is not None:
            metrics.certified(self._certified.take(), tracked=self._certified.tracked)
        if found.observation.elapsed - self._saved >= SAVE_EVERY:
            await save(self._store, found.observation)
            self._saved = found.observation.elapsed

    def _cover(self, window: str, found: Coverage) -> None:
        self._metrics.coverage(
            window,
            covered_executions=found.covered_executions,
            eligible_executions=found.eligible_executions,
            covered_events=found.covered_events,
            eligible_events=found.eligible_events,
            rejoined_executions=found.rejoined_executions,
            rejoined_events=found.rejoined_events,
            uncovered=found.uncovered,
        )
