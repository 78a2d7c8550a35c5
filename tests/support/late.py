"""The row of a transaction that commits behind rows with higher ids, in the two ways it is written."""

from __future__ import annotations

from typing import Any

from tests.support.rows import event_row, insert_rows


async def plain(conn: Any, execution_id: int) -> None:
    """Event 20 behind event 10."""
    await insert_rows(conn, [event_row(execution_id, 20, prev=10)])


async def savepoints(conn: Any, execution_id: int) -> None:
    """The same under nested savepoints, one rolled back before it and one behind it."""
    await conn.execute("SAVEPOINT outer_one")
    await conn.execute("SAVEPOINT undone")
    await insert_rows(conn, [event_row(execution_id, 19, prev=10)])
    await conn.execute("ROLLBACK TO undone")
    await conn.execute("SAVEPOINT inner_one")
    await plain(conn, execution_id)
    await conn.execute("RELEASE inner_one")
    await conn.execute("RELEASE outer_one")
    await conn.execute("SAVEPOINT undone_again")
    await insert_rows(conn, [event_row(execution_id, 21, prev=20)])
    await conn.execute("ROLLBACK TO undone_again")
