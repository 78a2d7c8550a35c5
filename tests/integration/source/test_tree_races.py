"""Partitions attached and detached while polls arrive every 20 ms.

Each cycle writes a row, detaches the partition, attaches it again.  A lane that keeps its H over
such a change loses rows; that is shown beside the real lanes with the tree left out of account.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from sidecar.core.horizon import Cursor, Facts
from sidecar.source import tail
from tests.support.databases import Database
from tests.support.tailing import Follower, MemoryStore, Ticks, following, opened

SIDE = -15
ATTACH = "ALTER TABLE noetl.event ATTACH PARTITION noetl.event_side FOR VALUES FROM (-20) TO (-10)"
DETACH = "ALTER TABLE noetl.event DETACH PARTITION noetl.event_side"
INSERT = (
    "INSERT INTO {table} (execution_id, catalog_id, event_id, created_at, event_type)"
    " VALUES (-15, 1, {event_id}, now() AT TIME ZONE 'UTC', 'x')"
)


async def _cycles(pg: Database, count: int, meanwhile: Any) -> None:
    """Rows arrive detached, and are attached while the lanes poll; the rest of the table lives on."""
    conn = await pg.connect()
    await conn.execute("CREATE TABLE noetl.event_side (LIKE noetl.event INCLUDING ALL)")
    for number in range(1, count + 1):
        await conn.execute(INSERT.format(table="noetl.event_side", event_id=number))
        await meanwhile()
        await conn.execute(ATTACH)
        await meanwhile()
        if number < count:
            await conn.execute(DETACH)


async def _missed(pg: Database, count: int, lanes: tuple[str, ...]) -> dict[str, set[int]]:
    """By lane, the rows of the side partition that it alone, with a store of its own, missed."""
    stores = {name: MemoryStore() for name in lanes}
    async with AsyncExitStack() as stack:
        followers = []
        for name, store in stores.items():
            source = await stack.enter_async_context(opened(pg.dsn, late_poll_s=0.03))
            of_name: dict[str, Any] = {lane.name: lane for lane in source.lanes(store, Ticks())}
            lane = of_name[name]
            followers.append((lane, await stack.enter_async_context(following(lane, store))))
        for lane, follower in followers:
            await _caught_up(lane, follower)

        async def polled() -> None:
            # Long enough for a poll to begin, short enough that it may still run.
            await asyncio.sleep(0.015)

        await _cycles(pg, count, polled)
        for lane, follower in followers:
            await _caught_up(lane, follower)
        for lane, follower in followers:
            if lane.name == "sweep":
                await follower.until(lambda: len(stores["sweep"].bodies) == count)
            else:
                await follower.polls(lane.name, 3)
    return {
        name: set(range(1, count + 1)) - {event_id for _, event_id in store.bodies}
        for name, store in stores.items()
    }


async def _caught_up(lane: Any, follower: Follower) -> None:
    await follower.until(lambda: lane.state.caught_up)


async def test_partitions_attached_and_detached_lose_no_row(pg_each: Database) -> None:
    missed = await _missed(pg_each, 15, ("live", "late", "sweep"))
    assert missed == {"live": set(), "late": set(), "sweep": set()}


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_a_hundred_and_fifty_cycles_lose_no_row(pg_each: Database) -> None:
    missed = await _missed(pg_each, 150, ("live", "late", "sweep"))
    assert missed == {"live": set(), "late": set(), "sweep": set()}


async def test_a_lane_that_keeps_its_h_over_a_new_tree_loses_rows(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left_behind(cursor: Cursor | None, facts: Facts, *, lane: str, scope: str) -> Cursor:
        return Cursor(lane, facts.horizon, facts.epoch, scope, facts.tree, facts.server_now)

    monkeypatch.setattr(tail, "left_behind", left_behind)
    missed = await _missed(pg, 15, ("live",))
    assert missed["live"]
