"""A row that commits behind rows with higher ids: seen by the lane, lost by an id cursor."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.databases import Database
from tests.support.late import plain, savepoints
from tests.support.rows import chain_rows, event_row
from tests.support.tailing import IdCursorTail, MemoryStore, Ticks, following, log_keys, opened

E = 500


@pytest.mark.parametrize("late", [plain, savepoints])
@pytest.mark.parametrize("pinned_from_the_start", [False, True])
async def test_a_late_committer_is_found_within_two_polls(
    pg_each: Database, late: Any, pinned_from_the_start: bool
) -> None:
    pg = pg_each
    await pg.insert(chain_rows(E, [10]))
    writer, store, naive = await pg.connect(), MemoryStore(), IdCursorTail(await pg.connect())
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        async with following(live, store) as follower:
            if not pinned_from_the_start:
                await follower.until(lambda: store.horizon("live") is not None)
            await writer.execute("BEGIN")
            await late(writer, E)
            await pg.insert([event_row(E, 30, prev=20)])
            await follower.until(lambda: (E, 30) in store.bodies and store.horizon("live") is not None)
            await follower.polls("live", 3)
            await naive.poll()
            assert (E, 20) not in store.bodies
            await writer.execute("COMMIT")
            done = store.polls("live")
            await follower.until(lambda: (E, 20) in store.bodies)
            # One poll may have been under way at the commit; the next two bring the row.
            assert store.polls("live") <= done + 3
            await naive.poll()
    assert set(store.bodies) == {(E, 10), (E, 20), (E, 30)}
    assert await log_keys(writer) - naive.keys == {(E, 20)}


@pytest.mark.parametrize("late", [plain, savepoints])
async def test_a_late_committer_survives_a_kill_at_every_batch(pg: Database, late: Any) -> None:
    """Before each step of the writer the lane is killed and resumes from what is stored."""
    store, naive = MemoryStore(), IdCursorTail(await pg.connect())
    writer = await pg.connect()

    async def some_polls() -> None:
        async with opened(pg.dsn) as source:
            live, _, _ = source.lanes(store, Ticks())
            async with following(live, store) as follower:
                await follower.polls("live", 1)
        await naive.poll()

    await pg.insert(chain_rows(E, [10]))
    await some_polls()
    await some_polls()
    await writer.execute("BEGIN")
    await some_polls()
    await late(writer, E)
    await some_polls()
    await pg.insert([event_row(E, 30, prev=20)])
    await some_polls()
    await writer.execute("COMMIT")
    await some_polls()
    assert set(store.bodies) == {(E, 10), (E, 20), (E, 30)}
    assert (E, 20) not in naive.keys


async def test_a_prepared_transaction_is_found_when_it_commits(pg: Database) -> None:
    """Nothing but a prepared transaction holds the row: no session shows it."""
    store, writer = MemoryStore(), await pg.connect()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        async with following(live, store) as follower:
            await follower.until(lambda: store.horizon("live") is not None)
            await writer.execute("BEGIN")
            await savepoints(writer, E)
            await writer.execute(f"PREPARE TRANSACTION 'late_{pg.name}'")
            await pg.insert([event_row(E, 30, prev=20)])
            await follower.until(lambda: (E, 30) in store.bodies)
            await follower.polls("live", 3)
            await writer.execute(f"COMMIT PREPARED 'late_{pg.name}'")
            await follower.until(lambda: (E, 20) in store.bodies)
