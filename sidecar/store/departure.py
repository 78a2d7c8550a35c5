"""Partitions that a followed store let go of: dropped, or emptied and filled anew.

Their rows are gone, so whoever follows the rows alone would keep the old ones for ever.  The
last departure of each execution stands here under a number of its own, written in the
transaction that takes the rows; a store that nobody follows writes none.  What a departure says
holds for every row that its reader got before: rows of the same snapshot are later ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidecar.store.connection import Connection
from sidecar.store.unit import StoreUnit
from sidecar.store.wording import worded

TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS departure (seq INTEGER NOT NULL PRIMARY KEY,"
    " execution_id INTEGER NOT NULL UNIQUE, rebuilt INTEGER NOT NULL, departed_at INTEGER NOT NULL) STRICT"
)
AFTER: Final = "SELECT seq, execution_id, rebuilt FROM departure WHERE seq > ? ORDER BY seq LIMIT ?"
_EXISTS: Final = worded("SELECT count(*) FROM sqlite_master WHERE name = 'departure'", postgres="SELECT 0")
_HIGH: Final = "SELECT coalesce(max(seq), 0) FROM departure"
# The number is chosen before the row of the same execution goes, so none is given twice.
_NOTE: Final = (
    "REPLACE INTO departure (seq, execution_id, rebuilt, departed_at)"
    " SELECT coalesce(max(seq), 0) + 1, ?1, ?2, ?3 FROM departure RETURNING seq"
)


@dataclass(frozen=True, slots=True)
class Departure:
    """An execution whose rows are gone.  `rebuilt`: new ones stand there, or will."""

    seq: int
    execution_id: int
    rebuilt: bool


async def note(unit: StoreUnit, execution_id: int, *, rebuilt: bool, now: int) -> None:
    """Note that the rows of an execution go with this unit, if anybody follows the store."""
    if await unit.rows(_EXISTS) == [(0,)]:
        return
    ((seq,),) = await unit.rows(_NOTE, (execution_id, int(rebuilt), now))
    unit.departed = seq


async def high(connection: Connection) -> int:
    """The number of the latest departure; 0 when there is none."""
    if await connection.rows(_EXISTS) == [(0,)]:
        return 0
    return int((await connection.rows(_HIGH))[0][0])


async def after(connection: Connection, seq: int, limit: int) -> list[Departure]:
    found = await connection.rows(AFTER, (seq, limit))
    return [Departure(row[0], row[1], bool(row[2])) for row in found]
