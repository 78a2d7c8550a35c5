"""Databases for tests: a server for the session, and a fresh database with noetl.event a test."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import asyncpg
import pytest

from sidecar.demo import binaries
from sidecar.demo.ddl import event_table
from sidecar.demo.postgres import EmbeddedPostgres
from tests.support.rows import insert_rows

T = TypeVar("T")

URL_VARIABLE: Final = "NOETL_TEST_PG_URL"
BINS_VARIABLE: Final = "NOETL_CHAIN_TEST_PG_BINS"
CONNECT_TIMEOUT_S: Final = 10.0

_numbers = itertools.count(1)


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in a loop of its own that leaves the thread's current loop alone."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)


def beside(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in a thread and loop of its own: the caller's loop may be running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run_apart, work).result()


class Server:
    """A server that clones a template with the event table; embedded, or the one of the variable."""

    def __init__(self, dsn: str, embedded: EmbeddedPostgres | None) -> None:
        self.embedded = embedded
        self._dsn = dsn
        self._templates: dict[bool, str] = {}

    @classmethod
    def started(cls, folder: Path | None) -> Server:
        """An embedded server over the programs in `folder`; None: those the demo would take."""
        embedded = EmbeddedPostgres.start(
            {
                "max_connections": "200",
                "max_prepared_transactions": "20",
                "wal_level": "logical",
                "max_wal_size": "128MB",
            },
            bin=folder,
        )
        return cls(embedded.dsn(), embedded)

    @classmethod
    async def given(cls, url: str) -> Server:
        """The server of the variable.  One that cannot be reached fails every test that needs it."""
        server = cls(url, None)
        try:
            await server._say("SELECT 1")
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            # Without a traceback: it would print the address, password included.
            pytest.fail(
                f"{URL_VARIABLE} is set, but the server did not answer: {type(error).__name__}", pytrace=False
            )
        return server

    def dsn(self, database: str) -> str:
        """The way into one of its databases."""
        return _with_database(self._dsn, database)

    async def create(self, *, late_columns: bool = True) -> str:
        """A fresh database with an empty noetl.event; its name."""
        template = await self._template(late_columns)
        name = _fresh_name("test")
        await self._clone(name, template)
        return name

    async def drop(self, name: str) -> None:
        """Drop it, whoever is still connected."""
        await self._say(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def close(self) -> None:
        """Stop an embedded server; on a given one drop the templates."""
        if self.embedded is not None:
            self.embedded.stop()
            return
        for name in self._templates.values():
            run_apart(self.drop(name))

    async def _template(self, late_columns: bool) -> str:
        if late_columns not in self._templates:
            name = _fresh_name("template")
            await self._say(f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8'")
            await _execute(self.dsn(name), event_table(late_columns=late_columns))
            self._templates[late_columns] = name
        return self._templates[late_columns]

    async def _clone(self, name: str, template: str) -> None:
        """By copied files where the server can be told so: half the time, no WAL."""
        conn = await asyncpg.connect(self._dsn, timeout=CONNECT_TIMEOUT_S)
        try:
            strategy = " STRATEGY FILE_COPY" if conn.get_server_version().major >= 15 else ""
            await conn.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"{strategy}')
        finally:
            await conn.close()

    async def _say(self, sql: str) -> None:
        await _execute(self._dsn, sql)


class Database:
    """One test's database: `dsn`, connections that the fixture closes, rows into noetl.event."""

    def __init__(self, dsn: str, name: str, server: Server | None = None) -> None:
        self.dsn = dsn
        self.name = name
        self.server = server
        self._open: list[Any] = []

    async def connect(self, **options: Any) -> Any:
        """A new asyncpg connection; the fixture closes it."""
        conn = await asyncpg.connect(self.dsn, timeout=CONNECT_TIMEOUT_S, **options)
        self._open.append(conn)
        return conn

    async def insert(self, rows: Iterable[Mapping[str, Any]], *, table: str = "noetl.event") -> None:
        """Insert the rows of `tests.support.rows` in one transaction of a connection of its own."""
        conn = await self.connect()
        async with conn.transaction():
            await insert_rows(conn, rows, table=table)
        await conn.close()

    async def execute(self, sql: str, *arguments: Any) -> None:
        """One statement, or several without arguments, on a connection of its own."""
        conn = await self.connect()
        await conn.execute(sql, *arguments)
        await conn.close()

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        """The rows of one query on a connection of its own."""
        conn = await self.connect()
        rows: list[Any] = await conn.fetch(sql, *arguments)
        await conn.close()
        return rows

    async def holds(self, sql: str, *arguments: Any) -> bool:
        """Whether the first value of the first row is true, or more than 0."""
        return bool((await self.fetch(sql, *arguments))[0][0])

    async def close(self) -> None:
        """Close what the test left open, not waiting for a statement that still runs."""
        for conn in self._open:
            if not conn.is_closed():
                conn.terminate()


@asynccontextmanager
async def fresh_database(server: Server, *, late_columns: bool = True) -> AsyncIterator[Database]:
    """A cloned database, dropped at the end."""
    name = await server.create(late_columns=late_columns)
    database = Database(server.dsn(name), name, server)
    try:
        yield database
    finally:
        await database.close()
        await server.drop(name)


async def prepare(dsn: str, *, late_columns: bool = True) -> None:
    """Create the event table in an empty database."""
    await _execute(dsn, event_table(late_columns=late_columns))


def matrix() -> list[Path | None]:
    """The versions to test: None is the embedded default.

    Without NOETL_CHAIN_TEST_PG_BINS only that; with it (a path list, empty allowed) also every
    folder it names and every server of the system.
    """
    listed = os.environ.get(BINS_VARIABLE)
    if listed is None:
        return [None]
    named = [Path(word).resolve() for word in listed.split(os.pathsep) if word]
    return [None, *dict.fromkeys(named + [path.resolve() for path in binaries.installed()])]


def _with_database(dsn: str, database: str) -> str:
    """`urlunsplit` drops the two slashes of an address without host, so the text is cut here."""
    head, _, query = dsn.partition("?")
    path = urlsplit(head).path
    return f"{head.removesuffix(path)}/{database}" + (f"?{query}" if query else "")


def _fresh_name(kind: str) -> str:
    return f"noetl_chain_{kind}_{os.getpid()}_{next(_numbers)}"


async def _execute(dsn: str, sql: str) -> None:
    conn = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        await conn.execute(sql)
    finally:
        await conn.close()
