"""The limit: fetch, insert, nothing else.

The same rows, the same canonical body built by Postgres, the same store layout, batch size,
pragmas and driver; no order, no comparison, no record of an execution, no cursor.  The event's
id stands in for its sequence.  While one batch is inserted the next one is fetched, so that a
program cannot beat this by overlapping what the limit does one after the other.  It reads by
execution: SQLite then appends to its tables, which costs less than inserting as the rows lie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sidecar.source.body import body_sql
from sidecar.source.connection import Portal, Session
from sidecar.source.log import event_columns
from sidecar.source.scan import BATCH_BYTES, BATCH_ROWS
from sidecar.source.table import inspect
from sidecar.store import ChainStore
from sidecar.store.connection import Connection
from sidecar.store.rows import INSERT_EVENT
from sidecar.store.sqlite import open_writer


async def copy(dsn: str, store: Path, *, body_bytes: int) -> int:
    """Copy every row of the log into a new store file; how many."""
    await (await ChainStore.open(str(store))).close()  # the layout
    size = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, body_bytes)))
    session = Session(dsn, query_timeout_s=600)
    table = await inspect(session)
    columns = event_columns(table, "l", body_sql(table.types, "l"))
    sql = f"select {columns} from {table.name} l order by l.execution_id"
    writer = await open_writer(store, synchronous="normal", busy_timeout_ms=5000)
    try:
        async with session.transaction() as transaction:
            return await _copied(await transaction.cursor(sql), writer, size)
    finally:
        await writer.close()
        await session.close()


async def _copied(portal: Portal, writer: Connection, size: int) -> int:
    done = 0
    rows = await portal.fetch(size)
    while rows:
        coming = asyncio.create_task(portal.fetch(size))
        await writer.hold(partial(writer.many, INSERT_EVENT, _values(rows, done)))
        done += len(rows)
        rows = await coming
    return done


def _values(rows: Sequence[Any], first: int) -> list[tuple[Any, ...]]:
    return [
        (e, event_id, event_id, prev, parent, kind, body, n, "log", 1)
        for n, (e, event_id, prev, parent, kind, body) in enumerate(rows, start=first)
    ]
