"""Many single-row transactions against a poll every 20 ms: the bound of the age filter matters."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from sidecar.source import poll
from sidecar.source.facts import facts_cte
from tests.support.databases import Database
from tests.support.tailing import MemoryStore, Ticks, following, log_keys, opened

WRITERS = 6
INSERT = (
    "INSERT INTO noetl.event (execution_id, catalog_id, event_id, created_at, event_type)"
    " VALUES ($1, 1, $2, now() AT TIME ZONE 'UTC', 'x')"
)


async def _write(pg: Database, rows: int) -> None:
    """Single-row transactions on several connections as fast as they can."""
    ids = itertools.count(1)

    async def writer(execution_id: int) -> None:
        conn = await pg.connect()
        statement = await conn.prepare(INSERT)
        while (event_id := next(ids)) <= rows:
            await statement.fetch(execution_id, event_id)

    async with asyncio.TaskGroup() as group:
        for number in range(WRITERS):
            group.create_task(writer(number))


async def _missed(pg: Database, rows: int) -> tuple[set[Any], int]:
    """What the live lane missed, and how many polls it made meanwhile."""
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        async with following(live, store) as follower:
            await follower.until(lambda: store.horizon("live") is not None)
            before = store.polls("live")
            await _write(pg, rows)
            polls = store.polls("live") - before
            await follower.polls("live", 2)
    keys = await log_keys(await pg.connect())
    assert len(keys) == rows
    assert set(store.bodies) <= keys
    return keys - set(store.bodies), polls


def _with_the_obvious_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    right = poll.poll_sql

    def wrong(*args: Any, **options: Any) -> str:
        sql = right(*args, **options)
        bounds = "between (select lo from b) and (select hi from b)"
        assert not options["filtered"] or bounds in sql
        # Planning evaluates age($2), which fixes its "now" before the snapshot is taken.
        return sql.replace(bounds, "between 1 and age($2::text::xid)")

    monkeypatch.setattr(poll, "poll_sql", wrong)


async def test_short_transactions_are_never_missed(pg: Database) -> None:
    missed, polls = await _missed(pg, 4000)
    assert not missed
    assert polls > 10


async def test_the_obvious_bound_of_one_loses_rows(pg: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_the_obvious_bound(monkeypatch)
    missed: set[Any] = set()
    for _ in range(8):
        missed, _ = await _missed(pg, 4000)
        if missed:
            break
        await pg.execute("TRUNCATE noetl.event")
    assert missed


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_twenty_thousand_short_transactions_are_never_missed(pg_each: Database) -> None:
    missed, polls = await _missed(pg_each, 20_000)
    assert not missed
    assert polls > 50


def test_the_bounds_of_the_filter_come_from_the_statements_own_snapshot() -> None:
    sql = facts_cte("t", "$1")
    assert "age(pg_snapshot_xmax(sn)::xid) + 1 as lo, age($1::text::xid) as hi" in sql
