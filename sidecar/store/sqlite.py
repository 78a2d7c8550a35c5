"""The connections to an SQLite file: the one that writes, and those that cannot.

Each statement runs in aiosqlite's thread; `hold` and its lock are the same for every engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import aiosqlite

from sidecar.errors import StoreError
from sidecar.store.connection import Connection, Row, Synchronous, finished
from sidecar.store.failure import sqlite_errors
from sidecar.store.format import uri
from sidecar.store.place import Place

_WAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
_CACHE_KIB: Final = 32 * 1024


class SqliteConnection(Connection):
    """A connection to one file.  `begin` opens each hold's transaction."""

    def __init__(self, raw: aiosqlite.Connection, begin: str, place: Place) -> None:
        super().__init__()
        self._raw = raw
        self._start = begin
        self._place = place

    async def alone(self, sql: str, parameters: Iterable[Any] = ()) -> list[Row]:
        # Three calls of the driver fewer than a transaction around it.
        async def read() -> list[Row]:
            self._place.check()
            return await self._fetch(sql, parameters)

        async with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            await self._settle()
            return await finished(asyncio.create_task(read()))

    async def _settle(self) -> None:
        if self._raw.in_transaction:  # left by a rollback that failed
            await self._roll_back()

    async def _begin(self) -> None:
        await self._settle()
        self._place.check()
        await self.rows(self._start)

    async def _commit(self) -> None:
        await self.rows("COMMIT")

    async def _roll_back(self) -> None:
        with sqlite_errors():
            await self._raw.rollback()

    async def _fetch(self, sql: str, parameters: Iterable[Any]) -> list[Row]:
        with sqlite_errors():
            found: Any = await self._raw.execute_fetchall(sql, parameters)
        rows: list[Row] = found  # tuples: no row factory is set
        return rows

    async def _execute_many(self, sql: str, parameters: Iterable[Row]) -> None:
        # An iterator is consumed in the driver's thread.
        with sqlite_errors():
            await self._raw.executemany(sql, parameters)

    async def set_up(self, pragmas: Sequence[str]) -> None:
        with sqlite_errors():
            for pragma in pragmas:
                await self._raw.execute_fetchall(f"PRAGMA {pragma}")

    async def _end(self) -> None:
        with sqlite_errors():
            await self._raw.close()


async def open_writer(
    path: Path, *, synchronous: Synchronous, busy_timeout_ms: int, max_bytes: int = 0
) -> SqliteConnection:
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


async def _use_wal(connection: SqliteConnection) -> None:
    if await connection.rows("PRAGMA journal_mode = WAL") != [("wal",)]:
        raise StoreError(
            "the store's file system cannot share memory", hint="SQLite's WAL needs a local disk"
        )


async def open_reader(path: Path, *, busy_timeout_ms: int) -> SqliteConnection:
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


async def _connected(path: Path, mode: str, begin: str, busy_timeout_ms: int) -> SqliteConnection:
    with sqlite_errors():
        raw = await aiosqlite.connect(
            uri(path, mode), uri=True, isolation_level=None, timeout=busy_timeout_ms / 1000
        )
    return SqliteConnection(raw, begin, Place(path))
