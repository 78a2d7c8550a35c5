"""The engine's own numbers: what was committed last, and what comes after a number.

Every event gets the next number of one sequence over all executions, in the transaction that
stores it; the highest is kept beside the rows, so that deleting never lowers it and no number
is given twice.  Source: spec 6.1, 6.2.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from sidecar.core.authority import StoredEvent
from sidecar.store.connection import Connection
from sidecar.store.rows import EVENT_COLUMNS, stored_event
from sidecar.store.unit import SqliteUnit

# Only who follows the sequence pays for the index: it is made when it is first needed.
INDEX: Final = "CREATE INDEX IF NOT EXISTS event_by_gseq ON event (gseq) WHERE gseq IS NOT NULL"
AFTER: Final = f"SELECT gseq, {EVENT_COLUMNS} FROM event WHERE gseq > ? ORDER BY gseq LIMIT ?"
UP_TO: Final = f"SELECT gseq, {EVENT_COLUMNS} FROM event WHERE gseq <= ? ORDER BY gseq DESC LIMIT 1"
_NAME: Final = "INSERT OR IGNORE INTO meta (key, value) VALUES ('STORE_ID', ?)"
_NAMED: Final = "SELECT value FROM meta WHERE key = 'STORE_ID'"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A stored event with its number in the engine's sequence."""

    gseq: int
    row: StoredEvent


class Committed:
    """The highest number that is committed; whoever waits for a higher one is woken."""

    def __init__(self, high: int) -> None:
        self.high = high
        self._moved = asyncio.Event()

    def reach(self, high: int) -> None:
        if high > self.high:
            self.high = high
            self._moved.set()
            self._moved = asyncio.Event()

    async def beyond(self, gseq: int) -> int:
        """Return the highest number as soon as it is greater than `gseq`."""
        while self.high <= gseq:
            await self._moved.wait()
        return self.high


async def after(connection: Connection, gseq: int, limit: int) -> list[Numbered]:
    return [Numbered(row[0], stored_event(row[1:])) for row in await connection.rows(AFTER, (gseq, limit))]


async def up_to(connection: Connection, gseq: int) -> Numbered | None:
    found = await connection.rows(UP_TO, (gseq,))
    return Numbered(found[0][0], stored_event(found[0][1:])) if found else None


async def prepare(unit: SqliteUnit) -> str:
    """Make a store that can be followed: the index, and a name of its own, which is returned.

    A number means something only together with the store that gave it.
    """
    await unit.rows(INDEX)
    await unit.rows(_NAME, (uuid4().hex,))
    ((name,),) = await unit.rows(_NAMED)
    return str(name)
