"""`doctor` against real servers: every finding names the thing and the remedy, nothing is refused."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sidecar.doctor.checks import Check, State, exit_code
from sidecar.doctor.examination import NAMES, examined
from sidecar.settings import Settings
from sidecar.store import ChainStore
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.pooler import pooler
from tests.support.proxy import proxy
from tests.support.rows import chain_rows
from tests.support.service import service
from tests.support.waiting import until

REMEDIED = {State.WARNING, State.FAILED}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("NOETL_CHAIN_", "POSTGRES_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    path = tmp_path / "chain.db"
    async with ChainStore.open(str(path)):
        pass
    return path


async def _asked(dsn: str, store: Path, **settings: Any) -> tuple[dict[str, Check], int]:
    given = {"populate": "on", "compare": "on", "query_timeout_s": 5} | settings
    checks = await examined(Settings.given(dsn=dsn, store=str(store), **given))
    assert [check.name for check in checks] == list(NAMES)
    for check in checks:
        assert check.found
        assert bool(check.remedy) or check.state not in REMEDIED
    return {check.name: check for check in checks}, exit_code(checks)


@pytest.fixture
async def reader(pg: Database) -> AsyncIterator[str]:
    """A role with SELECT alone, as a DSN."""
    role = f"reader_{pg.name}"
    await pg.execute(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA noetl TO {role};"
        f"GRANT SELECT ON noetl.event TO {role}"
    )
    yield _as_role(pg, role)
    await pg.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def _as_role(pg: Database, role: str) -> str:
    head, _, query = pg.dsn.partition("?")
    named = re.sub(r"//[^@/]*@", f"//{role}@", head)
    return f"postgresql://{role}@/{quote(pg.name)}?{query}" if query else named


async def test_a_reader_on_a_whole_install_is_good(pg: Database, reader: str, store: Path) -> None:
    found, code = await _asked(reader, store)
    unhealthy = {name: check.found for name, check in found.items() if check.state is not State.OK}
    # What the machine's disk and the shared server's other sessions are like is not the test's.
    assert unhealthy.keys() <= {
        "store_space",
        "durability",
        "long_writers",
        "prepared_transactions",
        "horizon",
    }
    assert "fsync" in unhealthy["durability"]
    assert code == 0
    assert "pg_read_all_stats" in found["rights"].found
    assert re.fullmatch(r"PostgreSQL \d+\.\d+", found["server_version"].found)


async def test_a_role_that_could_write_is_warned_of(pg: Database, reader: str, store: Path) -> None:
    await pg.execute(f"GRANT INSERT, TRUNCATE ON noetl.event TO reader_{pg.name}")
    found, code = await _asked(reader, store)
    assert found["read_only"].state is State.WARNING
    assert "INSERT, TRUNCATE" in found["read_only"].found
    assert code == 0
    found, _ = await _asked(pg.dsn, store)
    assert "superuser" in found["read_only"].found


async def test_rights_that_are_missing_are_told_beside_all_the_rest(
    pg: Database, reader: str, store: Path
) -> None:
    role = f"reader_{pg.name}"
    await pg.execute(f"REVOKE SELECT ON noetl.event FROM {role}")
    found, code = await _asked(reader, store)
    assert (found["rights"].state, code) == (State.FAILED, 1)
    assert "GRANT SELECT" in found["rights"].remedy
    assert found["columns"].state is found["indexes"].state is State.OK
    await pg.execute(
        f"GRANT SELECT ON noetl.event TO {role}; ALTER TABLE noetl.event ENABLE ROW LEVEL SECURITY"
    )
    found, code = await _asked(reader, store)
    assert "row security" in found["rights"].found
    assert code == 1


async def test_an_older_install_lacks_columns(pg_older: Database, store: Path) -> None:
    found, code = await _asked(pg_older.dsn, store)
    assert found["columns"].state is State.WARNING
    assert "prev_event_id is missing" in found["columns"].found
    assert code == 0


async def test_no_table_leaves_the_server_told(pg: Database, store: Path) -> None:
    found, code = await _asked(pg.dsn, store, noetl_schema="public")
    assert (found["table"].state, code) == (State.FAILED, 1)
    assert found["indexes"].state is found["rights"].state is State.CANNOT_TELL
    assert found["primary"].state is State.OK
    found, _ = await _asked(pg.dsn, store, noetl_schema="nosuch")
    assert "no schema nosuch" in found["table"].found


async def test_an_index_that_is_missing_or_cannot_be_used_names_what_is_slow(
    pg: Database, store: Path
) -> None:
    found, _ = await _asked(pg.dsn, store)
    assert found["indexes"].state is State.OK
    await pg.execute(
        "CREATE TABLE noetl.bare (LIKE noetl.event INCLUDING DEFAULTS);"
        "ALTER TABLE noetl.event RENAME TO event_was; ALTER TABLE noetl.bare RENAME TO event;"
        "CREATE INDEX ON noetl.event (execution_id, event_id) WHERE event_id > 5"
    )
    found, code = await _asked(pg.dsn, store)
    assert found["indexes"].state is State.WARNING
    for text in ("(created_at) on noetl.event: every poll", "(execution_id, event_id)", "log read"):
        assert text in found["indexes"].found
    assert "not partitioned" in found["partitions"].found
    assert code == 0
    await pg.execute(
        "CREATE INDEX ON noetl.event (execution_id, event_id); CREATE INDEX ON noetl.event (created_at)"
    )
    found, _ = await _asked(pg.dsn, store)
    assert found["indexes"].state is State.OK


async def test_a_detach_that_was_never_finished_is_named(pg: Database, store: Path) -> None:
    await pg.execute("DROP TABLE noetl.event_default")  # with a DEFAULT, CONCURRENTLY is refused
    holder, leaver = await pg.connect(), await pg.connect()
    await holder.execute("BEGIN; SELECT count(*) FROM noetl.event")
    leaving = asyncio.create_task(
        leaver.execute("ALTER TABLE noetl.event DETACH PARTITION noetl.event_2024_q1_standard CONCURRENTLY")
    )
    await until(lambda: pg.holds("SELECT count(*) FROM pg_inherits WHERE inhdetachpending"))
    found, _ = await _asked(pg.dsn, store)
    assert found["partitions"].state is State.WARNING
    assert "event_2024_q1_standard" in found["partitions"].found
    assert "FINALIZE" in found["partitions"].remedy
    await holder.execute("COMMIT")
    await leaving


async def test_a_standby_fails_and_everything_else_is_still_told(pg_server: StartServer, store: Path) -> None:
    server = await pg_server(
        {"synchronous_commit": "off", "fsync": "on", "idle_in_transaction_session_timeout": "500"}
    )
    server.halt()
    server.write(server.data / "standby.signal", b"")
    server.restart({"hot_standby": "on"})
    found, code = await _asked(server.dsn(), store)
    assert (found["primary"].state, code) == (State.FAILED, 1)
    assert found["table"].state is found["columns"].state is State.OK
    assert "synchronous_commit" in found["durability"].found
    assert "idle_in_transaction_session_timeout = 500" in found["timeouts"].found


async def test_something_that_answers_for_another_process_is_a_pooler(pg: Database, store: Path) -> None:
    async with proxy(pg.dsn) as straight:
        found, _ = await _asked(straight.dsn, store)
        assert found["pooler"].found.startswith("none")
    async with proxy(pg.dsn, another_pid=True) as pretending:
        found, _ = await _asked(pretending.dsn, store)
        assert found["pooler"].state is State.OK
        assert "gave 5 connections at once" in found["pooler"].found
        found, _ = await _asked(pretending.dsn, store, compare="off")
        assert "gave 4 connections at once" in found["pooler"].found


@pytest.mark.pgbouncer
async def test_a_pooler_that_is_too_small_is_told(pg: Database, store: Path) -> None:
    async with pooler(pg.dsn, backends=2) as dsn:
        found, _ = await _asked(dsn, store, query_timeout_s=1)
        assert found["pooler"].state is State.WARNING
        assert "gave 2 of 5" in found["pooler"].found
    async with pooler(pg.dsn, backends=8) as dsn:
        found, _ = await _asked(dsn, store)
        assert found["pooler"].state is State.OK


async def test_connections_that_a_pooler_does_not_give_are_counted(
    pg: Database, reader: str, store: Path
) -> None:
    """The same limit as a small pool's, by the server itself."""
    role = f"reader_{pg.name}"
    await pg.execute(f"ALTER ROLE {role} CONNECTION LIMIT 3")
    async with proxy(reader, another_pid=True) as pretending:
        found, code = await _asked(pretending.dsn, store, query_timeout_s=0.5)
    assert found["pooler"].state is State.WARNING
    assert "gave 2 of 5" in found["pooler"].found  # doctor's own connection is the third
    assert code == 0


