"""Keep a loop to its share of the time: what it worked, it rests a multiple of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """Accounts for time, and never sleeps itself.

    Args:
        share: The greatest part of the time that work may take, above 0 and at most 1.
        seconds: A clock that only moves forward.
    """

    share: float
    seconds: Callable[[], float]
    _worked: float = field(default=0.0, init=False)

    @contextmanager
    def working(self) -> Iterator[None]:
        """What runs in here is work, also when it fails."""
        began = self.seconds()
        try:
            yield
        finally:
            self._worked += self.seconds() - began

    def rest(self) -> float:
        """The seconds to rest for the work since the last call."""
        worked, self._worked = self._worked, 0.0
        return worked * (1 / self.share - 1)
