"""The transaction counter can be walked, on both sides of its wrap."""

from __future__ import annotations

import pytest

from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.rows import chain_rows
from tests.support.xids import next_xid, walk_xids


@pytest.mark.torture
async def test_frozen_rows_grow_thousands_of_millions_of_transactions_old(pg_server: StartServer) -> None:
    server = await pg_server()
    database = Database(server.dsn(), "postgres")
    await database.insert(chain_rows(1, range(1, 21)))
    before = await next_xid(server)
    await walk_xids(server, 2_400_000_000)
    assert await next_xid(server) - before >= 2_400_000_000
    await database.insert(chain_rows(2, [1, 2]))
    await walk_xids(server, 2_400_000_000)  # past 2^32
    assert await next_xid(server) > 1 << 32
    rows = await database.fetch("SELECT execution_id, event_id FROM noetl.event ORDER BY 1, 2")
    assert [tuple(row) for row in rows] == [(1, n) for n in range(1, 21)] + [(2, 1), (2, 2)]
