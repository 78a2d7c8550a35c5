"""Say who holds the horizon back, when its age has passed a bound.

A held horizon loses nothing, but every poll reads more rows again; whoever holds it is mostly
somebody who has forgotten a transaction.  The same probe answers in `doctor`.  One line for
each culprit, again after a while, and one when the horizon moves on.
Source: spec 1.8 ("What pins H").
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from structlog.typing import FilteringBoundLogger

from sidecar.errors import SourceError
from sidecar.service.line import FollowedLane
from sidecar.source.pins import Pin, Pins

AGAIN_S: Final = 600.0
"""How soon the same culprit is named once more."""
UNSEEN: Final = "a session not visible to this role"
NOT_WATCHED: Final = "sweep"
"""Its partitions are polled once a round, so an age below that says nothing."""


class PinWatch:
    """`run` looks for ever, beside everything else.

    Args:
        ask: Who runs; asked only while the horizon is too old.
        bound_s: Age from which it is.
        every_s: Between two looks.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[Pins]],
        lanes: Sequence[FollowedLane],
        log: FilteringBoundLogger,
        *,
        bound_s: float,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._lanes = [lane for lane in lanes if lane.name != NOT_WATCHED]
        self._log = log
        self._bound_s = bound_s
        self._every_s = every_s
        self._clock = clock
        self._said: tuple[object, ...] | None = None
        self._again_at = 0.0

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Name the culprit, once."""
        age = max((lane.state.horizon_age_s for lane in self._lanes), default=0.0)
        if age < self._bound_s:
            if self._said is not None:
                self._log.info("horizon_moves_on")
                self._said = None
            return
        try:
            pins = await self._ask()
        except SourceError as error:
            self._say((str(error),), age, "it cannot be asked", hint=error.hint)
            return
        pin = pins.culprit
        if pin is not None:
            self._name(pin, age)
        elif pins.held:
            self._say((UNSEEN,), age, UNSEEN, hint="GRANT pg_read_all_stats to the role")

    def _name(self, pin: Pin, age: float) -> None:
        self._say(
            (pin.xid, pin.pid, pin.gid),
            age,
            "a session" if pin.gid is None else "a prepared transaction",
            hint=pin.remedy,
            pid=pin.pid,
            gid=pin.gid,
            application=pin.application,
            role=pin.role,
            database=pin.database,
            state=pin.state,
            open_s=None if pin.age_s is None else round(pin.age_s, 1),
        )

    def _say(self, culprit: tuple[object, ...], age: float, by: str, **more: object) -> None:
        now = self._clock()
        if culprit == self._said and now < self._again_at:
            return
        self._said, self._again_at = culprit, now + AGAIN_S
        self._log.warning("horizon_held", age_s=round(age, 1), by=by, **more)
