"""One SQLite connection, one hold at a time, each a whole transaction or nothing.

A hold runs in a task of its own that a cancelled caller waits for, so the lock is never given
back while the transaction still runs.  A statement that fails spoils its hold: nothing more
is run in it and it cannot commit, because SQLite may already have rolled back and would
commit each later statement by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import aiosqlite

from sidecar.errors import Forked, Invalid, NotHead, StoreError, broken
from sidecar.store.failure import sqlite_errors
from sidecar.store.format import uri
from sidecar.store.place import Place

T = TypeVar("T")
Row = tuple[Any, ...]
Synchronous = Literal["normal", "full"]

REFUSALS: Final = (Invalid, NotHead, Forked)
"""What a savepoint goes back from: the event was refused, the engine is well."""

_WAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
_CACHE_KIB: Final = 32 * 1024


async def finished(task: asyncio.Task[T]) -> T:
    """The result of `task`, which is waited for even if the caller is cancelled meanwhile.

    Raises:
        CancelledError: the caller was cancelled; the task has ended by then, and its own
            failure, if any, is the cause.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])  # unlike awaiting the task, this never cancels it
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()


class Connection:
    """A connection and its lock.  `begin` opens each hold's transaction."""

    def __init__(self, raw: aiosqlite.Connection, begin: str, place: Place) -> None:
        self._raw = raw
        self._begin = begin
        self._place = place
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None
        self._closed = False

    async def hold(self, work: Callable[[], Awaitable[T]], then: Callable[[], None] = lambda: None) -> T:
        """Run `work` in one transaction, alone; commit, then call `then` in the same hold.

        Raises:
            StoreError: rolled back.  Whatever `work` raised: rolled back.
            CancelledError: the caller was cancelled; the transaction ran to its end first.
        """
        if asyncio.current_task() is self._holder is not None:
            broken("a transaction was opened inside another one of the same connection")
        async with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            self._holder = asyncio.create_task(self._transaction(work, then))
            try:
                return await finished(self._holder)
            finally:
                self._holder = None

    async def alone(self, sql: str, parameters: Iterable[Any] = ()) -> list[Row]:
        """All rows of one reading statement, which is a snapshot by itself.

        Three calls of the driver fewer than a transaction around it.

        Raises:
            StoreError: the statement failed.
            CancelledError: the caller was cancelled; the statement ran to its end first.
        """

        async def read() -> list[Row]:
            self._place.check()
            with sqlite_errors():
                found: Any = await self._raw.execute_fetchall(sql, parameters)
            rows: list[Row] = found
            return rows

        async with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            if self._raw.in_transaction:  # left by a rollback that failed
                await self._roll_back()
            return await finished(asyncio.create_task(read()))

    async def _transaction(self, work: Callable[[], Awaitable[T]], then: Callable[[], None]) -> T:
        try:
            if self._raw.in_transaction:  # left by a rollback that failed
                await self._roll_back()
            self._place.check()
            await self.rows(self._begin)
            result = await work()
            await self.rows("COMMIT")
        except BaseException:
            # Also a cancellation, at the end of the loop.
            await self._roll_back()
            raise
        finally:
            self._failure = None
        then()
        return result

    async def _roll_back(self) -> None:
        """Runs behind the statement that is still under way; does nothing when none is open."""
        with sqlite_errors():
            await self._raw.rollback()

    async def rows(self, sql: str, parameters: Iterable[Any] = ()) -> list[Row]:
        """Run one statement and return all its rows."""
        self._check()
        try:
            with sqlite_errors():
                found: Any = await self._raw.execute_fetchall(sql, parameters)
        except BaseException as error:
            self._failure = error
            raise
        rows: list[Row] = found  # tuples: no row factory is set
        return rows

    async def many(self, sql: str, parameters: Iterable[Row]) -> None:
        """Run one writing statement for each of `parameters`, in one call of the driver.

        An iterator is consumed in the driver's thread, while nothing else of the hold runs.
        """
        self._check()
        try:
            with sqlite_errors():
                await self._raw.executemany(sql, parameters)
        except BaseException as error:
            self._failure = error
            raise

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A part of the hold that may be refused; a refusal takes back this part alone.

        Raises:
            Invalid, NotHead, Forked: this part was taken back, the hold goes on.
            StoreError: the engine failed; the hold is spoilt, as SQLite may have rolled back.
        """
        await self.rows("SAVEPOINT part")
        try:
            yield
        except REFUSALS as refusal:
            # A broken constraint undoes its own statement and leaves the transaction whole.
            if self._failure is refusal:
                self._failure = None
            await self.rows("ROLLBACK TO part")
            await self.rows("RELEASE part")
            raise
        await self.rows("RELEASE part")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def set_up(self, pragmas: Sequence[str]) -> None:
        with sqlite_errors():
            for pragma in pragmas:
                await self._raw.execute_fetchall(f"PRAGMA {pragma}")

    async def close(self) -> None:
        """Close behind the hold that still runs; a second call does nothing."""
        async with self._lock:
            if not self._closed:
                self._closed = True
                with sqlite_errors():
                    await self._raw.close()


async def open_writer(
    path: Path, *, synchronous: Synchronous, busy_timeout_ms: int, max_bytes: int = 0
) -> Connection:
    """The one connection that writes.

    Args:
        max_bytes: What the file may grow to; a smaller bound than it has already stops it from
            growing.  0: none.

    Raises:
        StoreError: the file cannot be opened, or cannot be in WAL mode.
    """
    connection = await _connected(path, "rw", "BEGIN IMMEDIATE", busy_timeout_ms)
    try:
        await _use_wal(connection)
        await connection.set_up(
            (
                f"synchronous = {'FULL' if synchronous == 'full' else 'NORMAL'}",
                "wal_autocheckpoint = 8000",
                f"journal_size_limit = {_WAL_LIMIT_BYTES}",
                "mmap_size = 0",  # a mapped page turns an I/O error into a signal
                f"cache_size = -{_CACHE_KIB}",
            )
        )
        if max_bytes > 0:
            ((page_size,),) = await connection.rows("PRAGMA page_size")
            await connection.set_up((f"max_page_count = {max(1, max_bytes // page_size)}",))
    except BaseException:
        await connection.close()
        raise
    return connection


async def _use_wal(connection: Connection) -> None:
    if await connection.rows("PRAGMA journal_mode = WAL") != [("wal",)]:
        raise StoreError(
            "the store's file system cannot share memory", hint="SQLite's WAL needs a local disk"
        )


async def open_reader(path: Path, *, busy_timeout_ms: int) -> Connection:
    """A connection that cannot write; each hold sees one snapshot.

    Raises:
        StoreError: the file cannot be opened.
    """
    connection = await _connected(path, "ro", "BEGIN", busy_timeout_ms)
    try:
        await connection.set_up(("query_only = ON", "mmap_size = 0"))
    except BaseException:
        await connection.close()
        raise
    return connection


async def _connected(path: Path, mode: str, begin: str, busy_timeout_ms: int) -> Connection:
    with sqlite_errors():
        raw = await aiosqlite.connect(
            uri(path, mode), uri=True, isolation_level=None, timeout=busy_timeout_ms / 1000
        )
    return Connection(raw, begin, Place(path))
