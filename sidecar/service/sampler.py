"""The sampler of the root invariant: a loop of its own that slows nothing and ends nothing.

It asks again after a pause that is long beside what the question costs.  A sample that failed leaves
the former values and their time: an old number with its age is shown, never a healthy zero.
Source: spec 3.8, 8.5 I34.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final, Protocol

from sidecar.core.roots import Roots
from sidecar.errors import SourceError
from sidecar.service.told import Instruments

EVERY_S: Final = 300.0
RETRY_S: Final = 30.0
PAUSES: Final = 20
"""A sample that took t seconds is followed by a pause of at least PAUSES x t."""


class Reader(Protocol):
    """The log, as far as the sampler needs it."""

    @property
    def window_h(self) -> float: ...

    async def read(self) -> Roots:
        """One sample.

        Raises:
            SourceError: there is none.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sampled:
    """The last good sample.  `at`: seconds since 1970 UTC; 0: never."""

    window_h: float
    at: float = 0.0
    roots: Roots = field(default_factory=Roots)


class Sampler:
    """Runs until cancelled."""

    def __init__(
        self, reader: Reader, instruments: Instruments, *, every_s: float = EVERY_S, retry_s: float = RETRY_S
    ) -> None:
        self._reader = reader
        self._metrics = instruments.metrics
        self._log = instruments.log
        self._every_s = every_s
        self._retry_s = retry_s
        self.latest = Sampled(reader.window_h)

    async def run(self) -> None:
        """Sample without end; a log that cannot be asked is told once and asked again."""
        said = ""
        while True:
            began = time.monotonic()
            least = self._every_s
            try:
                roots = await self._reader.read()
            except SourceError as error:
                if said != str(error):
                    self._log.warning("invariant_not_sampled", reason=str(error), hint=error.hint)
                said, least = str(error), self._retry_s
            else:
                self._sampled(roots)
                said = ""
            await asyncio.sleep(max(least, PAUSES * (time.monotonic() - began)))

    def _sampled(self, roots: Roots) -> None:
        self.latest = Sampled(self._reader.window_h, time.time(), roots)
        self._metrics.root_invariant(roots.counts, at=self.latest.at)
