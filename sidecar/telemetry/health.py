"""Whether the process lives and whether it is ready, as plain state.

Alive means that every watched loop ticked lately: within three of its ticks, at least 30 s.
A loop that waits inside something with a bound of its own, a statement with a deadline or a pause,
is alive until that bound, and has its time after it.
A loop that stands still because the store is paused is alive: a restart would free no space.
Ready means that no reason against it stands; the reasons are shown to people.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

TICKS_MAX: Final = 3
SILENCE_MIN_S: Final = 30.0


class NotReady(StrEnum):
    """Why an answer from this sidecar is not to be relied on yet."""

    STARTING = "starting"
    CATCHING_UP = "catching up"
    PAUSED = "store paused"
    SOURCE_UNAVAILABLE = "source unavailable"
    STORE_UNAVAILABLE = "store unavailable"
    CONTROL_FAILED = "control failed"
    STOPPING = "stopping"


class Health:
    """Loops report, probes ask.  Starts as not ready: STARTING.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowed: dict[str, float] = {}
        self._alive_until: dict[str, float] = {}
        self._reasons: set[NotReady] = {NotReady.STARTING}

    def watch(self, loop: str, *, tick_seconds: float) -> None:
        """From now on `loop` has to tick; watching counts as its first tick."""
        self._allowed[loop] = max(TICKS_MAX * tick_seconds, SILENCE_MIN_S)
        self.ticked(loop)

    def ticked(self, loop: str) -> None:
        self.waits(loop, 0.0)

    def waits(self, loop: str, seconds: float) -> None:
        """`loop` moves, and may now be silent for so many seconds more; see `core.pulse`."""
        if (allowed := self._allowed.get(loop)) is not None:
            self._alive_until[loop] = self._clock() + seconds + allowed

    def unwatch(self, loop: str) -> None:
        """`loop` has ended as it should."""
        self._allowed.pop(loop, None)
        self._alive_until.pop(loop, None)

    def mark(self, reason: NotReady, stands: bool = True) -> None:
        """Set or clear one reason against readiness.  Clearing PAUSED counts as a tick of all."""
        if stands:
            self._reasons.add(reason)
            return
        if reason is NotReady.PAUSED and reason in self._reasons:
            for loop in self._allowed:
                self.ticked(loop)
        self._reasons.discard(reason)

    def clear(self, reason: NotReady) -> None:
        self.mark(reason, False)

    def silent(self) -> tuple[str, ...]:
        """Loops that have not ticked in time; none while the store is paused."""
        if NotReady.PAUSED in self._reasons:
            return ()
        now = self._clock()
        return tuple(sorted(loop for loop, until in self._alive_until.items() if now > until))

    def reasons(self) -> tuple[NotReady, ...]:
        """Why it is not ready, in the order of `NotReady`; empty: ready."""
        return tuple(reason for reason in NotReady if reason in self._reasons)
