"""Connections that break, one after the other, leave nothing behind, here or on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sidecar.errors import SourceUnavailable
from sidecar.source.log import PostgresLog
from tests.support.databases import Database
from tests.support.processes import open_files
from tests.support.proxy import Proxy, proxy
from tests.support.rows import chain_rows
from tests.support.tailing import Ticks, opened
from tests.support.waiting import until

E = 7800
BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'noetl-chain' AND datname = $1"
KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = 'noetl-chain' AND datname = $1"
)
ASLEEP = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND query LIKE 'select pg_sleep%'"


@pytest.mark.parametrize("reconnects", [15, pytest.param(200, marks=pytest.mark.torture)])
async def test_reconnects_leave_no_backend_no_task_and_no_file(pg: Database, reconnects: int) -> None:
    await pg.insert(chain_rows(E, [1, 2, 3]))
    admin = await pg.connect()
    async with proxy(pg.dsn) as way, opened(way.dsn, query_timeout_s=1) as source:
        log = source.reader(Ticks())
        breaks = (_killed(admin, pg.name), _cut(way), _cut_in_an_answer(way), _given_up(log, admin, pg.name))
        assert await _rows(log) == 3
        tasks, files = len(asyncio.all_tasks()), open_files()
        before = way.accepted
        failures = 0
        for number in range(reconnects):
            await breaks[number % len(breaks)]()
            while True:
                try:
                    assert await _rows(log) == 3
                    break
                except SourceUnavailable:
                    failures += 1
        assert way.accepted - before >= reconnects, "it did not connect anew each time"
        assert reconnects / 4 <= failures <= 2 * reconnects
        await until(lambda: way.links <= 1)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert open_files() <= files

        async def one_left() -> bool:
            return bool(await admin.fetchval(BACKENDS, pg.name) <= 1)

        await until(one_left)  # a backend whose client went away ends with its statement

    async def none_left() -> bool:
        return bool(await admin.fetchval(BACKENDS, pg.name) == 0)

    await until(none_left)


async def _rows(log: PostgresLog) -> int:
    return len((await log.read([E]))[0].events or ())


Break = Callable[[], Awaitable[object]]


def _killed(admin: Any, database: str) -> Break:
    async def kill() -> None:
        await admin.execute(KILL.replace("$1", f"'{database}'"))

    return kill


def _cut(way: Proxy) -> Break:
    async def cut() -> None:
        way.cut()

    return cut


def _cut_in_an_answer(way: Proxy) -> Break:
    async def cut() -> None:
        way.cut_once_after(0)

    return cut


def _given_up(log: PostgresLog, admin: Any, database: str) -> Break:
    """The caller goes away in the middle of a statement."""

    async def asleep() -> bool:
        return bool(await admin.fetchval(ASLEEP, database))

    async def give_up() -> None:
        reading = asyncio.create_task(log.fetch("select pg_sleep(10)"))
        await until(asleep)
        reading.cancel()
        await asyncio.wait({reading})

    return give_up
