"""A wire that breaks in the middle of whatever passes, or goes dead for a while, under a running sidecar."""

from __future__ import annotations

import random
from collections.abc import Set as AbstractSet
from typing import Final

from sidecar.telemetry.health import NotReady
from tests.support.proxy import Proxy
from tests.support.service import Service
from tests.support.waiting import until

PATIENCE_S: Final = 60.0
ANSWER_BYTES: Final = 40_000
"""More than the answers of a poll, a peek or a unit of work, so that every part of one is cut."""


async def again_and_again(
    way: Proxy, sidecar: Service, lane: str, faults: int, *, noticed_by: AbstractSet[NotReady]
) -> None:
    """Fault after fault, by chance of either kind: each is noticed, and `lane` goes on by itself."""
    moments = random.Random(faults)

    async def goes_on() -> None:
        before = _stored_at(sidecar, lane)
        await until(lambda: _stored_at(sidecar, lane) > before, within_s=PATIENCE_S)

    for _ in range(faults):
        await goes_on()
        if moments.random() < 0.5:
            cuts = way.cuts
            way.cut_once_after(moments.randrange(ANSWER_BYTES))
            await until(lambda: way.cuts > cuts, within_s=PATIENCE_S)  # noqa: B023 - awaited here
        else:
            way.swallow()
            await until(lambda: not noticed_by.isdisjoint(sidecar.health.reasons()), within_s=PATIENCE_S)
            way.heal()
    await goes_on()
    assert way.cuts > 0
    assert way.swallowed > 0


def _stored_at(sidecar: Service, lane: str) -> float:
    return sidecar.value("tail_last_poll_timestamp_seconds", lane=lane)
