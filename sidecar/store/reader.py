"""Reading a chain store without being able to write.

Point reads and whole-store scans have a connection each, so that a scan does not stand in
front of a guarded read; a small chain is read by a third one without a change of thread.
Every method is one snapshot.  Opened alone it takes no lock and works beside a running sidecar.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from sidecar.core.authority import (
    Authority,
    GuardedRead,
    NotPopulated,
    Partition,
    Reason,
    StoredEvent,
    guarded_read,
)
from sidecar.core.due import Due
from sidecar.core.event import ID_MAX, ID_MIN, Event
from sidecar.core.horizon import Cursor
from sidecar.core.ports import EpochSpan, Key, Snapshot, StoredSummer
from sidecar.core.rejoin import Join, predecessors
from sidecar.core.walk import Gap, Revisited, Walked, is_complete, walk
from sidecar.errors import GapAt, Invalid, StoreError, StoreFormatError
from sidecar.store import joins, reads
from sidecar.store.connection import Row, finished
from sidecar.store.engine import Engine, sqlite_engine
from sidecar.store.findings import OF_EXECUTION, Kept, kept
from sidecar.store.format import Marker, gate
from sidecar.store.location import check_local, sqlite_path
from sidecar.store.opening import Opening
from sidecar.store.postgres.opening import postgres_engine, prepared
from sidecar.store.postgres.url import is_postgres, place_of
from sidecar.store.sizes import Sizes
from sidecar.store.unit import held_back

T = TypeVar("T")
PAGE: Final = 1000


class StoreReader:
    """The reading half of a chain store.  Made by `open_readonly`, or as part of ChainStore."""

    def __init__(self, engine: Engine, closing: AsyncExitStack) -> None:
        self._engine = engine
        self._quick = engine.quick
        self._points = engine.points
        self._scans = engine.scans
        self._closing = closing

    @property
    def rejoining(self) -> bool:
        """The gate NOETL_CHAIN_REJOIN: joins that stand order a chain."""
        return self._engine.rejoining

    @property
    def path(self) -> Path | None:
        """The store's file; None where a server keeps it."""
        return self._engine.path

    @property
    def summer(self) -> StoredSummer:
        """The sums of stored chains, for an audit beside whoever reads."""
        return self._engine.summer

    async def sizes(self) -> Sizes:
        """How big the store is.

        Raises:
            StoreError: it cannot be looked at.
        """
        return await self._engine.measure()

    async def close(self) -> None:
        """Close behind the calls that still run; a second call does nothing."""
        await finished(asyncio.create_task(self._closing.aclose()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # One execution

    async def chain(self, execution_id: int) -> tuple[Event, ...]:
        """The raw chain in ascending exec_seq, empty when nothing is stored.  It claims nothing."""
        return await reads.events(self._quick, self._points, execution_id)

    async def stored_chain(self, execution_id: int) -> tuple[StoredEvent, ...]:
        """The raw rows in ascending exec_seq."""
        return await reads.chain(self._points, execution_id)

    async def chains(self, execution_ids: Collection[int]) -> dict[int, tuple[StoredEvent, ...]]:
        """The raw rows of those executions that have any, in one statement."""
        return await self._point(lambda: reads.chains(self._points, execution_ids))

    async def get(self, execution_id: int, event_id: int) -> StoredEvent | None:
        """The stored row of one event, None when there is none."""
        key = (execution_id, event_id)
        return (await self._point(lambda: reads.find(self._points, (key,)))).get(key)

    async def parent_of(self, event: Event) -> StoredEvent | None:
        """The row that `event` names as its predecessor; None at the root.

        Raises:
            GapAt: it is not stored.  Source: spec 2.3.
        """
        if event.prev_event_id is None:
            return None
        parent = await self.get(event.execution_id, event.prev_event_id)
        if parent is None:
            raise GapAt(event.execution_id, event.prev_event_id)
        return parent

    async def parent_execution_of(self, execution_id: int) -> int | None:
        """The execution that started this one, as its first stored row says; one hop."""
        found = await self._point(lambda: reads.first(self._points, execution_id))
        return None if found is None else found.event.parent_execution_id

    async def joins(self, execution_id: int) -> tuple[Join, ...]:
        """Every join that is kept of the execution with its proof, oldest first, withdrawn ones too.

        Whatever the gate says: what is kept is shown, and orders nothing by itself.  One that
        stands (`Join.stands`) need not be in use: the chain may not be served for another reason.
        """
        return (await self.joins_of((execution_id,))).get(execution_id, ())

    async def joins_of(self, execution_ids: Collection[int]) -> dict[int, tuple[Join, ...]]:
        """The same for those of some executions of which anything is kept, in one statement."""
        return await self._point(lambda: joins.among(self._points, execution_ids))

    async def walk_from_head(self, execution_id: int) -> tuple[StoredEvent, ...]:
        """The chain by its links, newest first; empty without a head.

        Over a join it goes on at the tip, if joins are in use.

        Raises:
            GapAt: an event that is named is not stored, the head itself included.
            Invalid: the links lead back to an event that was passed.

        Source: spec 2.3.
        """
        match walk(*await self._whole(execution_id)):
            case Walked(rows):
                return rows
            case Gap(missing):
                raise GapAt(execution_id, missing)
            case Revisited(event_id):
                raise Invalid(f"the links of execution {execution_id} lead back to event {event_id}")

    async def chain_is_complete(self, execution_id: int) -> bool:
        """Whether the walk from the head meets as many rows as the highest sequence says.

        Behind is not broken: a contiguous prefix is complete, as is an unknown execution.
        A missing beginning is not seen.  Source: spec 2.3.
        """
        return is_complete(*await self._whole(execution_id))

    async def _whole(
        self, execution_id: int
    ) -> tuple[Partition | None, tuple[StoredEvent, ...], dict[int, int]]:
        async def read() -> tuple[Partition | None, tuple[StoredEvent, ...], dict[int, int]]:
            partitions = await reads.partitions(self._points, (execution_id,))
            chains = await reads.chains(self._points, (execution_id,))
            joined = await self._joined((execution_id,))
            return partitions.get(execution_id), chains.get(execution_id, ()), joined(execution_id)

        return await self._point(read)

    async def partition(self, execution_id: int) -> Partition | None:
        """The record, None when the store has never heard of the execution."""
        return (await self.partitions((execution_id,))).get(execution_id)

    async def partitions(self, execution_ids: Collection[int]) -> dict[int, Partition]:
        """The records that exist."""
        return await self._point(lambda: reads.partitions(self._points, execution_ids))

    async def authority(self, execution_id: int) -> Authority:
        """Whether a watermark stands, and which.  Source: spec 2.4."""
        partition = await self.partition(execution_id)
        return NotPopulated() if partition is None else partition.authority

    async def chain_if_authoritative(self, execution_id: int) -> GuardedRead:
        """The chain if the partition may answer, else the first reason why not.  Source: spec 2.6."""
        found = await reads.guarded(self._quick, self._points, execution_id)
        if self.rejoining and found.reason is Reason.CHAIN_GAP:
            # Rows that do not link may be joined; nearly every chain is read without asking.
            return (await self.guarded_reads((execution_id,)))[execution_id]
        return found

    async def guarded_reads(self, execution_ids: Collection[int]) -> dict[int, GuardedRead]:
        """Spec 2.6 for each id, all from one snapshot."""

        async def read() -> dict[int, GuardedRead]:
            partitions = await reads.partitions(self._points, execution_ids)
            due = await reads.due(self._points, execution_ids)
            chains = await reads.chains(self._points, execution_ids)
            joined = await self._joined(execution_ids)
            return {
                e: guarded_read(
                    partitions.get(e),
                    chains.get(e, ()),
                    held_back=held_back(partitions.get(e), due.get(e)),
                    joined=joined(e),
                )
                for e in execution_ids
            }

        return await self._point(read)

    async def snapshot(self, execution_id: int) -> Snapshot:
        """The record, its entry, its rows and the epochs, all of one instant."""

        async def read() -> Snapshot:
            ids = (execution_id,)
            partition = (await reads.partitions(self._points, ids)).get(execution_id)
            due = (await reads.due(self._points, ids)).get(execution_id)
            rows = (await reads.chains(self._points, ids)).get(execution_id, ())
            kept = (await joins.among(self._points, ids)).get(execution_id, ())
            usable = kept if self.rejoining else ()
            held, joined = held_back(partition, due), predecessors(usable)
            guarded = guarded_read(partition, rows, held_back=held, joined=joined)
            epochs = await reads.epochs(self._points)
            return Snapshot(execution_id, partition, due, rows, epochs, guarded, kept, usable)

        return await self._point(read)

    async def _joined(self, execution_ids: Collection[int]) -> Callable[[int], dict[int, int]]:
        """For each execution, behind which tip its roots may stand; nothing while joins are not in use."""
        kept = await joins.among(self._points, execution_ids) if self.rejoining else {}
        return lambda execution_id: predecessors(kept.get(execution_id, ()))

    async def findings(self, execution_id: int) -> list[Kept]:
        """Everything found of the execution, oldest first, resolved ones too."""
        return [
            kept(row) for row in await self._point(lambda: self._points.rows(OF_EXECUTION, (execution_id,)))
        ]

    async def due(self, execution_ids: Collection[int]) -> dict[int, Due]:
        """The entries of the work list that exist."""
        return await self._point(lambda: reads.due(self._points, execution_ids))

    # The whole store

    async def cursors(self) -> dict[str, Cursor]:
        """Every lane's cursor by lane key."""
        return await self._point(lambda: reads.cursors(self._points))

    async def epochs(self) -> tuple[EpochSpan, ...]:
        """All epochs of the server seen, oldest first."""
        return await self._point(lambda: reads.epochs(self._points))

    async def due_now(self, now: int, limit: int) -> list[int]:
        """Executions whose entry is due at `now` or flagged, oldest `due_at` first."""
        return await self._point(lambda: reads.due_now(self._points, now, limit))

    async def missing(self, keys: Sequence[Key]) -> list[Key]:
        """Those of `keys` that are not stored, in their order."""
        if not keys:
            return []
        present = await self._scan(lambda: reads.present(self._scans, keys))
        return [key for key in keys if key not in present]

    async def sums(self, low: int, high: int) -> Mapping[int, tuple[int, int]]:
        """Per execution with low <= execution_id <= high: (rows, exact sum of event ids)."""
        return await self._scan(lambda: reads.sums(self._scans, low, high))

    async def executions(
        self, low: int = ID_MIN, high: int = ID_MAX, *, page: int = PAGE
    ) -> AsyncGenerator[int, None]:
        """Every execution with a record or an event row, low to high ends included, ascending.

        Each page is a snapshot of its own, so that a long walk does not hold back checkpoints.
        """
        while low <= high:
            found = await self._page(low, high, page)
            for execution_id in found:
                yield execution_id
            if len(found) < page:
                return
            low = found[-1] + 1

    async def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Rows of one statement of this package, beside point reads."""
        return await self._scan(lambda: self._scans.rows(sql, parameters))

    async def _page(self, low: int, high: int, limit: int) -> list[int]:
        return await self._scan(lambda: reads.executions(self._scans, low, high, limit))

    async def _point(self, work: Callable[[], Awaitable[T]]) -> T:
        return await self._points.hold(work)

    async def _scan(self, work: Callable[[], Awaitable[T]]) -> T:
        return await self._scans.hold(work)


def open_readonly(url: str, *, not_on: str | None = None, rejoining: bool = False) -> Opening[StoreReader]:
    """Open an existing store for reading; no lock is taken, nothing is ever written.

    Args:
        url: As for ChainStore.open.
        not_on: The system identifier of a server that the store must not stand on.
        rejoining: Let the joins that are kept order a chain.

    Raises (when awaited):
        ConfigError: the URL names no store.
        StoreFormatError: the file is no chain store of this layout.
        StoreError: the file is missing or cannot be read.
    """

    async def start() -> StoreReader:
        if is_postgres(url):
            place = place_of(url)
            layout = await prepared(place, writing=False, not_on=not_on)
            async with AsyncExitStack() as opened:
                engine = await postgres_engine(place, layout, opened, rejoining=rejoining)
                return StoreReader(engine, opened.pop_all())
        path = sqlite_path(url)
        await asyncio.to_thread(_check_readable, path)
        async with AsyncExitStack() as opened:
            return StoreReader(await sqlite_engine(path, opened, rejoining=rejoining), opened.pop_all())

    return Opening(start)


def _check_readable(path: Path) -> None:
    if not path.is_file():
        raise StoreError(f"there is no store at {path}", hint="name the file that the sidecar writes")
    check_local(path.parent)
    if gate(path) is Marker.ABSENT:
        raise StoreFormatError(f"{path} is no chain store", hint="name the file that the sidecar writes")
