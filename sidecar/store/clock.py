"""Decide what time it is for the store: never earlier than anything the store has seen.

Revocations and log reads are ordered by these times, so a wall clock that is set back must
not put a new read before an old revocation.  The wall clock is asked once, at the start;
after that only the monotonic clock counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def wall_us() -> int:
    return time.time_ns() // 1000


def monotonic_us() -> int:
    return time.monotonic_ns() // 1000


class StoreClock:
    """Microseconds since 1970, strictly increasing.

    Args:
        floor: The greatest time already in the store, 0 for none; every answer is above it.
    """

    def __init__(
        self,
        floor: int = 0,
        *,
        wall: Callable[[], int] = wall_us,
        monotonic: Callable[[], int] = monotonic_us,
    ) -> None:
        self._monotonic = monotonic
        self._offset = max(wall(), floor + 1) - monotonic()
        self._last = floor

    @property
    def last(self) -> int:
        """The latest answer given; at first the floor."""
        return self._last

    def now(self) -> int:
        """The next instant: two calls never get the same one."""
        self._last = max(self._last + 1, self._monotonic() + self._offset)
        return self._last
