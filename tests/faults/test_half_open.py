"""Sockets that stay open while nobody answers any more: a router has lost its table.

Everything is noticed within the deadline of a query, nothing is made up meanwhile, and what comes
back is caught up.  A proxy of the tests swallows the bytes; Postgres itself is well all the time.
"""

from __future__ import annotations

import asyncio
import re
from itertools import count
from pathlib import Path

import asyncpg
import psutil
import pytest

from sidecar.errors import SourceUnavailable
from sidecar.source.connection import Session, fetch_alone
from tests.support.databases import Database
from tests.support.processes import open_files
from tests.support.proxy import proxy
from tests.support.rows import chain_rows, event_row
from tests.support.running import Running, intact, stored_rows
from tests.support.waiting import until

E = 7700
DEADLINE_S = 0.5
LONG_S = 600.0
"""Deadline of a statement that reads much."""
NEVER_S = 30.0
"""Without a deadline nothing ends; with one it is not this that does, on whatever machine."""


def _series(text: str, name: str) -> float:
    found = re.search(rf"^noetl_chain_{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, f"no series {name}"
    return float(found[1])


async def test_a_half_open_socket_is_noticed_and_what_was_missed_is_caught_up(
    pg: Database, tmp_path: Path
) -> None:
    store = tmp_path / "chain.db"
    await pg.insert(chain_rows(E, range(1, 11)))
    # One that dangles is asked for at every tick, so that the comparator meets the fault too.
    await pg.insert([event_row(E + 1, 1), event_row(E + 1, 3, prev=2)])
    async with (
        proxy(pg.dsn) as way,
        Running.start(way.dsn, store, NOETL_CHAIN_QUERY_TIMEOUT_S=str(DEADLINE_S)) as sidecar,
    ):
        await sidecar.until("/readyz", lambda text: text == "ready\n")
        await sidecar.stores(10)
        before = await sidecar.get("/metrics")
        links, files = way.links, psutil.Process(sidecar.pid).num_fds()
        way.swallow()
        await pg.insert(chain_rows(E + 2, range(101, 121)))
        await pg.insert([event_row(E + 1, 2, prev=1)])
        await sidecar.until("/readyz", lambda text: "source unavailable" in text)
        failed = 'shadow_verdict_total{verdict="log_read_failed"}'
        shown = await sidecar.until("/metrics", lambda text: _series(text, failed) > _series(before, failed))
        paused = [line for line in sidecar.lines if line["event"] == "loop_paused"]
        assert paused
        assert {line["reason"] for line in paused} == {"Postgres did not answer in time"}
        assert way.swallowed > 0, "nothing was swallowed: the test proves nothing"
        assert stored_rows(store) <= 11, "rows came through a dead socket"
        assert _series(shown, 'shadow_verdict_total{verdict="empty"}') == 0
        assert "alive" in await sidecar.get("/livez"), "its loops go round, each up to its deadline"
        await way.accepts(3)
        assert "source unavailable" in await sidecar.get("/readyz"), "a connection alone is no answer"
        assert way.links <= links + 3, "connections to nowhere are kept"
        way.heal()
        await sidecar.stores(33)
        await sidecar.until("/readyz", lambda text: text == "ready\n")
        matched = 'shadow_verdict_total{verdict="match"}'
        await sidecar.until("/metrics", lambda text: _series(text, matched) >= 3)
        assert not re.search(r"divergence_total\{[^}]*\} [1-9]", await sidecar.get("/metrics"))
        assert psutil.Process(sidecar.pid).num_fds() <= files + 4
        assert await sidecar.stopped() == 0
    assert intact(store)


@pytest.mark.parametrize("when", ["before the first word", "inside a statement"])
async def test_nobody_is_waited_for_longer_than_the_deadline(pg: Database, when: str) -> None:
    """The server's own timeout cannot be heard, so ours decides."""
    async with proxy(pg.dsn) as way:
        session = Session(way.dsn, query_timeout_s=DEADLINE_S)
        if when == "inside a statement":
            await fetch_alone(session, "select 1")
        way.swallow()
        tasks, files = len(asyncio.all_tasks()), open_files()
        async with asyncio.timeout(NEVER_S):
            with pytest.raises(SourceUnavailable, match="in time"):
                await fetch_alone(session, "select 1")
        await until(lambda: way.links == 0)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert open_files() <= files
        way.heal()
        assert (await fetch_alone(session, "select 2"))[0][0] == 2
        await session.close()


@pytest.mark.parametrize("long", [False, True])
async def test_wherever_the_wire_goes_dead_it_is_noticed(pg: Database, long: bool) -> None:
    """Also where the driver says goodbye to the statement before, behind which it would wait for ever."""
    sql = "select n from generate_series(1, 20) as n"
    timeout_s = LONG_S if long else None
    async with proxy(pg.dsn) as way:

        async def read(session: Session) -> list[int]:
            async with session.transaction(timeout_s) as transaction:
                portal = await transaction.cursor(sql)
                return [row[0] for row in [*await portal.fetch(10), *await portal.fetch(10)]]

        for passed in count():
            way.pass_all()
            session = Session(way.dsn, query_timeout_s=NEVER_S)
            await read(session)
            session._query_timeout_s = DEADLINE_S / 5
            way.stand_still_after(passed, by_pieces=True)
            try:
                async with asyncio.timeout(NEVER_S):
                    await read(session)
            except SourceUnavailable:
                continue
            break
        assert passed > 5
        await session.close()


async def _long_one(session: Session, sql: str, *, by_cursor: bool) -> list[object]:
    async with session.transaction(LONG_S) as transaction:
        if by_cursor:
            return list((await (await transaction.cursor(sql)).fetch(10))[0])
        return list((await transaction.fetch(sql))[0])


@pytest.mark.parametrize("tracked", ["on", "off"])
@pytest.mark.parametrize("by_cursor", [True, False])
async def test_a_long_statement_is_waited_for_while_the_server_is_at_work(
    pg: Database, by_cursor: bool, tracked: str
) -> None:
    await pg.execute(f'alter database "{pg.name}" set track_activities = {tracked}')
    async with proxy(pg.dsn) as way:
        session = Session(way.dsn, query_timeout_s=DEADLINE_S)
        answered = await _long_one(session, f"select 7 from pg_sleep({5 * DEADLINE_S})", by_cursor=by_cursor)
        assert answered == [7]
        assert way.accepted >= 4, "nobody asked whether the server is at work"
        await until(lambda: way.links == 1)
        await session.close()


@pytest.mark.parametrize("by_cursor", [True, False])
@pytest.mark.parametrize("healed", [True, False])
async def test_a_long_statement_that_nobody_works_on_is_given_up_as_early_as_a_short_one(
    pg: Database, healed: bool, by_cursor: bool
) -> None:
    """The wire died inside it; who asks meets the same wire, or a new one over which the server tells."""
    async with proxy(pg.dsn) as way:
        session = Session(way.dsn, query_timeout_s=DEADLINE_S)
        reading = asyncio.create_task(
            _long_one(session, f"select 7 from pg_sleep({3 * DEADLINE_S})", by_cursor=by_cursor)
        )
        await until(lambda: _sleeps(pg))
        way.swallow()
        if healed:
            way.heal()
        said = "did not arrive" if healed else "did not answer in time"
        async with asyncio.timeout(NEVER_S):
            with pytest.raises(SourceUnavailable, match=said):
                await reading
        await until(lambda: way.links == 0)
        way.heal()
        assert (await fetch_alone(session, "select 2"))[0][0] == 2
        await session.close()


async def test_a_server_that_cannot_tell_is_waited_for(pg: Database) -> None:
    """It answers, and has no connection for who asks: that is no dead wire."""
    async with proxy(pg.dsn) as way:
        session = Session(way.dsn, query_timeout_s=DEADLINE_S)
        reading = asyncio.create_task(
            _long_one(session, f"select 7 from pg_sleep({4 * DEADLINE_S})", by_cursor=False)
        )
        await until(lambda: _sleeps(pg))
        assert pg.server is not None
        apart = await asyncpg.connect(pg.server.dsn("postgres"))
        await apart.execute(f'alter database "{pg.name}" allow_connections false')
        try:
            assert await reading == [7]
            assert way.accepted >= 3
        finally:
            await apart.execute(f'alter database "{pg.name}" allow_connections true')
            await apart.close()
        await session.close()


async def _sleeps(pg: Database) -> bool:
    return await pg.holds(
        "select exists (select from pg_stat_activity"
        " where wait_event = 'PgSleep' and datname = current_database())"
    )
