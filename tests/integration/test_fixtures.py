"""The fixtures themselves: what other tests take for granted."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from sidecar.settings import Settings
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row


async def test_a_fresh_database_holds_an_empty_event_table(pg: Database) -> None:
    assert await pg.fetch("SELECT * FROM noetl.event") == []


async def test_rows_go_in_as_they_are(pg: Database) -> None:
    exact = '{"n": 12345678901234567890123, "x": 1.10, "s": "\\u2028"}'
    row = event_row(2**60 + 1, 2**62 + 1, created_at="infinity", context=exact, error="a\u2028b")
    await pg.insert([row, *chain_rows(7, [3, 1, 2])])
    stored = await pg.fetch(
        "SELECT event_id, created_at::text AS at, context::text AS c, error, tenant_id FROM noetl.event"
        " WHERE execution_id > 7"
    )
    assert [tuple(one) for one in stored] == [
        (
            2**62 + 1,
            "infinity",
            '{"n": 12345678901234567890123, "s": "\u2028", "x": 1.10}',
            "a\u2028b",
            "default",
        )
    ]
    links = await pg.fetch(
        "SELECT event_id, prev_event_id FROM noetl.event WHERE execution_id = 7 ORDER BY ctid"
    )
    assert [tuple(one) for one in links] == [(3, None), (1, 3), (2, 1)]


async def test_an_older_install_lacks_the_late_columns(pg_older: Database) -> None:
    with pytest.raises(Exception, match="prev_event_id"):
        await pg_older.fetch("SELECT prev_event_id FROM noetl.event")


async def test_every_version_has_the_table(pg_each: Database) -> None:
    await pg_each.insert(chain_rows(5, [1, 2]))
    assert len(await pg_each.fetch("SELECT 1 FROM noetl.event")) == 2


async def test_a_server_of_its_own_has_the_table_too(pg_server: StartServer) -> None:
    server = await pg_server({"wal_level": "logical"})
    database = Database(server.dsn(), "postgres")
    assert [tuple(row) for row in await database.fetch("SHOW wal_level")] == [("logical",)]
    assert await database.fetch("SELECT 1 FROM noetl.event") == []


def test_a_plain_test_may_ask_for_a_database(pg: Database) -> None:
    assert pg.name in pg.dsn


async def test_the_parts_of_a_connection_lead_to_the_database_they_name(pg: Database) -> None:
    """The driver's own reading of the URL: a database that is not named like the role."""
    url = urlsplit(pg.dsn)
    query = {name: values[-1] for name, values in parse_qs(url.query).items()}
    settings = Settings.given(
        host=query.get("host") or url.hostname,
        port=int(query.get("port") or url.port or 5432),
        user=query.get("user") or url.username,
        password=query.get("password") or url.password,
        database=query.get("database") or query.get("dbname") or url.path[1:],
    )
    connection = await asyncpg.connect(settings.source_dsn())
    try:
        found = await connection.fetchval("SELECT current_database()")
    finally:
        await connection.close()
    assert [[found]] == [list(row) for row in await pg.fetch("SELECT current_database()")]
    assert found != settings.user
