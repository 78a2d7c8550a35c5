"""The questions a hold can ask, each one statement whatever the number of executions.

Lists travel as one JSON parameter, so a statement is compiled once.  SQLite reads a JSON
integer exactly over the whole 64-bit range.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from sidecar.core.authority import Columns, GuardedRead, Partition, StoredEvent, answered
from sidecar.core.due import Due
from sidecar.core.event import Event
from sidecar.core.horizon import Cursor
from sidecar.core.ports import EpochSpan, Key
from sidecar.store.connection import Connection, Row
from sidecar.store.quick import Quick
from sidecar.store.rows import (
    CURSOR_COLUMNS,
    DUE_COLUMNS,
    EVENT_COLUMNS,
    PARTITION_COLUMNS,
    claimed,
    cursor_record,
    due_record,
    partition_record,
    stored_event,
)
from sidecar.store.wording import worded

_AMONG: Final = "execution_id IN (SELECT value FROM json_each(?))"
PARTITIONS: Final = f"SELECT {PARTITION_COLUMNS} FROM partition WHERE {_AMONG}"
DUE: Final = f"SELECT {DUE_COLUMNS} FROM due WHERE {_AMONG}"
CHAINS: Final = f"SELECT {EVENT_COLUMNS} FROM event WHERE {_AMONG} ORDER BY execution_id, exec_seq"
CHAIN: Final = f"SELECT {EVENT_COLUMNS} FROM event WHERE execution_id = ? ORDER BY exec_seq"
# The execution is what was asked for: a column that every row brings is a good part of a read.
EVENTS: Final = (
    "SELECT event_id, prev_event_id, parent_execution_id, event_type, body FROM event"
    " WHERE execution_id = ? ORDER BY exec_seq"
)
# What the partition claims, with its flags, and its rows: one statement, so one snapshot and one
# call.  The claim has no body, an event always has one; its head and whether something holds the
# answer back share a text, so that no event brings a column for it.  Nothing is sorted here: a
# sort of the two parts would copy every body.
GUARDED: Final = (
    "SELECT p.wm_first, p.wm_through, p.cov_root, p.cov_total, p.head_seq ||"
    " CASE WHEN p.held > 0 OR d.reread IS NOT NULL OR d.changed IS NOT NULL THEN ' held' ELSE '' END, NULL"
    " FROM partition AS p LEFT JOIN due AS d ON d.execution_id = p.execution_id"
    " WHERE p.execution_id = ?1"
    " UNION ALL SELECT exec_seq, event_id, prev_event_id, parent_execution_id, event_type, body"
    " FROM event WHERE execution_id = ?1"
)
# Counted over the narrow index: the bodies are not touched.
ROW_COUNTS: Final = (
    "SELECT execution_id, count(*), max(exec_seq) FROM event INDEXED BY event_identity"
    f" WHERE {_AMONG} GROUP BY execution_id"
)
# {"execution_id": [event_id, …], …}; CROSS JOIN keeps this order of loops.
_KEYS: Final = (
    "json_each(?) AS x CROSS JOIN json_each(x.value) AS i"
    " CROSS JOIN event AS e INDEXED BY event_identity"
    " ON e.execution_id = CAST(x.key AS INTEGER) AND e.event_id = i.value"
)
# PostgreSQL has the pairs as two lists; the plain lists before them choose the leaf.
_PAIRED: Final = (
    " FROM event AS e WHERE e.execution_id = ANY($1::bigint[]) AND (e.execution_id, {column}) IN"
    " (SELECT * FROM unnest($2::bigint[], $3::bigint[]))"
)
_WHOLE: Final = f"SELECT {', '.join('e.' + name for name in EVENT_COLUMNS.split(', '))}"
FIND: Final = worded(f"{_WHOLE} FROM {_KEYS}", postgres=_WHOLE + _PAIRED.format(column="e.event_id"))
# {"execution_id": [exec_seq, …], …}, by the clustered key.
PLACES: Final = worded(
    f"{_WHOLE} FROM"
    " json_each(?) AS x CROSS JOIN json_each(x.value) AS i CROSS JOIN event AS e"
    " ON e.execution_id = CAST(x.key AS INTEGER) AND e.exec_seq = i.value",
    postgres=_WHOLE + _PAIRED.format(column="e.exec_seq"),
)
_IDS: Final = "SELECT e.execution_id, e.event_id"
PRESENT: Final = worded(f"{_IDS} FROM {_KEYS}", postgres=_IDS + _PAIRED.format(column="e.event_id"))
# The halves cannot overflow: a sum of 2^31 rows of 32 bits fits into 63.
SUMS: Final = (
    "SELECT execution_id, count(*), CAST(sum(event_id >> 32) AS BIGINT),"
    " CAST(sum(event_id & 4294967295) AS BIGINT)"
    " FROM event INDEXED BY event_identity WHERE execution_id BETWEEN ? AND ? GROUP BY execution_id"
)
# Who is due at once has its time set to then; a flag alone does not overrule a pause.
DUE_NOW: Final = "SELECT execution_id FROM due WHERE due_at <= ?1 ORDER BY due_at, execution_id LIMIT ?2"
# The first row that stands: its parent is the execution's.
FIRST: Final = f"SELECT {EVENT_COLUMNS} FROM event WHERE execution_id = ? ORDER BY exec_seq LIMIT 1"
CURSORS: Final = f"SELECT {CURSOR_COLUMNS} FROM tail_cursor"
EPOCHS: Final = "SELECT epoch, first_seen_at, last_seen_at FROM server_epoch ORDER BY first_seen_at, epoch"
# Rows without a partition count too: somebody else may have written them.
EXECUTIONS: Final = """
SELECT execution_id FROM (
  SELECT * FROM (SELECT execution_id FROM partition WHERE execution_id BETWEEN ?1 AND ?2
                  ORDER BY execution_id LIMIT ?3) AS p
  UNION
  SELECT * FROM (SELECT DISTINCT execution_id FROM event INDEXED BY event_identity
                  WHERE execution_id BETWEEN ?1 AND ?2 ORDER BY execution_id LIMIT ?3) AS e
) AS x ORDER BY execution_id LIMIT ?3"""


async def partitions(connection: Connection, execution_ids: Collection[int]) -> dict[int, Partition]:
    found = await connection.among(PARTITIONS, execution_ids)
    return {row[0]: partition_record(row) for row in found}


async def due(connection: Connection, execution_ids: Collection[int]) -> dict[int, Due]:
    return {row[0]: due_record(row) for row in await connection.among(DUE, execution_ids)}


async def chains(
    connection: Connection, execution_ids: Collection[int]
) -> dict[int, tuple[StoredEvent, ...]]:
    """The stored rows in ascending exec_seq, of those executions that have any."""
    found: dict[int, list[StoredEvent]] = {}
    for row in await connection.among(CHAINS, execution_ids):
        found.setdefault(row[0], []).append(stored_event(row))
    return {execution_id: tuple(rows) for execution_id, rows in found.items()}


async def chain(connection: Connection, execution_id: int) -> tuple[StoredEvent, ...]:
    """The stored rows of one execution in ascending exec_seq, by one statement alone."""
    return tuple(map(stored_event, await connection.alone(CHAIN, (execution_id,))))


async def events(quick: Quick | None, connection: Connection, execution_id: int) -> tuple[Event, ...]:
    """The events of one execution in ascending exec_seq, by one statement alone."""
    rows = await _one(quick, connection, EVENTS, execution_id)
    return _made(execution_id, zip(*rows, strict=True)) if rows else ()


async def guarded(quick: Quick | None, connection: Connection, execution_id: int) -> GuardedRead:
    """Spec 2.6 for one execution, by one statement alone."""
    rows = await _one(quick, connection, GUARDED, execution_id)
    at = next((at for at, row in enumerate(rows) if row[-1] is None), None)
    claim = None if at is None else rows.pop(at)
    # In order already: two searches by key, one after the other.  SQLite does not promise it.
    rows.sort(key=itemgetter(0))
    columns, chain = Columns((), (), ()), tuple[Event, ...]()
    if rows:
        places, ids, named, *others = zip(*rows, strict=True)
        columns, chain = Columns(places, ids, named), _made(execution_id, (ids, named, *others))
    if claim is None:
        return answered(None, columns, chain, held_back=False)
    first, through, root, total, head, _ = claim
    head_seq, _, held = head.partition(" ")
    claims = claimed(execution_id, int(head_seq), (first, through, root, total))
    return answered(claims, columns, chain, held_back=bool(held))


def _made(execution_id: int, columns: Iterable[Sequence[Any]]) -> tuple[Event, ...]:
    """From the columns of EVENTS; the loop over a hundred of them is not Python's."""
    return tuple(map(Event, repeat(execution_id), *columns))


