"""Somebody holds the xmin horizon back: nothing is missed, and who it is gets said.

An idle session that wrote, and a prepared transaction with no session at all; in another
database and of another role, as a plain reader sees them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.doctor.checks import State
from sidecar.doctor.examination import examined
from sidecar.settings import Settings
from sidecar.source.connection import Session
from sidecar.source.pins import find_pins
from tests.support.captured import captured
from tests.support.databases import Database, prepare, run_apart
from tests.support.rows import event_row, insert_rows
from tests.support.service import Service, service
from tests.support.waiting import until

E = 7600
AGE_S = 0.6


@pytest.fixture(scope="module")
def own_server() -> Iterator[str]:
    """A server of these tests alone: on a shared one anybody's transaction would hold H too."""
    settings = {"max_prepared_transactions": "5", "autovacuum": "off", "wal_level": "logical"}
    with EmbeddedPostgres.start(settings) as server:
        run_apart(_made(server.dsn()))
        yield server.dsn()


async def _made(dsn: str) -> None:
    await prepare(dsn)
    pg = Database(dsn, "postgres")
    await pg.execute(
        "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA noetl TO reader;"
        "GRANT SELECT ON noetl.event TO reader;"
        "CREATE ROLE engine LOGIN; GRANT USAGE ON SCHEMA noetl TO engine;"
        "GRANT SELECT, INSERT ON noetl.event TO engine"
    )
    await pg.execute("CREATE DATABASE other OWNER engine")
    await Database(_as(pg, "engine", "other"), "other").execute(
        "CREATE SCHEMA own; ALTER ROLE engine SET search_path = own"
    )


@pytest.fixture
async def alone(own_server: str) -> AsyncIterator[Database]:
    pg = Database(own_server, "postgres")
    await pg.execute("TRUNCATE noetl.event")
    yield pg
    await pg.close()


@pytest.fixture
async def elsewhere(alone: Database) -> AsyncIterator[Database]:
    """The engine's way into another database of that server."""
    other = Database(_as(alone, "engine", "other"), "other")
    yield other
    await other.close()


def _as(pg: Database, role: str, database: str = "postgres") -> str:
    _, _, query = pg.dsn.partition("?")
    return f"postgresql://{role}@/{quote(database)}?{query}"


@asynccontextmanager
async def _following(pg: Database, store: Path) -> AsyncIterator[tuple[Service, list[Any]]]:
    log, lines = captured()
    options = {"pinned_s": AGE_S, "sweep_round_s": 0.5, "log": log}
    async with service(_as(pg, "reader"), store, **options) as sidecar:
        await pg.insert([event_row(E, 1)])
        await sidecar.stored(E, 1)
        await sidecar.caught_up()
        yield sidecar, lines


async def _held(lines: list[Any], event: str) -> Any:
    def found() -> list[Any]:
        return [line for line in lines if line["event"] == event]

    await until(lambda: bool(found()))
    return found()[-1]


async def _age(sidecar: Service, holds: Callable[[float], bool]) -> None:
    """Wait until the gauge is as expected; each poll shows what the one before has found."""

    async def shown() -> bool:
        return holds(sidecar.value("tail_horizon_age_seconds", lane="live"))

    await sidecar.until(shown)


async def _writes_on(pg: Database, sidecar: Service, rows: int) -> None:
    """Other transactions commit while H stands still, and are stored at once."""
    for event_id in range(2, 2 + rows):
        await pg.insert([event_row(E, event_id, prev=event_id - 1)])
    await sidecar.stored(E, 1 + rows)


async def _doctor(pg: Database, store: Path) -> dict[str, tuple[State, str]]:
    settings = Settings.given(dsn=_as(pg, "reader"), store=str(store), pinned_s=AGE_S)
    return {check.name: (check.state, f"{check.found} {check.remedy}") for check in await examined(settings)}


async def _horizon(pg: Database) -> tuple[int, int]:
    row = (
        await pg.fetch(
            "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint"
            " FROM pg_current_snapshot() s"
        )
    )[0]
    return row[0], row[1]


