"""The role of `migrations/postgres`: the sidecar and every command work under it, and it writes nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from sidecar.cli import entry
from sidecar.core.verdict import Verdict
from sidecar.demo.ddl import reader_role
from tests.support.databases import Database
from tests.support.rows import chain_rows
from tests.support.service import service

E = 7100

WRITES = (
    "INSERT INTO noetl.event SELECT * FROM noetl.event",
    "UPDATE noetl.event SET event_type = 'x'",
    "DELETE FROM noetl.event",
    "SELECT 1 FROM noetl.event FOR UPDATE",
    "TRUNCATE noetl.event",
    "ALTER TABLE noetl.event ADD COLUMN x int",
    "CREATE INDEX ON noetl.event (status)",
    "DROP TABLE noetl.event",
    "CREATE TABLE noetl.x (i int)",
    "CREATE SCHEMA x",
)


@pytest.fixture
async def reader(pg: Database) -> AsyncIterator[str]:
    """The DSN of the role that `noetl-chain schema print postgres` makes, one row in the log."""
    role = f"reader_{pg.name}"
    await pg.execute(reader_role(role))
    await pg.insert(chain_rows(E, range(1, 5)))
    head, _, query = pg.dsn.partition("?")
    named = re.sub(r"//[^@/]*@", f"//{role}@", head)
    yield f"postgresql://{role}@/{quote(pg.name)}?{query}" if query else named
    await pg.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def _held(pg: Database) -> list[Any]:
    """Everything the database holds: its rows, and the name of every relation."""
    rows = await pg.fetch("SELECT e::text, e.xmin::text FROM noetl.event e ORDER BY event_id")
    return [*rows, *await pg.fetch("SELECT oid::text, relname FROM pg_class ORDER BY oid")]


async def command(*words: str) -> int:
    """In a thread of its own: a command brings its own loop."""
    return await asyncio.to_thread(entry, [*words])


async def test_the_sidecar_and_every_command_work_under_it_and_nothing_changes(
    pg: Database, reader: str, tmp_path: Path
) -> None:
    store, another = str(tmp_path / "chain.db"), str(tmp_path / "another.db")
    before = await _held(pg)
    async with service(reader, tmp_path / "chain.db", audit_share=1, audit_round_s=1) as sidecar:
        await sidecar.verdict(E, "match")
        await sidecar.caught_up()
        assert (await sidecar.board.data.probe(E)).judgement.verdict is Verdict.MATCH
        assert (await sidecar.board.data.execution(E, with_log=True)).not_read == ()
        log = ("--dsn", reader)
        assert await command("verify", *log) == 0
        assert await command("verify", *log, "--store", store) == 0
        assert await command("inspect", str(E), *log, "--store", store) == 0
        assert await command("backfill", *log, "--store", another) == 0
        assert await command("doctor", *log, "--store", store) in (0, 3)  # 3: what a shared server hides
    assert await _held(pg) == before


async def test_it_can_write_nothing_by_its_transactions_and_by_its_rights(pg: Database, reader: str) -> None:
    before = await _held(pg)
    conn = await asyncpg.connect(reader)
    try:
        for statement in (*WRITES, "CREATE TABLE public.x (i int)", "CREATE TEMP TABLE x (i int)"):
            with pytest.raises((asyncpg.ReadOnlySQLTransactionError, asyncpg.InsufficientPrivilegeError)):
                await conn.execute(statement)
        await conn.execute("SET default_transaction_read_only = off")
        for statement in WRITES:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await conn.execute(statement)
        for other in await pg.fetch(
            "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname = 'noetl'"
            " AND tablename <> 'event'"
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await conn.execute(f"SELECT 1 FROM {other['name']}")
    finally:
        await conn.close()
    assert await _held(pg) == before
