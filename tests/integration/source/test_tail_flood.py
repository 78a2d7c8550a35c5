"""A window lane behind a pinned H with more rows than it can remember."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sidecar.source import poll, tail
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.tailing import Follower, MemoryStore, Ticks, following, opened

E = 500
TAMPER = "UPDATE noetl.event SET error = 'tampered' WHERE event_id = any($1)"


@asynccontextmanager
async def _flooded(
    pg: Database, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Follower, Any]]:
    """A lane that remembers 50 of 101 rows, and the connection whose transaction pins its H."""
    monkeypatch.setattr(tail, "PINNED_ROWS", 20)
    monkeypatch.setattr(tail, "SEEN_MAX", 50)
    monkeypatch.setattr(poll, "SEEN_MAX", 50)
    holder = await pg.connect()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await pg.insert(chain_rows(E, [1]))
        async with following(live, store) as follower:
            await follower.until(lambda: store.horizon("live") is not None)
            await holder.execute("BEGIN")
            await holder.execute("SELECT pg_current_xact_id()")
            await pg.insert([event_row(E, number, prev=number - 1) for number in range(2, 102)])
            await follower.until(lambda: len(store.bodies) == 101)
            asked = store.asked_missing
            await follower.until(lambda: store.asked_missing > asked)
            yield follower, holder


async def test_rows_that_change_in_a_flood_are_not_taken_for_stored_ones(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    async with _flooded(pg, store, monkeypatch) as (follower, holder):
        await pg.execute(TAMPER, [1, 2, 90])
        await follower.until(lambda: len(store.changed) == 3)
        assert store.horizon("live") is not None
        await holder.execute("ROLLBACK")
    assert set(store.changed) == {(E, 1), (E, 2), (E, 90)}


async def test_what_a_transaction_older_than_the_last_poll_changed_is_read_when_the_flood_is_over(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    async with _flooded(pg, store, monkeypatch) as (follower, holder):
        writer = await pg.connect()
        await writer.execute("BEGIN")
        await writer.execute(TAMPER, [90])
        await pg.insert([event_row(E, 102, prev=101)])  # the next poll's xmax is above the writer
        await follower.until(lambda: (E, 102) in store.bodies)
        await writer.execute("COMMIT")
        await follower.polls("live", 2)
        # It stands among rows that were seen and are not remembered: a key tells nothing of it.
        assert not store.changed
        await holder.execute("ROLLBACK")
        await follower.until(lambda: (E, 90) in store.changed)
        before = store.horizon("live")
        await pg.insert([event_row(E, 103, prev=102)])
        await follower.until(lambda: store.horizon("live") != before)