@pytest.mark.torture
async def test_an_idle_writer_in_another_database_is_named_and_costs_no_row(
    alone: Database, elsewhere: Database, tmp_path: Path
) -> None:
    store = tmp_path / "chain.db"
    async with _following(alone, store) as (sidecar, lines):
        idle = await elsewhere.connect(server_settings={"application_name": "forgotten"})
        await idle.execute("BEGIN; CREATE TABLE t (secret text); INSERT INTO t VALUES ('payload')")
        h, _ = await _horizon(alone)
        await _writes_on(alone, sidecar, 5)
        assert (await _horizon(alone))[0] == h, "nothing holds the horizon: the test proves nothing"
        line = await _held(lines, "horizon_held")
        assert line["pid"] == idle.get_server_pid()
        assert (line["application"], line["role"], line["database"]) == ("forgotten", "engine", "other")
        assert "payload" not in repr(lines)
        await _age(sidecar, lambda age: age >= AGE_S)
        found = await _doctor(alone, store)
        state, text = found["horizon"]
        assert state is State.WARNING
        assert f"process {idle.get_server_pid()} (forgotten) of engine in other" in text
        assert "payload" not in repr(found)
        assert "nobody" not in found["store_lock"][1], "doctor runs beside the sidecar"

        age = sidecar.value("tail_horizon_age_seconds", lane="live")
        await _age(sidecar, lambda later: later > age)
        await idle.execute("COMMIT")
        await idle.close()
        await _held(lines, "horizon_moves_on")
        await _age(sidecar, lambda age: age < AGE_S)
        await sidecar.verdict(E, "match")
        assert (await _doctor(alone, store))["horizon"][0] is State.OK
        assert sidecar.divergences() == {}
        assert len([line for line in lines if line["event"] == "horizon_held"]) == 1


async def test_a_prepared_transaction_is_named_by_its_gid_and_its_rows_come_when_it_ends(
    alone: Database, tmp_path: Path
) -> None:
    store = tmp_path / "chain.db"
    async with _following(alone, store) as (sidecar, lines):
        first = await alone.connect()
        await first.execute("SET SESSION AUTHORIZATION engine; BEGIN")
        await insert_rows(first, [event_row(E + 1, 1), event_row(E + 1, 2, prev=1)])
        await first.execute("PREPARE TRANSACTION 'two-phase-7'")
        await first.close()
        h, _ = await _horizon(alone)
        await _writes_on(alone, sidecar, 5)
        assert (await _horizon(alone))[0] == h, "nothing holds the horizon: the test proves nothing"
        line = await _held(lines, "horizon_held")
        assert (line["by"], line["gid"], line["pid"]) == ("a prepared transaction", "two-phase-7", None)
        found = await _doctor(alone, store)
        for name in ("horizon", "prepared_transactions"):
            state, text = found[name]
            assert state is State.WARNING
            assert "'two-phase-7' of engine in postgres" in text
            assert "ROLLBACK PREPARED" in text
        assert await sidecar.store.partition(E + 1) is None
        await alone.execute("COMMIT PREPARED 'two-phase-7'")
        await sidecar.stored(E + 1, 2)
        await _held(lines, "horizon_moves_on")
        await sidecar.verdict(E + 1, "match")
        await sidecar.verdict(E, "match")
        assert sidecar.divergences() == {}


async def test_a_reader_without_rights_names_the_session_that_holds_the_horizon(
    alone: Database, elsewhere: Database
) -> None:
    """The rule was that others' ids need pg_read_all_stats; only their times do."""
    idle = await elsewhere.connect()
    await idle.execute("BEGIN; CREATE TABLE older (a int)")
    later = await elsewhere.connect()
    await later.execute("BEGIN; CREATE TABLE younger (a int)")
    await alone.insert([event_row(E, 1)])  # only what ends later stands behind it
    for grant, known in (("SELECT 1", False), ("GRANT pg_read_all_stats TO reader", True)):
        await alone.execute(grant)
        session = Session(_as(alone, "reader"), query_timeout_s=5)
        found = await find_pins(session)
        await session.close()
        assert found.held
        assert [pin.pid for pin in found.pins] == [idle.get_server_pid(), later.get_server_pid()]
        assert found.culprit is not None
        assert found.culprit.pid == idle.get_server_pid()
        assert (found.culprit.age_s is not None) is known
        assert (found.culprit.state == "idle in transaction") is known
    await idle.execute("ROLLBACK")
    await later.execute("ROLLBACK")
    for each in (idle, later):
        await each.close()
    session = Session(_as(alone, "reader"), query_timeout_s=5)
    ended = await find_pins(session)
    await session.close()
    assert (ended.held, ended.pins, ended.culprit) == (False, (), None)


async def test_what_only_holds_a_snapshot_or_a_slot_does_not_hold_the_horizon(alone: Database) -> None:
    reader = await alone.connect()
    await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM noetl.event")
    await alone.fetch("SELECT pg_create_logical_replication_slot('idle', 'pgoutput')")
    before, _ = await _horizon(alone)
    await alone.insert([event_row(E, 1)])
    session = Session(alone.dsn, query_timeout_s=5)
    found = await find_pins(session)
    assert (found.held, found.pins) == (False, ())
    assert found.horizon > before
    await session.close()
    checks = {check.name: check for check in await examined(Settings.given(dsn=alone.dsn, store="chain.db"))}
    assert checks["horizon"].state is State.OK
    assert re.search("1 of 1 has no reader", checks["replication_slots"].found)
    await reader.execute("COMMIT")
    await alone.fetch("SELECT pg_drop_replication_slot('idle')")
