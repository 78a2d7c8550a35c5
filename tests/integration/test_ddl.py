"""The event table and the reader role do what the facts about NoETL's table say."""

from __future__ import annotations

import asyncpg
import pytest

from sidecar import sql
from sidecar.demo import ddl
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row


async def test_a_snowflake_lies_in_its_quarter_and_a_small_id_in_the_default(pg: Database) -> None:
    await pg.insert([event_row(385795318182055936, 1), event_row(1001, 1), event_row(2**62, 1)])
    rows = await pg.fetch(
        "SELECT execution_id, tableoid::regclass::text AS part FROM noetl.event ORDER BY execution_id"
    )
    assert [row["part"] for row in rows] == [
        "noetl.event_default",
        "noetl.event_2026_q4_standard",
        "noetl.event_default",
    ]


async def test_the_indexes_are_those_a_reader_may_rely_on(pg: Database) -> None:
    rows = await pg.fetch(
        "SELECT pg_get_indexdef(indexrelid) AS text FROM pg_index WHERE indrelid = 'noetl.event'::regclass"
    )
    assert sorted(row["text"].partition("USING btree ")[2] for row in rows) == [
        "(created_at)",
        "(execution_id)",
        "(execution_id, event_id DESC)",
        "(execution_id, event_id)",
        "(execution_id, event_type, event_id DESC)",
        "(execution_id, prev_event_id) WHERE (prev_event_id IS NOT NULL)",
    ]


@pytest.mark.parametrize(
    ("result", "allowed"),
    [
        (None, True),
        ('{"status": "ok"}', True),
        ('{"status": "ok", "reference": {}, "context": {"a": 1}}', True),
        ("{}", False),
        ('{"status": 1}', False),
        ('{"status": null}', False),
        ('{"status": "ok", "reference": 1}', False),
        ('{"status": "ok", "context": []}', False),
        ('{"status": "ok", "more": 1}', False),
        ('["status"]', False),
    ],
)
async def test_result_has_the_shape_of_the_check(pg: Database, result: str | None, allowed: bool) -> None:
    row = event_row(1, 1, result=result)
    if allowed:
        await pg.insert([row])
    else:
        with pytest.raises(asyncpg.CheckViolationError):
            await pg.insert([row])


async def test_rows_older_than_the_check_may_violate_it(pg: Database) -> None:
    rows = await pg.fetch("SELECT convalidated FROM pg_constraint WHERE conname = 'event_result_shape'")
    assert rows
    assert not any(row["convalidated"] for row in rows)


async def test_an_older_install_takes_the_late_columns_later(pg_older: Database) -> None:
    await pg_older.insert([{k: v for k, v in event_row(1, 1).items() if k != "prev_event_id"}])
    late = [file for file in sql.scripts("noetl") if file.name == "005_late_columns.sql"]
    await pg_older.execute(sql.rendered(late[0].text, {"schema": "noetl"}))
    await pg_older.insert(chain_rows(2, [1, 2]))
    rows = await pg_older.fetch("SELECT execution_id, prev_event_id FROM noetl.event ORDER BY 1, event_id")
    assert [tuple(row) for row in rows] == [(1, None), (2, None), (2, 1)]


@pytest.mark.parametrize("schema", ["noetl_two", 'odd "name', "Ünïcode"])
async def test_the_schema_may_have_any_name(pg: Database, schema: str) -> None:
    await pg.execute(ddl.event_table(schema))
    rows = await pg.fetch(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = (SELECT c.oid FROM pg_class AS c"
        " JOIN pg_namespace AS n ON n.oid = relnamespace WHERE nspname = $1 AND relname = 'event')",
        schema,
    )
    assert rows[0][0] == 17


async def test_the_reader_reads_and_writes_nothing(pg_server: StartServer) -> None:
    server = await pg_server()
    database = Database(server.dsn(), "postgres")
    await database.insert(chain_rows(1, [1, 2]))
    await database.execute(ddl.reader_role("reader"))
    reader = await asyncpg.connect(server.dsn(user="reader"))
    try:
        assert await reader.fetchval("SELECT count(*) FROM noetl.event") == 2
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await reader.execute("DELETE FROM noetl.event")
        await reader.execute("SET default_transaction_read_only = off")
        for write in (
            "DELETE FROM noetl.event",
            "UPDATE noetl.event SET error = 'x'",
            "INSERT INTO noetl.event (execution_id, catalog_id, event_id) VALUES (1, 1, 3)",
            "CREATE TABLE noetl.mine (n integer)",
            "ALTER TABLE noetl.event ADD COLUMN mine integer",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await reader.execute(write)
    finally:
        await reader.close()
