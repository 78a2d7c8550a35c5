"""What an operator gets wrong: one line each, with the remedy, without the DSN."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from sidecar.errors import ConfigError, SourceContractError, SourceError, SourceUnavailable
from sidecar.source.opened import LogSource
from sidecar.source.options import SourceOptions
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.rows import chain_rows
from tests.support.tailing import MemoryStore, Ticks, drained, opened


async def _refused(dsn: str, kind: type[Exception], schema: str = "noetl") -> str:
    with pytest.raises(kind) as caught:
        await LogSource.open(SourceOptions(dsn, schema=schema, query_timeout_s=5))
    text = str(caught.value)
    assert "\n" not in text
    assert "postgresql" not in text
    assert getattr(caught.value, "hint", "")
    return text


def _as_user(pg: Database, user: str) -> str:
    head, _, query = pg.dsn.partition("?")
    return f"postgresql://{user}@/{quote(pg.name)}?{query}" if query else head


async def test_a_dsn_that_cannot_be_read() -> None:
    assert "DSN" in await _refused("postgresql://u@h:port/d", ConfigError)
    assert "DSN" in await _refused("mysql://u@h/d", ConfigError)


async def test_a_server_that_is_not_there() -> None:
    assert "cannot be reached" in await _refused("postgresql://u@127.0.0.1:1/d", SourceUnavailable)


async def test_a_database_that_is_not_there(pg: Database) -> None:
    missing = pg.dsn.replace(pg.name, "nowhere")
    assert "database does not exist" in await _refused(missing, SourceContractError)


async def test_a_wrong_password(pg_server: StartServer) -> None:
    server = await pg_server(tcp=True, password="right", event_table=False)
    text = await _refused(server.tcp_dsn(password="wrong"), SourceError)
    assert "password" in text
    assert "wrong" not in text


async def test_a_missing_schema_and_a_missing_table_are_told_apart(pg: Database) -> None:
    assert "schema does not exist" in await _refused(pg.dsn, SourceContractError, schema="nosuch")
    assert "no table event" in await _refused(pg.dsn, SourceContractError, schema="public")


async def test_missing_rights_are_told_apart(pg: Database) -> None:
    role = f"reader_{pg.name}"
    await pg.execute(f"CREATE ROLE {role} LOGIN")
    try:
        dsn = _as_user(pg, role)
        assert "may not use the schema" in await _refused(dsn, SourceContractError)
        await pg.execute(f"GRANT USAGE ON SCHEMA noetl TO {role}")
        assert "may not read the event table" in await _refused(dsn, SourceContractError)
        await pg.execute(f"GRANT SELECT ON noetl.event TO {role}")
        await LogSource.open(SourceOptions(dsn))
    finally:
        await pg.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_row_security_is_an_error_never_fewer_rows(pg: Database) -> None:
    role = f"filtered_{pg.name}"
    await pg.insert(chain_rows(1, [1, 2]))
    await pg.execute(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA noetl TO {role};"
        f"GRANT SELECT ON noetl.event TO {role}"
    )
    try:
        async with opened(_as_user(pg, role)) as source:
            reader, (live, _, _) = source.reader(Ticks()), source.lanes(MemoryStore(), Ticks())
            assert len((await reader.read([1]))[0].events or ()) == 2
            await pg.execute("ALTER TABLE noetl.event ENABLE ROW LEVEL SECURITY")
            with pytest.raises(SourceContractError, match="row security"):
                await reader.read([1])
            with pytest.raises(SourceContractError, match="row security"):
                await drained(live, MemoryStore())
        assert "row security" in await _refused(_as_user(pg, role), SourceContractError)
    finally:
        await pg.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_a_table_that_is_no_event_table(pg: Database) -> None:
    await pg.execute("CREATE SCHEMA other; CREATE TABLE other.event (event_id bigint)")
    assert "lacks execution_id, event_type, created_at" in await _refused(
        pg.dsn, SourceContractError, schema="other"
    )


async def test_a_standby_is_refused_at_the_start_and_in_every_statement(pg_server: StartServer) -> None:
    server = await pg_server()
    database = Database(server.dsn(), "postgres")
    await database.insert(chain_rows(1, [1, 2]))
    store = MemoryStore()
    async with opened(server.dsn()) as source:
        reader = source.reader(Ticks())
        live, _, sweep = source.lanes(store, Ticks())
        await drained(live, store, polls=2)
        await reader.read([1])
        server.halt()
        server.write(server.data / "standby.signal", b"")
        server.restart({"hot_standby": "on"})
        with pytest.raises(SourceUnavailable):
            await reader.read([1])  # finds its connection broken
        for again in (lambda: reader.read([1]), lambda: drained(live, store), lambda: drained(sweep, store)):
            with pytest.raises(SourceContractError, match="standby"):
                await again()
        assert "standby" in await _refused(server.dsn(), SourceContractError)


async def test_a_replaced_table_is_noticed(pg: Database) -> None:
    async with opened(pg.dsn) as source:
        reader = source.reader(Ticks())
        await pg.execute(
            "ALTER TABLE noetl.event RENAME TO event_was; CREATE TABLE noetl.event"
            " (LIKE noetl.event_was INCLUDING ALL)"
        )
        with pytest.raises(SourceContractError, match="replaced"):
            await reader.read([1])
