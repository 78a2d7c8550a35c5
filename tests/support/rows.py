"""Rows of noetl.event for tests, and the way into the table.

A row is a mapping from column to value; columns that are left out take the table's default.
A value of a jsonb column is JSON text as it is (a str: nothing parses it here) or a plain
Python value.  Times are datetimes, or text as Postgres reads it ('infinity').
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

Row = dict[str, Any]

JSONB_COLUMNS: Final = frozenset({"context", "result", "meta", "trace_component", "payload_ref"})


def event_row(
    execution_id: int,
    event_id: int,
    *,
    prev: int | None = None,
    parent: int | None = None,
    event_type: str | None = "step.exit",
    created_at: datetime | str | None = None,
    **columns: Any,
) -> Row:
    """One event.

    Args:
        prev: prev_event_id; None is a root.
        parent: parent_execution_id.
        created_at: UTC, naive as the column is; None: now.
        columns: Any other column; `catalog_id` is 1 unless given.
    """
    return {
        "execution_id": execution_id,
        "catalog_id": 1,
        "event_id": event_id,
        "prev_event_id": prev,
        "parent_execution_id": parent,
        "event_type": event_type,
        "created_at": datetime.now(UTC).replace(tzinfo=None) if created_at is None else created_at,
        **columns,
    }


def chain_rows(execution_id: int, event_ids: Iterable[int], **columns: Any) -> list[Row]:
    """A clean chain: each event names the one before it; the first starts the playbook."""
    rows: list[Row] = []
    for event_id in event_ids:
        prev = rows[-1]["event_id"] if rows else None
        event_type = "step.exit" if rows else "playbook.initialized"
        rows.append(event_row(execution_id, event_id, prev=prev, event_type=event_type, **columns))
    return rows


async def insert_rows(conn: Any, rows: Iterable[Mapping[str, Any]], *, table: str = "noetl.event") -> None:
    """Insert the rows in their order, one statement for each run of rows with the same columns.

    The caller's transaction is used if there is one; a failed statement has written nothing.
    """
    for columns, texts in _runs(rows):
        names = ", ".join(f'"{column}"' for column in columns)
        picked = ", ".join(f'r."{column}"' for column in columns)
        await conn.execute(
            f"INSERT INTO {table} ({names}) SELECT {picked}"
            f" FROM unnest($1::text[]) WITH ORDINALITY AS given(line, n),"
            f" LATERAL json_populate_record(NULL::{table}, line::json) AS r ORDER BY n",
            texts,
        )


def _runs(rows: Iterable[Mapping[str, Any]]) -> Iterable[tuple[tuple[str, ...], list[str]]]:
    columns: tuple[str, ...] = ()
    texts: list[str] = []
    for row in rows:
        if tuple(row) != columns and texts:
            yield columns, texts
            texts = []
        columns = tuple(row)
        texts.append(line_of(row))
    if texts:
        yield columns, texts


def line_of(row: Mapping[str, Any]) -> str:
    """The row as one JSON object; the text of jsonb columns stands in it as it was given."""
    return "{" + ", ".join(f"{json.dumps(name)}: {_value(name, value)}" for name, value in row.items()) + "}"


def _value(name: str, value: Any) -> str:
    if name in JSONB_COLUMNS and isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return json.dumps(value.isoformat())
    return json.dumps(value, ensure_ascii=False)
