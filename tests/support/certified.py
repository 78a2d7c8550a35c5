"""Stories whose every event moves the state, and the question what the state is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from sidecar.certified import Answer
from sidecar.core.certificate import Decision
from sidecar.core.digest import digest
from sidecar.core.event import Event
from sidecar.core.workflow import fold
from tests.support.scripted import Scripted
from tests.unit.core.build import E

NOW_TEXT = "2023-11-14T22:13:20"
"""SERVER_NOW as a body spells it."""
BEFORE_TEXT = "2023-11-14T22:13:19"
"""A second before: older than a poll that begins at SERVER_NOW, and within its range."""


Line = Callable[..., Awaitable[Scripted]]
"""Opens a line over one folder, with the gate of certificates on; what else, its options say."""


@asynccontextmanager
async def lines(folder: Path) -> AsyncIterator[Line]:
    """Lines over one folder, one after the other; their stores are closed at the end."""
    opened: list[Scripted] = []

    async def start(**options: Any) -> Scripted:
        opened.append(await Scripted.open(folder, **({"cert": True} | options)))
        return opened[-1]

    yield start
    for each in opened:
        await each.store.close()


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
