"""The implementations of the chain store that the contract is held against.

A backend opens stores on one place, and can put things into that place behind the store's
back: what a second writer, a torn write or another build would have left there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import closing
from pathlib import Path
from shutil import copyfile
from tempfile import mkdtemp
from types import TracebackType
from typing import Any, Protocol, TypeVar

from sidecar.core.authority import Authority, GuardedRead, Partition, StoredEvent
from sidecar.core.due import Due
from sidecar.core.event import Event
from sidecar.core.horizon import Cursor
from sidecar.core.populate import LogRead, Outcome
from sidecar.core.ports import Clock, EpochSpan, Key, Unit
from sidecar.store import ChainStore, StoreReader
from sidecar.store.findings import Kept
from sidecar.store.opening import Opening

T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)


class ContractUnit(Unit, Protocol):
    """A unit of work as the suite uses it."""

    @property
    def gseq(self) -> int: ...


class ContractReader(Protocol):
    """The reading half of a chain store as the suite uses it."""

    async def chain(self, execution_id: int) -> tuple[Event, ...]: ...
    async def stored_chain(self, execution_id: int) -> tuple[StoredEvent, ...]: ...
    async def partition(self, execution_id: int) -> Partition | None: ...
    async def partitions(self, execution_ids: Collection[int]) -> dict[int, Partition]: ...
    async def authority(self, execution_id: int) -> Authority: ...
    async def chain_if_authoritative(self, execution_id: int) -> GuardedRead: ...
    async def get(self, execution_id: int, event_id: int) -> StoredEvent | None: ...
    async def parent_of(self, event: Event) -> StoredEvent | None: ...
    async def parent_execution_of(self, execution_id: int) -> int | None: ...
    async def walk_from_head(self, execution_id: int) -> tuple[StoredEvent, ...]: ...
    async def chain_is_complete(self, execution_id: int) -> bool: ...
    async def due(self, execution_ids: Collection[int]) -> dict[int, Due]: ...
    async def findings(self, execution_id: int) -> list[Kept]: ...
    async def cursors(self) -> dict[str, Cursor]: ...
    async def epochs(self) -> tuple[EpochSpan, ...]: ...
    async def due_now(self, now: int, limit: int) -> list[int]: ...
    async def missing(self, keys: Sequence[Key]) -> list[Key]: ...
    async def sums(self, low: int, high: int) -> Mapping[int, tuple[int, int]]: ...
    def executions(self, low: int = ..., high: int = ..., *, page: int = ...) -> AsyncIterator[int]: ...
    async def close(self) -> None: ...


class Contract(ContractReader, Protocol):
    """A chain store as the suite uses it; a further implementation has to offer this."""

    @property
    def clock(self) -> Clock: ...

    @property
    def rejoining(self) -> bool: ...

    async def transact(self, work: Callable[[ContractUnit], Awaitable[T]]) -> T: ...
    async def populate_from_log(
        self, execution_id: int, events: Iterable[Event], *, read: LogRead | None = None
    ) -> Outcome: ...
    async def append(self, event: Event) -> int: ...
    async def populate(self, event: Event) -> int: ...
    async def populate_replicated(self, event: Event, exec_seq: int) -> int: ...
    async def apply_replicated(self, event: Event, exec_seq: int) -> None: ...
    async def revoke(self, execution_id: int, reason: str) -> bool: ...
    async def load_apply_cursor(self, shard: int) -> int: ...
    async def advance_apply_cursor(self, shard: int, seq: int) -> int: ...


class Opens(Protocol[S_co]):
    """Awaited, or entered."""

    def __await__(self) -> Generator[object, None, S_co]: ...
    async def __aenter__(self) -> S_co: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Backend(Protocol):
    def open(self) -> Opens[Contract]: ...

    def open_readonly(self) -> Opens[ContractReader]: ...

    def photograph(self) -> None:
        """Keep what a process that is killed at this instant would leave."""
        ...

    async def abandon(self, store: Contract) -> None:
        """End `store` as a kill would: what can be opened next is the photograph, or, without one, now."""
        ...

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
        self.folder = folder
        self.path = folder / "chain.db"
        self._image: Path | None = None

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def photograph(self) -> None:
        # Nobody writes meanwhile; the shared-memory file is rebuilt from the other two.
        # Beside each other, not in each other: SQLite's paths are bounded.
        folder = Path(mkdtemp(dir=self.folder))
        self._image = folder / self.path.name
        for file in self.path, self.path.with_name(self.path.name + "-wal"):
            if file.exists():
                copyfile(file, folder / file.name)

    async def abandon(self, store: Contract) -> None:
        if self._image is None:
            self.photograph()
        await store.close()
        if self._image is not None:
            self.path, self._image = self._image, None

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
