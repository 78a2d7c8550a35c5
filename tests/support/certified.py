"""Stories whose every event moves the state, and the question what the state is."""

from __future__ import annotations

from itertools import pairwise

from sidecar.certified import Answer
from sidecar.core.certificate import Decision
from sidecar.core.digest import digest
from sidecar.core.event import Event
from sidecar.core.workflow import fold
from tests.support.scripted import Scripted
from tests.unit.core.build import E

NOW_TEXT = "2023-11-14T22:13:20"
"""SERVER_NOW as a body spells it."""


def step(event_id: int, prev: int | None, kind: str = "ctx.updated", *, at: str = NOW_TEXT) -> Event:
    """An event that moves the state: ctx.e<id> is set."""
    body = f'{{"context":{{"values":{{"e{event_id}":{event_id}}}}},"event_id":{event_id},"timestamp":"{at}"}}'
    return Event(E, event_id, prev, None, kind, body)


def steps(*ids: int, after: int | None = None) -> tuple[Event, ...]:
    return tuple(step(event_id, prev) for prev, event_id in pairwise((after, *ids)))  # type: ignore[arg-type]


async def ask(here: Scripted) -> Answer:
    return await here.certified.state(here.store, E)


async def decided(here: Scripted) -> Decision | None:
    return (await ask(here)).decision


async def cached(here: Scripted, *events: Event) -> None:
    """Store the events and have their state cached."""
    await here.write(*events)
    assert await decided(here) is Decision.UNCALIBRATED
    assert await decided(here) is Decision.SKIPPED


async def fresh(here: Scripted) -> str:
    events = (await here.guarded(E)).events
    assert events is not None
    state = fold(events)
    assert state is not None
    return digest(state)