async def _one(quick: Quick | None, connection: Connection, sql: str, execution_id: int) -> list[Row]:
    """All rows of a statement about one execution whose last column is a body or NULL."""
    found = None if quick is None else quick.rows(sql, execution_id)
    if found is None:
        return await connection.alone(sql, (execution_id,))
    await asyncio.sleep(0)  # many such reads in a row leave others their turn
    return found


async def row_counts(connection: Connection, execution_ids: Collection[int]) -> dict[int, tuple[int, int]]:
    counts = dict.fromkeys(execution_ids, (0, 0))
    for execution_id, rows, high in await connection.among(ROW_COUNTS, execution_ids):
        counts[execution_id] = (rows, high)
    return counts


async def find(connection: Connection, keys: Iterable[Key]) -> dict[Key, StoredEvent]:
    found = [stored_event(row) for row in await connection.paired(FIND, _grouped(keys))]
    return {(row.event.execution_id, row.event.event_id): row for row in found}


async def places(connection: Connection, keys: Iterable[Key]) -> dict[Key, StoredEvent]:
    found = [stored_event(row) for row in await connection.paired(PLACES, _grouped(keys))]
    return {(row.event.execution_id, row.exec_seq): row for row in found}


async def first(connection: Connection, execution_id: int) -> StoredEvent | None:
    """The row with the lowest exec_seq."""
    found = await connection.rows(FIRST, (execution_id,))
    return stored_event(found[0]) if found else None


