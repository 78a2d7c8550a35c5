"""A writer whose transactions overlap with others': ids taken early, savepoints, late commits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

from tests.support.databases import Database
from tests.support.rows import event_row, insert_rows


async def overlapped(
    pg: Database, execution_id: int, ids: Iterable[int], chance: random.Random, transactions: int = 25
) -> None:
    """Write some rows of each of these transactions; run several beside each other."""
    conn = await pg.connect()
    number = iter(ids)
    for _ in range(transactions):
        async with conn.transaction():
            if chance.random() < 0.5:
                await conn.fetchval("select pg_current_xact_id()")
                await asyncio.sleep(chance.random() * 0.05)
            for _ in range(chance.randint(1, 4)):
                row = event_row(execution_id, next(number), prev=1)
                if chance.random() < 0.3:
                    async with conn.transaction():
                        await insert_rows(conn, [row])
                else:
                    await insert_rows(conn, [row])
                await asyncio.sleep(chance.random() * 0.04)
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() * 0.2)
    await conn.close()
