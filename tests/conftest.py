"""Fixtures that every test may ask for: Postgres, and databases with the event table.

`pg`         a fresh database on the session's server (embedded, or NOETL_TEST_PG_URL)
`pg_older`   the same with the table of an older install, without the late columns
`pg_each`    the same as `pg`, once for every version of the matrix
`pg_wal`     the same as `pg`, with its event table published for the WAL source
`pg_server`  starts servers of the test's own: crashes, pg_resetwal, settings, TCP
`pg_bin`     the bin folder of one version of the matrix, None for the default
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import structlog

from sidecar.demo.postgres import EmbeddedPostgres
from tests.support.compiled import keep_compiled
from tests.support.databases import URL_VARIABLE, Database, Server, fresh_database, matrix, prepare
from tests.support.loops import Loop
from tests.support.published import published
from tests.support.temporary import keep_in_memory
from tests.support.turns import UNTIL_VARIABLE, bound, may_begin

Servers = Callable[[Path | None], Awaitable[Server]]
StartServer = Callable[..., Awaitable[EmbeddedPostgres]]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the program runs on."""
    return {"uvloop": Loop}


def pytest_configure(config: pytest.Config) -> None:
    if "not torture" in config.getoption("markexpr"):
        keep_in_memory()
    keep_compiled(getattr(config, "cache", None))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A run with a time to end by begins nothing that may not end, and still says what had failed."""
    left_s = float(os.environ.get(UNTIL_VARIABLE, "inf")) - time.time()
    if not may_begin(bound(item), left_s):
        pytest.skip("out of time: the suite had to end")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may take longest begins first: it has the time then, and no worker waits for it at the end."""
    items.sort(key=bound, reverse=True)


@pytest.fixture(autouse=True)
def _fresh_logging() -> Iterator[None]:
    """A command that a test runs configures structlog for the process; the next test starts anew."""
    yield
    structlog.reset_defaults()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pg_bin" in metafunc.fixturenames:
        metafunc.parametrize(
            "pg_bin", matrix(), ids=lambda path: str(path) if path else "embedded", scope="session"
        )


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Servers by bin folder, each started when it is first asked for."""
    running: dict[Path | None, Server] = {}

    async def server(folder: Path | None) -> Server:
        if folder not in running:
            url = os.environ.get(URL_VARIABLE) if folder is None else None
            running[folder] = await Server.given(url) if url else Server.started(folder)
        return running[folder]

    yield server
    for one in running.values():
        one.close()


@pytest.fixture
async def pg(servers: Servers) -> AsyncIterator[Database]:
    async with fresh_database(await servers(None)) as database:
        yield database


@pytest.fixture
async def pg_older(servers: Servers) -> AsyncIterator[Database]:
    async with fresh_database(await servers(None), late_columns=False) as database:
        yield database


@pytest.fixture
async def pg_wal(servers: Servers) -> AsyncIterator[Database]:
    async with published(await servers(None)) as database:
        yield database


@pytest.fixture
async def pg_each(servers: Servers, pg_bin: Path | None) -> AsyncIterator[Database]:
    async with fresh_database(await servers(pg_bin)) as database:
        yield database


@pytest.fixture
def pg_server() -> Iterator[StartServer]:
    """`await pg_server(settings, bin=…, tcp=…, event_table=True, late_columns=True)`.

    The server's database `postgres` holds an empty noetl.event.  Stopped at the end, also
    one that the test has killed.
    """
    started: list[EmbeddedPostgres] = []

    async def start(
        settings: Mapping[str, str] | None = None,
        *,
        bin: Path | None = None,  # noqa: A002 (the starter's own word)
        tcp: bool = False,
        password: str | None = None,
        event_table: bool = True,
        late_columns: bool = True,
    ) -> EmbeddedPostgres:
        server = EmbeddedPostgres.start(settings, bin=bin, tcp=tcp, password=password)
        started.append(server)
        if event_table:
            await prepare(server.dsn(), late_columns=late_columns)
        return server

    yield start
    for server in started:
        server.stop()