async def present(connection: Connection, keys: Iterable[Key]) -> set[Key]:
    return {(row[0], row[1]) for row in await connection.paired(PRESENT, _grouped(keys))}


def _grouped(keys: Iterable[Key]) -> dict[int, list[int]]:
    grouped: dict[int, list[int]] = {}
    for execution_id, event_id in keys:
        grouped.setdefault(execution_id, []).append(event_id)
    return grouped


async def sums(connection: Connection, low: int, high: int) -> dict[int, tuple[int, int]]:
    found = await connection.rows(SUMS, (low, high))
    return {execution_id: (rows, (upper << 32) + lower) for execution_id, rows, upper, lower in found}


async def cursors(connection: Connection) -> dict[str, Cursor]:
    return {row[0]: cursor_record(row) for row in await connection.rows(CURSORS)}


async def due_now(connection: Connection, now: int, limit: int) -> list[int]:
    return [row[0] for row in await connection.rows(DUE_NOW, (now, limit))]


async def epochs(connection: Connection) -> tuple[EpochSpan, ...]:
    return tuple(EpochSpan(*row) for row in await connection.rows(EPOCHS))


async def executions(connection: Connection, low: int, high: int, limit: int) -> list[int]:
    return [row[0] for row in await connection.rows(EXECUTIONS, (low, high, limit))]
