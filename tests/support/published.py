"""A database whose event table is published, and slots that are gone when the test is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import pytest

from tests.support.databases import Database, Server, fresh_database

PUBLISH: Final = (
    "CREATE PUBLICATION noetl_chain FOR TABLE noetl.event WITH (publish_via_partition_root = true)"
)
_LEAVE: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
_DROP: Final = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
)
_IN_USE: Final = "55006"


@asynccontextmanager
async def published(server: Server) -> AsyncIterator[Database]:
    """A fresh database with the publication; its slots are dropped before it is."""
    async with fresh_database(server) as database:
        if (await database.fetch("SHOW wal_level"))[0][0] != "logical":
            pytest.skip("this server's wal_level is not logical")
        await database.execute(PUBLISH)
        try:
            yield database
        finally:
            await drop_slots(database)


async def drop_slots(database: Database) -> None:
    """Drop every slot of the database, whoever reads from it."""
    conn = await database.connect()
    async with asyncio.timeout(20):
        while True:
            await conn.execute(_LEAVE)
            try:
                await conn.execute(_DROP)
            except asyncpg.PostgresError as error:
                if error.sqlstate != _IN_USE:
                    raise
                await asyncio.sleep(0.01)
            else:
                break
    await conn.close()


async def slots(database: Database) -> dict[str, Any]:
    """Every slot of the database: its confirmed position by name."""
    rows = await database.fetch(
        "SELECT slot_name, (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots"
        " WHERE database = current_database()"
    )
    return {row[0]: row[1] for row in rows}