async def test_doctor_writes_nothing_and_leaves_no_connection(pg: Database, store: Path) -> None:
    await pg.insert(chain_rows(1, [1, 2, 3]))
    before = {path.name: path.read_bytes() for path in store.parent.iterdir() if path.name == "chain.db"}
    await _asked(pg.dsn, store)
    assert {
        path.name: path.read_bytes() for path in store.parent.iterdir() if path.name == "chain.db"
    } == before
    left = "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'noetl-chain' AND datname = $1"
    # A backend ends a moment after its client.
    await until(lambda: pg.holds(left, pg.name))


async def test_a_clock_that_is_off_is_told(
    pg: Database, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 10 * 10**9)
    found, _ = await _asked(pg.dsn, store)
    assert found["clock"].state is State.WARNING
    assert re.match(r"Postgres's clock is \+(9|10)\.", found["clock"].found)


async def test_a_slot_that_does_not_go_on_from_the_stored_position_is_named(
    pg_wal: Database, tmp_path: Path
) -> None:
    path = tmp_path / "chain.db"
    async with service(pg_wal.dsn, path, tail="wal") as sidecar:
        await sidecar.caught_up()

    async def said() -> str:
        found, _ = await _asked(pg_wal.dsn, path, tail="wal")
        return found["wal_source"].found

    assert "keeps" in await said()
    await pg_wal.insert(chain_rows(8700, [1]))
    await pg_wal.execute("SELECT pg_replication_slot_advance('noetl_chain', pg_current_wal_flush_lsn())")
    assert "stored position: slot_ahead" in await said()
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("UPDATE tail_cursor SET epoch = '1' || epoch WHERE lane = 'wal'")
    assert "stored position: timeline" in await said()
