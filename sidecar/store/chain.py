"""The chain store on SQLite: the one writer, its lock, and the calls of the Python surface.

Opening decides in this order: where (a local, writable folder), which layout (the marker), who
(the file lock).  Only then is anything created or read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sidecar.core.authority import Partition, StoredEvent, revoked
from sidecar.core.event import Event, is_id
from sidecar.core.populate import LogRead, Outcome
from sidecar.core.ports import ExecutionLog
from sidecar.errors import Invalid, NotHead
from sidecar.store.clock import StoreClock
from sidecar.store.connection import Connection, Synchronous, open_writer
from sidecar.store.format import Marker, gate, initialise
from sidecar.store.location import check_folder, sqlite_path
from sidecar.store.lock import StoreLock, take
from sidecar.store.opening import Opening
from sidecar.store.reader import BUSY_TIMEOUT_MS, StoreReader, open_readonly, readers
from sidecar.store.unit import HIGH, SqliteUnit

T = TypeVar("T")
FLAG_HELD: Final = (
    "UPDATE due SET reread = ? WHERE reread IS NULL"
    " AND execution_id IN (SELECT execution_id FROM partition WHERE held > 0)"
)
_SURROGATES: Final = frozenset(map(chr, range(0xD800, 0xE000)))


class ChainStore(StoreReader):
    """core.ports.Store.  One instance a file, in one process; see `open`."""

    def __init__(
        self,
        path: Path,
        writer: Connection,
        points: Connection,
        scans: Connection,
        clock: StoreClock,
        closing: AsyncExitStack,
    ) -> None:
        super().__init__(path, points, scans, closing)
        self._writer = writer
        self._clock = clock

    @staticmethod
    def open(
        url: str, *, synchronous: Synchronous = "normal", busy_timeout_ms: int = BUSY_TIMEOUT_MS
    ) -> Opening[ChainStore]:
        """Open the store, making file and layout if there are none.

        Args:
            url: `sqlite:////abs/path`, `sqlite:///rel/path` or a path.
            synchronous: `normal` re-reads the last polls after a power cut, `full` does not.
            busy_timeout_ms: How long to wait for somebody else's lock on the database.

        Returns:
            To be awaited, or used in `async with`.

        Raises (when awaited):
            ConfigError: the URL names no SQLite file.
            StoreLocked: another sidecar holds the store.
            StoreFormatError: another layout; the file is unchanged.
            StoreError: the folder or the file cannot be used; nothing was made elsewhere.
        """
        return Opening(partial(_opened, url, synchronous, busy_timeout_ms))

    open_readonly = staticmethod(open_readonly)

    @property
    def clock(self) -> StoreClock:
        return self._clock

    async def transact(self, work: Callable[[SqliteUnit], Awaitable[T]]) -> T:
        """Run `work` in one write transaction, alone, to its end even if the caller is cancelled.

        Raises:
            StoreFull, StoreBusy: rolled back, nothing lost; try again.
            StoreError: rolled back.  Whatever `work` raised: rolled back.
            CancelledError: the transaction ran to its end first; whether it committed is
                what a later read says.
        """
        unit = SqliteUnit(self._writer, self._clock)
        return await self._writer.hold(partial(unit.perform, work), unit.committed)

    async def flag_held(self) -> None:
        """Mark what waited in a pool that did not survive: its log has to be read again.

        Called once, before anything is fed.  Source: spec 2.12 step 2.
        """
        now = self._clock.now()
        await self._writer.hold(lambda: self._writer.rows(FLAG_HELD, (now,)))

    async def populate_from_log(
        self, execution_id: int, events: Iterable[Event], *, read: LogRead | None = None
    ) -> Outcome:
        """Bring the partition up to one complete log read.

        Args:
            events: Every row of a successful read, in any order; never an empty list for a
                read that failed.
            read: When and against what it ran; None: began now, epoch and anchor unknown.

        Raises:
            Invalid: an id, a text or an execution is not usable; nothing was written.

        Source: spec 2.8.
        """
        rows = tuple(events)
        _check_id(execution_id, "execution_id")
        for event in rows:
            check_event(event)
            if event.execution_id != execution_id:
                raise Invalid(f"event {event.event_id} belongs to execution {event.execution_id}")
        log = ExecutionLog(execution_id, rows, read or LogRead(self._clock.now()))

        async def work(unit: SqliteUnit) -> Outcome:
            return (await unit.populate((log,)))[execution_id].outcome

        return await self.transact(work)

    async def append(self, event: Event) -> int:
        """Append behind the head; watermark and coverage are not touched.

        Returns:
            The event's exec_seq.

        Raises:
            NotHead: the predecessor is not the head; the head has not moved.
            Invalid: the event is not usable, or its id or place is taken; nothing was written.

        Source: spec 2.3.
        """
        check_event(event)

        async def work(unit: SqliteUnit) -> int:
            found = await unit.partitions((event.execution_id,))
            partition = found.get(event.execution_id) or Partition(event.execution_id)
            if partition.head_event_id != event.prev_event_id:
                raise NotHead(partition.head_event_id, event.prev_event_id)
            after = _with_head(partition, event, self._clock.now())
            unit.append((StoredEvent(after.head_seq, event, "append", after.last_change_at),))
            unit.put_partition(after)
            return after.head_seq

        return await self.transact(work)

    async def revoke(self, execution_id: int, reason: str) -> bool:
        """Withdraw coverage; events and watermark stay as evidence.

        Returns:
            False when the store has no record of the execution; nothing was written then.

        Source: spec 2.9.
        """
        _check_id(execution_id, "execution_id")
        _check_text(reason, "reason")

        async def work(unit: SqliteUnit) -> bool:
            partition = (await unit.partitions((execution_id,))).get(execution_id)
            if partition is not None:
                unit.put_partition(revoked(partition, reason, self._clock.now()))
            return partition is not None

        return await self.transact(work)


def _with_head(partition: Partition, event: Event, now: int) -> Partition:
    # The anchor spoke of the old head.
    return replace(
        partition,
        parent_execution_id=partition.parent_execution_id
        if partition.head_seq
        else event.parent_execution_id,
        head_seq=partition.head_seq + 1,
        head_event_id=event.event_id,
        head_anchor=None,
        head_epoch=None,
        terminal=partition.terminal or event.is_terminal,
        last_change_at=now,
    )


def check_event(event: Event) -> None:
    """Refuse what the chain cannot hold exactly.

    Raises:
        Invalid: an id is no 64-bit integer, or a text is no Unicode.
    """
    _check_id(event.execution_id, "execution_id")
    _check_id(event.event_id, "event_id")
    if event.prev_event_id is not None:
        _check_id(event.prev_event_id, "prev_event_id")
    if event.parent_execution_id is not None:
        _check_id(event.parent_execution_id, "parent_execution_id")
    _check_text(event.event_type, "event_type")
    _check_text(event.body, "body")


def _check_id(value: object, name: str) -> None:
    if not is_id(value):
        raise Invalid(f"{name} is no 64-bit integer")


def _check_text(value: object, name: str) -> None:
    if not isinstance(value, str) or not (value.isascii() or _SURROGATES.isdisjoint(value)):
        raise Invalid(f"{name} is no Unicode text")


async def _opened(url: str, synchronous: Synchronous, busy_timeout_ms: int) -> ChainStore:
    path = sqlite_path(url)
    lock = await asyncio.to_thread(_prepared, path)
    async with AsyncExitStack() as opened:
        opened.callback(lock.release)
        writer = await open_writer(path, synchronous=synchronous, busy_timeout_ms=busy_timeout_ms)
        opened.push_async_callback(writer.close)
        points, scans = await readers(path, opened)
        high = await writer.rows(HIGH, ("clock",))
        clock = StoreClock(high[0][0] if high else 0)
        return ChainStore(path, writer, points, scans, clock, opened.pop_all())


def _prepared(path: Path) -> StoreLock:
    check_folder(path)
    gate(path)  # before the lock file: another build's store is left alone
    lock = take(path)
    try:
        if gate(path) is Marker.ABSENT:
            initialise(path)
    except BaseException:
        lock.release()
        raise
    return lock
