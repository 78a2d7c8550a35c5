"""`schema apply` on a real Postgres: all of it or nothing, and never an existing event table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from sidecar.cli import entry
from tests.support.databases import Database
from tests.support.rows import event_row

Capture = pytest.CaptureFixture[str]


@pytest.fixture
async def reader(pg: Database) -> AsyncIterator[str]:
    """A role name of this test's own: roles belong to the whole server."""
    name = f"reader_{uuid4().hex}"
    yield name
    known = await pg.fetch("SELECT 1 FROM pg_roles WHERE rolname = $1", name)
    if known:
        await pg.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


async def apply(*arguments: str) -> int:
    return await asyncio.to_thread(entry, ["schema", "apply", *arguments])


async def test_the_reader_role_can_read_and_nothing_else(pg: Database, reader: str) -> None:
    assert await apply("postgres", "--reader", reader, "--dsn", pg.dsn) == 0
    await pg.insert([event_row(1, 1)])
    conn = await pg.connect()
    await conn.execute(f'SET ROLE "{reader}"')
    assert await conn.fetchval("SELECT count(*) FROM noetl.event") == 1
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await conn.execute("DELETE FROM noetl.event")


async def test_a_reader_that_is_not_there_is_named_and_nothing_is_made(
    pg: Database, reader: str, capsys: Capture
) -> None:
    assert await apply("wal", "--reader", reader, "--dsn", pg.dsn) == 10
    told = capsys.readouterr().err
    assert "role" in told
    assert "--reader" in told
    assert "slot" not in told
    assert await pg.fetch("SELECT 1 FROM pg_publication") == []


async def test_applied_twice_it_says_so_and_changes_nothing(
    pg: Database, reader: str, capsys: Capture
) -> None:
    assert await apply("postgres", "--reader", reader, "--dsn", pg.dsn) == 0
    assert await apply("postgres", "--reader", reader, "--dsn", pg.dsn) == 10
    assert "stands there already" in capsys.readouterr().err


async def test_a_script_that_fails_leaves_nothing_behind(pg: Database, reader: str) -> None:
    await pg.execute("DROP SCHEMA noetl CASCADE")
    assert await apply("postgres", "--reader", reader, "--dsn", pg.dsn) == 10
    assert await pg.fetch("SELECT 1 FROM pg_roles WHERE rolname = $1", reader) == []


async def test_an_event_table_that_stands_is_not_touched(pg: Database, capsys: Capture) -> None:
    await pg.insert([event_row(1, 1)])
    assert await apply("noetl", "--dsn", pg.dsn) == 2
    assert await apply("noetl", "--event-table", "--dsn", pg.dsn) == 10
    assert "stands there already" in capsys.readouterr().err
    assert len(await pg.fetch("SELECT 1 FROM noetl.event")) == 1


async def test_an_event_table_is_made_where_none_is(pg: Database) -> None:
    await pg.execute("DROP SCHEMA noetl CASCADE")
    assert await apply("noetl", "--event-table", "--dsn", pg.dsn) == 0
    await pg.insert([event_row(1, 1)])
