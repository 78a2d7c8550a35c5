"""How things stand: one look at a store, as gauges, the API and `status` show it.

Values are read from the store alone, of a running sidecar or of a file.  A window that took long to
count is counted less often, so that looking never costs more than a twentieth of the time.
Source: spec 3.6, 3.8; design 4.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.core.acceptance import OPEN, Acceptance, Controls, Floors, Run, accept
from sidecar.core.coverage import Coverage, Observation
from sidecar.core.due import SECOND
from sidecar.store import StoreReader
from sidecar.store.handover import Filled, filled
from sidecar.store.overview import coverage, divergences, due_counts, oldest, open_findings
from sidecar.store.runtime import live_workers
from sidecar.store.sizes import Sizes

WINDOWS_S: Final = {"5m": 300, "1h": 3600, "24h": 86_400}
DAY: Final = "24h"
START: Final = "start"
PAUSES: Final = 20
CHEAP_S: Final = 0.05
"""A window that took longer, t seconds, is not counted again for PAUSES x t."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One look.

    `at`: microseconds of the store's clock.  `coverage`: by window.  `findings_open`: by verdict, none at 0.
    `divergences`: executions by kind.  `due`: entries of the work list by reason.  `pending_s`,
    `dangling_s`: age of the oldest open question and of the oldest missing predecessor; 0: none.
    `live_workers`: registered in the record of the fleet.  `filled`: as which shard the store was.
    """

    at: int
    coverage: Mapping[str, Coverage]
    observation: Observation
    acceptance: Acceptance
    controls: Controls
    floors: Floors
    findings_open: Mapping[str, int]
    divergences: Mapping[str, int]
    due: Mapping[str, int]
    pending_s: float
    dangling_s: float
    size: Sizes
    live_workers: int
    filled: Filled

    @property
    def elapsed_s(self) -> float:
        return self.observation.elapsed / SECOND


class Looker:
    """Looks at one store again and again.

    Args:
        settle: Microseconds after which an execution without a verdict is `unjudged`.
        began: The window `start` begins here while nothing was observed; store's clock.
    """

    def __init__(self, store: StoreReader, *, floors: Floors, settle: int, began: int) -> None:
        self._store = store
        self._floors = floors
        self._settle = settle
        self._began = began
        self._coverage: dict[str, Coverage] = {}
        self._not_before: dict[str, float] = {}

    async def look(
        self, now: int, observation: Observation, controls: Controls, *, watched: bool = True
    ) -> Standing:
        """One look.

        Args:
            now: Microseconds of the store's clock.
            watched: Somebody judges now and can be relied on, as far as is known.

        Raises:
            StoreError: the store cannot be read.
        """
        since = self._began if observation.since is None else observation.since
        for window, seconds in WINDOWS_S.items():
            await self._cover(window, now - seconds * SECOND, now)
        await self._cover(START, since, now)
        found = await open_findings(self._store)
        start = self._coverage[START]
        # Before the first day is over the last 24 hours hold what nobody was there to watch.
        day = start if since > now - WINDOWS_S[DAY] * SECOND else self._coverage[DAY]
        alarms = sum(found.get(verdict, 0) for verdict in OPEN)
        elapsed, rejoining = observation.elapsed / SECOND, self._store.rejoining
        run = Run(alarms, day, start, elapsed, controls, watched, rejoining)
        pending, dangling = await oldest(self._store)
        return Standing(
            at=now,
            coverage=dict(self._coverage),
            observation=observation,
            acceptance=accept(run, self._floors),
            controls=controls,
            floors=self._floors,
            findings_open=found,
            divergences=await divergences(self._store),
            due=await due_counts(self._store),
            pending_s=_age(pending, now),
            dangling_s=_age(dangling, now),
            size=await self._store.sizes(),
            live_workers=len(await live_workers(self._store)),
            filled=await filled(self._store),
        )

    async def _cover(self, window: str, since: int, now: int) -> None:
        began = time.monotonic()
        if began < self._not_before.get(window, 0.0):
            return
        unjudged_before = now - self._settle
        self._coverage[window] = await coverage(self._store, since=since, unjudged_before=unjudged_before)
        ended = time.monotonic()
        took = ended - began
        self._not_before[window] = ended + PAUSES * took if took > CHEAP_S else ended


def _age(since: int | None, now: int) -> float:
    return 0.0 if since is None else max(0.0, (now - since) / SECOND)
