"""Somebody else's hands in the store's file: what a program that knows the layout could do.

In a thread of its own: waiting for the lock in the event loop would stop who holds it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def writing(store: Path) -> Iterator[sqlite3.Connection]:
    """One write transaction on the file, beside a running sidecar or without one."""
    with closing(sqlite3.connect(store, timeout=10.0, isolation_level=None)) as conn:
        conn.execute("BEGIN IMMEDIATE")
        yield conn
        conn.execute("COMMIT")


async def add_foreign_row(store: Path, execution_id: int, event_id: int, *, move_head: bool) -> None:
    """Append a row that the log never had; with `move_head` the record agrees with it."""
    await asyncio.to_thread(_add_foreign_row, store, execution_id, event_id, move_head)


async def drop_row(store: Path, execution_id: int, event_id: int) -> None:
    """Take one stored event away; the record stays as it is."""
    await asyncio.to_thread(_drop_row, store, execution_id, event_id)


def _add_foreign_row(store: Path, execution_id: int, event_id: int, move_head: bool) -> None:
    with writing(store) as conn:
        conn.execute(
            "INSERT INTO event (execution_id, exec_seq, event_id, prev_event_id, event_type, body)"
            " SELECT execution_id, exec_seq + 1, ?2, event_id, 'step.exit', '{}' FROM event"
            " WHERE execution_id = ?1 ORDER BY exec_seq DESC LIMIT 1",
            (execution_id, event_id),
        )
        if move_head:
            conn.execute(
                "UPDATE partition SET (head_seq, head_event_id, wm_through, cov_total) ="
                " (SELECT exec_seq, event_id, exec_seq, exec_seq FROM event WHERE execution_id = ?1"
                " ORDER BY exec_seq DESC LIMIT 1) WHERE execution_id = ?1",
                (execution_id,),
            )


def _drop_row(store: Path, execution_id: int, event_id: int) -> None:
    with writing(store) as conn:
        gone = conn.execute(
            "DELETE FROM event WHERE execution_id = ? AND event_id = ?", (execution_id, event_id)
        )
        assert gone.rowcount == 1
