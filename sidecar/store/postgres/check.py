"""Read a whole store on PostgreSQL and say what in it contradicts itself; see `store.check`.

What a file's own check is, a server does for itself: a page of it that cannot be read is damage.
Nothing is written and nobody is fenced; each page is a snapshot of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.errors import StoreCorrupt
from sidecar.store import joins
from sidecar.store.check import CURSORS, DUE, HIGH, PAGE, PARTITIONS, ROWS, Checked, Page
from sidecar.store.invariants import Numbers
from sidecar.store.postgres.connection import PostgresConnection
from sidecar.store.postgres.dialect import compiled
from sidecar.store.postgres.opening import prepared
from sidecar.store.postgres.url import place_of
from sidecar.store.reads import EXECUTIONS

ROWS_AT_ONCE: Final = 5000
COUNTED_S: Final = 5.0
"""How long a number may stand on a lender before its unit is committed where numbers are counted."""
_LOOK_S: Final = 0.1
_COUNT: Final = "SELECT count(*) FROM partition"
_WRITER: Final = (
    "SELECT 'the table writer' WHERE 1 <> (SELECT count(*) FROM writer WHERE epoch >= 0 AND unit >= 0)"
)


@asynccontextmanager
async def _reading(url: str) -> AsyncIterator[PostgresConnection]:
    place = place_of(url)
    connection = PostgresConnection(place, await prepared(place, writing=False, not_on=None))
    try:
        yield connection
    finally:
        await connection.close()


async def partitions(url: str) -> int:
    """How many partitions there are to check.

    Raises:
        StoreError: as for `check`.
    """
    async with _reading(url) as connection:
        return int((await connection.alone(_COUNT))[0][0])


async def check(
    url: str, *, moved: Callable[[int], None] = lambda executions: None, limit: int = PAGE
) -> Checked:
    """Check the store at `url`.

    Args:
        moved: Called after every page with the executions in it.
        limit: Executions of one page.

    Raises:
        ConfigError: the URL cannot be read.
        StoreFormatError: no chain store of this layout.
        StoreError: a server cannot be asked; what it holds cannot be told, and nothing is.
    """
    checked = Checked()
    async with _reading(url) as connection:
        try:
            for statement in (*CURSORS, _WRITER):
                checked.malformed(await connection.alone(statement))
            await _check_partitions(connection, checked, moved, limit)
            await _check_due(connection, checked, limit)
        except StoreCorrupt as error:
            checked.damage(str(error))
    return checked


async def _check_partitions(
    connection: PostgresConnection, checked: Checked, moved: Callable[[int], None], limit: int
) -> None:
    numbers = Numbers()
    low = ID_MIN
    while low <= ID_MAX:

        async def read(low: int = low) -> tuple[list[int], Page | None]:
            found = [row[0] for row in await connection.rows(EXECUTIONS, (low, ID_MAX, limit))]
            if not found:
                return found, None
            bounds = (found[0], found[-1])
            high = int((await connection.rows(HIGH))[0][0])
            records = await connection.rows(PARTITIONS, bounds)
            kept = await connection.rows(joins.BETWEEN, bounds)
            page = Page(checked, numbers, high, found, records, kept)
            async for piece in connection.pieces(compiled(ROWS).text, bounds, ROWS_AT_ONCE):
                for row in piece:
                    page.add(row)
            return found, page

        found, page = await connection.hold(read)
        if page is not None:
            page.end(await _counted(connection, page.greatest))
        moved(len(found))
        if len(found) < limit:
            break
        low = found[-1] + 1


async def _counted(connection: PostgresConnection, seen: int) -> int:
    """The latest number that was given.

    Rows on other servers are of later snapshots than the count beside them, and are committed
    before it; so one that is ahead of the count is looked for again.
    """
    high = 0
    for _ in range(round(COUNTED_S / _LOOK_S)):
        high = int((await connection.alone(HIGH))[0][0])
        if seen <= high or not connection.spread:
            break
        await asyncio.sleep(_LOOK_S)
    return high


async def _check_due(connection: PostgresConnection, checked: Checked, limit: int) -> None:
    low = ID_MIN
    while low <= ID_MAX:
        entries = await connection.alone(DUE, (low, limit))
        checked.entries(entries)
        if len(entries) < limit:
            break
        low = entries[-1][0] + 1
