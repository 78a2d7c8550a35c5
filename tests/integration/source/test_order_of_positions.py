"""What positions in the write-ahead log prove of two rows, held against the instants of insertion.

A row whose transaction began to write behind the record that commits another row was inserted after it,
however soon: both may come in one peek.  That the other was visible by then does not follow.
"""

from __future__ import annotations

import asyncio
import random
import sys
from bisect import bisect_left
from collections.abc import Callable

import pytest

from sidecar.core.horizon import TailRow
from sidecar.core.rejoin import Join, Sighting, join
from sidecar.source.opened import LogSource
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.published import PUBLISH
from tests.support.restarted import INSTANTS, instants
from tests.support.rows import event_row, insert_rows
from tests.support.tailing import MemoryStore, Ticks, following, opened
from tests.support.waiting import until
from tests.support.writers import overlapped

E = 7701
WRITERS = 6


def _sighting(row: TailRow) -> Sighting:
    return Sighting(row.event.event_id, row.xid, row.anchor, row.epoch, row.commit_lsn, row.first_lsn)


def _wrong(rows: list[TailRow], at: dict[int, float], of: Callable[[TailRow], int | None]) -> tuple[int, int]:
    """How many pairs the order of the tip's commit and `of` the root orders, and how many falsely."""
    said = wrong = 0
    by_time = sorted(rows, key=lambda row: at[row.event.event_id])
    times = [at[row.event.event_id] for row in by_time]
    for u in rows:
        commit = u.commit_lsn or 0
        said += sum((of(v) or 0) > commit for v in rows)
        wrong += sum((of(v) or 0) > commit for v in by_time[: bisect_left(times, at[u.event.event_id])])
    return said, wrong


async def test_what_was_written_behind_a_commit_was_inserted_after_it(pg_wal: Database) -> None:
    """Of all pairs of some hundred rows of transactions that overlap, with savepoints."""
    seed = random.randrange(2**32)
    sys.stderr.write(f"seed {seed}\n")
    await pg_wal.execute(INSTANTS)
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal", poll_ms=50) as source:
        lane, sweep = source.wal_lanes(store, Ticks())
        async with following(lane, store) as follower:
            async with following(sweep, store):
                await follower.until(lambda: store.horizon("wal") is not None and lane.state.caught_up)
            for writer in [
                asyncio.create_task(
                    overlapped(pg_wal, E, range(w * 1000 + 10, (w + 1) * 1000), random.Random(seed + w), 12)
                )
                for w in range(WRITERS)
            ]:
                await writer
            await follower.polls("wal", 1)
    at = await instants(pg_wal)
    rows = [row for row in store.first_rows.values() if row.first_lsn is not None]
    assert len(rows) == len(at), "each row came by the stream, in a peek that left nothing"

    said, wrong = _wrong(rows, at, lambda row: row.first_lsn)
    assert wrong == 0
    assert said > len(rows) ** 2 / 4, "a rule that says nothing is never wrong"
    assert _wrong(rows, at, lambda row: row.commit_lsn)[1] > 0, "commits alone would not do"
    by_positions = 0
    chance = random.Random(seed)
    for _ in range(3000):
        u, v = chance.choice(rows), chance.choice(rows)
        found = join(E, _sighting(u), _sighting(v), 0)
        if isinstance(found, Join):
            assert at[v.event.event_id] > at[u.event.event_id]
            by_positions += found.anchor is None
    assert by_positions > 0, "every pair was told apart by an anchor"


async def _followed(source: LogSource, store: MemoryStore) -> None:
    lane, sweep = source.wal_lanes(store, Ticks())
    async with following(lane, store) as follower, following(sweep, store):
        await follower.until(lambda: store.horizon("wal") is not None and lane.state.caught_up)


@pytest.mark.torture
async def test_a_row_may_stand_behind_a_commit_that_nobody_sees_yet(pg_server: StartServer) -> None:
    """Which is why the two proofs say different things: the commit waits for a standby meanwhile."""
    # From its start: that a running server took the setting over shows in no session.
    settings = {"wal_level": "logical", "synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    server = await pg_server(settings)
    pg = Database(server.dsn(), "postgres")
    await pg.execute(PUBLISH)
    store = MemoryStore()
    async with opened(pg.dsn, tail="wal") as source:
        await _followed(source, store)
        old, new = await pg.connect(), await pg.connect()
        await old.execute("SET synchronous_commit = on")
        waiting = asyncio.create_task(insert_rows(old, [event_row(E, 1)]))
        asked = "SELECT wait_event FROM pg_stat_activity WHERE pid = $1"

        async def waits() -> bool:
            return bool(await new.fetchval(asked, old.get_server_pid()) == "SyncRep")

        await until(waits)
        await insert_rows(new, [event_row(E, 2)])
        seen = await new.fetch("SELECT event_id FROM noetl.event WHERE execution_id = $1", E)
        assert [row[0] for row in seen] == [2], "the later one is seen first"
        await new.execute("SELECT pg_cancel_backend($1)", old.get_server_pid())
        await waiting
        lane, _ = source.wal_lanes(store, Ticks())
        async with following(lane, store) as follower:
            await follower.until(lambda: len(store.bodies) == 2)
    tip, root = store.first_rows[E, 1], store.first_rows[E, 2]
    found = join(E, _sighting(tip), _sighting(root), 0)
    assert isinstance(found, Join)
    assert (found.anchor, found.tip_lsn, found.root_lsn) == (None, tip.commit_lsn, root.first_lsn)
    await pg.close()


async def test_a_transaction_that_had_begun_to_write_proves_nothing(pg_wal: Database) -> None:
    """Though its row was inserted behind the commit: the first thing that it wrote was not."""
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        await _followed(source, store)
        new = await pg_wal.connect()
        async with new.transaction():
            async with new.transaction():
                await insert_rows(new, [event_row(E + 1, 8)])
            await pg_wal.insert([event_row(E, 1)])
            await insert_rows(new, [event_row(E, 2)])
        await pg_wal.insert([event_row(E, 3)])
        lane, _ = source.wal_lanes(store, Ticks())
        async with following(lane, store) as follower:
            await follower.until(lambda: len(store.bodies) == 4)
    tip, early_root, root = (store.first_rows[E, event_id] for event_id in (1, 2, 3))
    assert tip.commit_lsn is not None
    assert early_root.first_lsn is not None
    assert early_root.first_lsn < tip.commit_lsn
    assert not isinstance(join(E, _sighting(tip), _sighting(early_root), 0), Join)
    assert isinstance(join(E, _sighting(tip), _sighting(root), 0), Join)
