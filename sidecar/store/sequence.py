"""The engine's own numbers: what was committed last, and what comes after a number.

Every event gets the next number of one sequence over all executions, in the transaction that
stores it; the highest is kept beside the rows, so that deleting never lowers it and no number
is given twice.  Source: spec 6.1, 6.2.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from sidecar.core.authority import StoredEvent
from sidecar.store import departure
from sidecar.store.connection import Connection
from sidecar.store.departure import Departure
from sidecar.store.rows import EVENT_COLUMNS, stored_event
from sidecar.store.unit import StoreUnit

# Only who follows the sequence pays for the index: it is made when it is first needed.
INDEX: Final = "CREATE INDEX IF NOT EXISTS event_by_gseq ON event (gseq) WHERE gseq IS NOT NULL"
AFTER: Final = f"SELECT gseq, {EVENT_COLUMNS} FROM event WHERE gseq > ? ORDER BY gseq LIMIT ?"
UP_TO: Final = f"SELECT {EVENT_COLUMNS} FROM event WHERE gseq <= ? ORDER BY gseq DESC LIMIT 1"
_NAME: Final = "INSERT OR IGNORE INTO meta (key, value) VALUES ('STORE_ID', ?)"
_NAMED: Final = "SELECT value FROM meta WHERE key = 'STORE_ID'"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A stored event with its number in the engine's sequence."""

    gseq: int
    row: StoredEvent


class Committed:
    """The highest numbers that are committed; whoever waits for a higher one is woken.

    `high`: of events.  `departed`: of partitions that were let go of.  `marks`: how many
    transactions of this process have marked joins as contradicted; the store does not number them.
    """

    def __init__(self, high: int, departed: int = 0) -> None:
        self.high = high
        self.departed = departed
        self.marks = 0
        self._moved = asyncio.Event()

    def reach(self, high: int, departed: int = 0, *, marked: bool = False) -> None:
        if high > self.high or departed > self.departed or marked:
            self.high = max(high, self.high)
            self.departed = max(departed, self.departed)
            self.marks += marked
            self._moved.set()
            self._moved = asyncio.Event()

    async def beyond(self, gseq: int, departed: int, marks: int) -> int:
        """Return the highest number of an event as soon as there is something beyond one of them."""
        while self.high <= gseq and self.departed <= departed and self.marks <= marks:
            await self._moved.wait()
        return self.high


async def after(connection: Connection, gseq: int, limit: int) -> list[Numbered]:
    return [Numbered(row[0], stored_event(row[1:])) for row in await connection.rows(AFTER, (gseq, limit))]


@dataclass(frozen=True, slots=True)
class News:
    """What a follower has not seen, from one snapshot: first what went, then what came."""

    departures: Sequence[Departure]
    events: Sequence[Numbered]


async def news(connection: Connection, gseq: int, departed: int, limit: int) -> News:
    """At most `limit` of each; no events before the last of the departures."""
    gone = await departure.after(connection, departed, limit)
    return News(gone, () if len(gone) == limit else await after(connection, gseq, limit))


async def up_to(connection: Connection, gseq: int) -> StoredEvent | None:
    found = await connection.rows(UP_TO, (gseq,))
    return stored_event(found[0]) if found else None


async def prepare(unit: StoreUnit) -> str:
    """Make a store that can be followed: the index, departures, and a name, which is returned.

    A number means something only together with the store that gave it.
    """
    await unit.rows(INDEX)
    await unit.rows(departure.TABLE)
    await unit.rows(_NAME, (uuid4().hex,))
    ((name,),) = await unit.rows(_NAMED)
    return str(name)
