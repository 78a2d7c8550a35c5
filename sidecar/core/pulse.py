"""A wait that has a bound is life: whoever watches a loop is told how long it may be silent.

The loop that is watched sets its listener once; whatever it awaits, however deep, says so around
every wait with a bound of its own: a statement with a deadline, a pause.  Without a listener, in a
one-shot command, nothing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

Listener = Callable[[float], None]
"""Told when a wait begins, with its bound in seconds, and with 0 when it ended."""

_LISTENER: Final[ContextVar[Listener | None]] = ContextVar("pulse", default=None)


def listen(listener: Listener) -> None:
    """From now on waits of this task, and of tasks that it starts, are told to `listener`."""
    _LISTENER.set(listener)


@contextmanager
def waiting(seconds: float) -> Iterator[None]:
    """What is awaited in here ends within so many seconds, well or not."""
    listener = _LISTENER.get()
    if listener is None:
        yield
        return
    listener(seconds)
    try:
        yield
    finally:
        listener(0.0)
