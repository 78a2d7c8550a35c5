"""The table `rejoin`: which root was proven to come after which tip, and whether that still stands.

A proof is kept when the root arrives and is never written over; a contradiction only marks it.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sidecar.core.rejoin import Join
from sidecar.store.connection import Connection, Row
from sidecar.store.rows import position, position_text

COLUMNS: Final = (
    "execution_id, tip_event_id, root_event_id, xid, anchor, epoch, joined_at, withdrawn_at, tip_lsn,"
    " root_lsn"
)
_PLACES: Final = ",".join("?" * len(COLUMNS.split(",")))
AMONG: Final = f"SELECT {COLUMNS} FROM rejoin WHERE execution_id IN (SELECT value FROM json_each(?))"
BETWEEN: Final = f"SELECT {COLUMNS} FROM rejoin WHERE execution_id BETWEEN ? AND ?"
ALL_WITHDRAWN: Final = f"SELECT {COLUMNS} FROM rejoin WHERE withdrawn_at IS NOT NULL"
KEEP: Final = (
    f"INSERT INTO rejoin ({COLUMNS}) VALUES ({_PLACES}) ON CONFLICT (execution_id, root_event_id) DO NOTHING"
)
COPY: Final = f"REPLACE INTO rejoin ({COLUMNS}) VALUES ({_PLACES})"
WITHDRAW: Final = (
    "UPDATE rejoin SET withdrawn_at = ? WHERE execution_id = ? AND root_event_id = ? AND withdrawn_at IS NULL"
)


async def among(connection: Connection, execution_ids: Collection[int]) -> dict[int, tuple[Join, ...]]:
    """What is kept of those executions that have anything, withdrawn ones too; oldest first."""
    return grouped(await connection.among(AMONG, execution_ids))


def grouped(rows: Collection[Row]) -> dict[int, tuple[Join, ...]]:
    """From COLUMNS, by execution, oldest first."""
    found: dict[int, list[Join]] = {}
    for each in sorted(map(_join, rows), key=lambda each: (each.joined_at, each.root_event_id)):
        found.setdefault(each.execution_id, []).append(each)
    return {execution_id: tuple(joins) for execution_id, joins in found.items()}


def _join(row: Row) -> Join:
    execution_id, tip, root, xid, anchor, epoch, joined_at, withdrawn_at, tip_lsn, root_lsn = row
    positions = position(tip_lsn), position(root_lsn)
    return Join(execution_id, tip, root, xid, anchor, epoch, joined_at, withdrawn_at, *positions)


def row_of(join: Join) -> Row:
    """For KEEP."""
    return (
        join.execution_id,
        join.tip_event_id,
        join.root_event_id,
        join.xid,
        join.anchor,
        join.epoch,
        join.joined_at,
        join.withdrawn_at,
        position_text(join.tip_lsn),
        position_text(join.root_lsn),
    )
