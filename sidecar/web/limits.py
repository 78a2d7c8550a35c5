"""How often one client may ask for what costs something: a bucket of tries each, refilled evenly."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from starlette.requests import Request

from sidecar.web.problem import Problem, Refusal

CLIENTS_MAX: Final = 1024


class Rate:
    """At most `burst` at once and one more every `every_s` seconds, for each client address.

    Behind a proxy all clients are one.  The client that has been silent longest is forgotten
    when there are many.
    """

    def __init__(self, burst: int, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._every_s = every_s
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def spend(self, request: Request) -> None:
        """Take one try.

        Raises:
            Problem: none is left; 429 with the seconds until the next one.
        """
        client = request.client.host if request.client is not None else ""
        now = self._clock()
        full_at = max(self._full_at.pop(client, now), now) + self._every_s
        wait = full_at - now - self._burst * self._every_s
        if wait > 0:
            self._full_at[client] = full_at - self._every_s
            retry = {"retry-after": str(math.ceil(wait))}
            raise Problem(429, Refusal.RATE_LIMITED, "too many requests of this kind", headers=retry)
        self._full_at[client] = full_at
        while len(self._full_at) > CLIENTS_MAX:
            del self._full_at[next(iter(self._full_at))]
