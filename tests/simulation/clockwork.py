"""A loop whose time is a number: nobody waits, no thread runs, and one seed gives one run.

When nothing is ready the time jumps to the next timer.  Everything that waits therefore waits
in this time, and the order of all steps follows from the times that a seed gave them.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(AssertionError):
    """Everything waits for something that nobody will bring about."""


class _NoSockets(selectors.SelectSelector):
    """Waiting for the network is waiting for the next timer: there is no network."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing is ready and no timer runs")
        self.now += max(0.0, timeout)
        return []


class ClockworkLoop(asyncio.SelectorEventLoop):
    """Seconds since the run began."""

    def __init__(self) -> None:
        self._sockets = _NoSockets()
        super().__init__(self._sockets)

    def time(self) -> float:
        return self._sockets.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in no time."""
    with asyncio.Runner(loop_factory=ClockworkLoop) as runner:
        return runner.run(main)


class Times:
    """What replaces the module `time` where the program looks at a clock on the wall."""

    @staticmethod
    def time() -> float:
        return 1_700_000_000.0 + asyncio.get_running_loop().time()

    @staticmethod
    def monotonic() -> float:
        return asyncio.get_running_loop().time()


def microseconds() -> int:
    """The wall clock, microseconds since 1970."""
    return int(Times.time() * 1_000_000)
