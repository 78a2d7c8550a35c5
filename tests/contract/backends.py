"""The implementations of the chain store that the contract is held against.

A backend opens stores on one place, and can put things into that place behind the store's
back: what a second writer, a torn write or another build would have left there.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from sidecar.core.event import Event
from sidecar.store import ChainStore, StoreReader
from sidecar.store.opening import Opening


class Backend(Protocol):
    def open(self) -> Opening[ChainStore]: ...

    def open_readonly(self) -> Opening[StoreReader]: ...

    def plant_watermark(self, execution_id: int, first: int | None, through: int | None) -> None:
        """Put a watermark as it stands; a half one is malformed."""
        ...

    def plant_coverage(self, execution_id: int, root: int | None, total: int | None) -> None:
        """Put a coverage as it stands."""
        ...

    def plant_event(self, exec_seq: int, event: Event) -> None:
        """Insert an event row as somebody else would: no origin, no time, head unmoved."""
        ...

    def drop_event(self, execution_id: int, exec_seq: int) -> None: ...

    def break_head(self) -> None:
        """Make every read of a partition's record fail."""
        ...


class SqliteBackend:
    """One SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "chain.db"
        self.url = f"sqlite:///{self.path}"

    def open(self) -> Opening[ChainStore]:
        return ChainStore.open(self.url)

    def open_readonly(self) -> Opening[StoreReader]:
        return ChainStore.open_readonly(self.url)

    def plant_watermark(self, execution_id: int, first: int | None, through: int | None) -> None:
        self._record(execution_id)
        self.run(
            "UPDATE partition SET wm_first = ?, wm_through = ? WHERE execution_id = ?",
            first, through, execution_id,
        )  # fmt: skip

    def plant_coverage(self, execution_id: int, root: int | None, total: int | None) -> None:
        self._record(execution_id)
        self.run(
            "UPDATE partition SET cov_root = ?, cov_total = ? WHERE execution_id = ?",
            root, total, execution_id,
        )  # fmt: skip

    def plant_event(self, exec_seq: int, event: Event) -> None:
        self.run(
            "INSERT INTO event (execution_id, exec_seq, event_id, prev_event_id, parent_execution_id,"
            " event_type, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
            event.execution_id, exec_seq, event.event_id, event.prev_event_id, event.parent_execution_id,
            event.event_type, event.body,
        )  # fmt: skip

    def drop_event(self, execution_id: int, exec_seq: int) -> None:
        self.run("DELETE FROM event WHERE execution_id = ? AND exec_seq = ?", execution_id, exec_seq)

    def break_head(self) -> None:
        self.run("ALTER TABLE partition RENAME COLUMN head_seq TO head_sequence")

    def _record(self, execution_id: int) -> None:
        self.run("INSERT OR IGNORE INTO partition (execution_id) VALUES (?)", execution_id)

    def run(self, sql: str, *parameters: Any) -> list[Any]:
        """One statement from outside, as the sqlite3 shell would run it."""
        with closing(sqlite3.connect(self.path, timeout=10.0)) as connection, connection:
            return connection.execute(sql, parameters).fetchall()
