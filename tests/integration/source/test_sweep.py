"""The sweep: comparison without H, rows since H with one, partitions that come and go."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sidecar.core.ports import Batch
from sidecar.source import pieces, poll, scan
from sidecar.source.options import Shard
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.tailing import MemoryStore, Ticks, drained, following, opened
from tests.support.xids import walk_xids

OLD = datetime(2025, 1, 1, tzinfo=UTC).replace(tzinfo=None)
BASE = 10**12
"""Ids in the first partition of the table."""


async def _once(source: Any, store: MemoryStore) -> list[Batch]:
    """Follow the sweep until every partition has an H."""
    begun = len(store.batches)
    _, _, sweep = source.lanes(store, Ticks())
    async with following(sweep, store) as follower:
        await follower.until(lambda: sweep.state.caught_up)
    return store.batches[begun:]


def _old(execution_id: int, event_ids: Any = (1, 2, 3)) -> list[dict[str, Any]]:
    return chain_rows(execution_id, event_ids, created_at=OLD)


async def test_it_finds_rows_of_any_created_at_that_the_windows_do_not_see(pg: Database) -> None:
    await pg.insert(_old(BASE) + chain_rows(BASE + 1, [1], created_at="infinity") + _old(5))
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        _, _, sweep = source.lanes(store, Ticks())
        async with following(sweep, store) as follower:
            await follower.until(lambda: len(store.bodies) == 7)
            assert not sweep.state.caught_up
            await follower.until(lambda: sweep.state.caught_up)
            await pg.insert(_old(BASE + 2) + _old(-7))
            await follower.until(lambda: len(store.bodies) == 13)
    assert {row.event.execution_id for row in store.first_rows.values()} == {BASE + 2, -7}
    assert all(row.xid is not None for row in store.first_rows.values())


async def test_every_partition_has_a_lane_of_its_own_and_the_cursor_stands_in_its_last_batch(
    pg: Database,
) -> None:
    await pg.insert(row for number in range(50) for row in _old(BASE + number))
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        batches = await _once(source, store)
    (partitions,) = await pg.fetch(
        "SELECT count(*) AS n FROM pg_inherits WHERE inhparent = 'noetl.event'::regclass"
    )
    assert len(store.lane_cursors) == partitions["n"]
    for lane in store.lane_cursors:
        of_lane = [batch for batch in batches if batch.lane == lane]
        ended = next(n for n, batch in enumerate(of_lane) if batch.cursor is not None)
        # What follows the comparison is already a poll with its H.
        assert not any(batch.logs for batch in of_lane[ended:])
    assert sum(len(batch.logs) for batch in batches) == 50


async def test_a_comparison_reads_only_what_differs(pg: Database) -> None:
    await pg.insert(row for number in range(20) for row in _old(BASE + number))
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        await _once(source, store)
        store.lane_cursors = {
            lane: replace(cursor, epoch="another") for lane, cursor in store.lane_cursors.items()
        }
        del store.bodies[(BASE + 3, 2)]
        store.bodies[(BASE + 4, 9)] = store.bodies.pop((BASE + 4, 2))  # same count, other sum
        await pg.insert([event_row(BASE + 5, 4, prev=3, created_at=OLD)])
        batches = await _once(source, store)
    read = sorted(log.execution_id for batch in batches for log in batch.logs)
    assert read == [BASE + 3, BASE + 4, BASE + 5]
    assert not store.gone


async def test_what_the_store_has_and_the_log_lacks_is_gone(pg: Database) -> None:
    await pg.insert(row for number in range(6) for row in _old(BASE + number))
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        await _once(source, store)
        store.lane_cursors.clear()
        await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1", BASE + 1)
        await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1 AND event_id = 3", BASE + 2)
        batches = await _once(source, store)
    assert sorted(store.gone) == [BASE + 1, BASE + 2]
    assert [log.execution_id for batch in batches for log in batch.logs] == [BASE + 2]


async def test_rows_of_other_shards_are_not_gone(pg: Database) -> None:
    await pg.insert(row for number in range(20) for row in _old(BASE + number))
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        await _once(source, store)
    await pg.execute("DELETE FROM noetl.event WHERE execution_id >= $1", BASE + 10)
    async with opened(pg.dsn, shard=Shard(0, 2)) as source:
        await _once(source, store)
        ours = set(await source.reader(Ticks()).ours(range(BASE, BASE + 20)))
    assert set(store.gone) == ours & set(range(BASE + 10, BASE + 20))
    assert 0 < len(store.gone) < 10


async def test_with_h_nothing_is_compared_and_big_polls_are_cut(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "PIECE_ROWS", 100)
    monkeypatch.setattr(pieces, "ROWS_FIRST", 50)
    monkeypatch.setattr(pieces, "ROWS_MAX", 50)
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        await _once(source, store)
        begun = len(store.batches)
        await pg.insert(_old(BASE, range(1, 451)))
        _, _, sweep = source.lanes(store, Ticks())
        async with following(sweep, store) as follower:
            await follower.until(lambda: len(store.bodies) == 450)
    batches = [batch for batch in store.batches[begun:] if batch.rows]
    assert len(batches) > 3
    assert not any(batch.logs for batch in store.batches[begun:])
    assert all(batch.cursor is None for batch in batches[:-1])


async def test_catch_up_is_killed_at_every_batch_and_loses_nothing(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "CHUNK_EXECUTIONS", 4)
    monkeypatch.setattr(scan, "_FIRST_ROWS", 6)
    monkeypatch.setattr(scan, "BATCH_ROWS", 6)
    await pg.insert(row for number in range(12) for row in _old(BASE + number))
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        while True:
            _, _, sweep = source.lanes(store, Ticks())
            async with aclosing(sweep.batches()) as batches:
                async for batch in batches:
                    if batch.logs:
                        assert batch.cursor is None
                        store.take(batch)
                        break
                    store.take(batch)
                    if sweep.state.caught_up or len(store.bodies) == 36:
                        break
            if len(store.bodies) == 36:
                break
        await _once(source, store)
    assert len(store.bodies) == 36


async def test_a_new_partition_is_compared_at_once_and_one_that_left_is_dropped(pg: Database) -> None:
    store = MemoryStore()
    await pg.execute(
        "CREATE TABLE noetl.event_side (LIKE noetl.event INCLUDING ALL);"
        "INSERT INTO noetl.event_side (execution_id, catalog_id, event_id, created_at, event_type)"
        " SELECT -15, 1, n, '2025-01-01', 'x' FROM generate_series(1, 5) n"
    )
    # The rows are older than any H the lanes will have: only the comparison can find them.
    async with opened(pg.dsn, sweep_round_s=600.0) as source:
        _, _, sweep = source.lanes(store, Ticks())
        async with following(sweep, store) as follower:
            await follower.until(lambda: sweep.state.caught_up)
            before = set(store.lane_cursors)
            await pg.execute(
                "ALTER TABLE noetl.event ATTACH PARTITION noetl.event_side FOR VALUES FROM (-20) TO (-10)"
            )
            await follower.until(lambda: len(store.bodies) == 5)
            await follower.until(lambda: len(store.lane_cursors) == len(before) + 1)
            await pg.execute("ALTER TABLE noetl.event DETACH PARTITION noetl.event_side")
            await follower.until(lambda: -15 in store.gone)
            await follower.until(lambda: sweep.state.caught_up and set(store.lane_cursors) == before)
    assert len(store.bodies) == 5


async def test_an_untouched_partition_keeps_its_h_when_another_is_attached(pg: Database) -> None:
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        await _once(source, store)
        scopes = {lane: cursor.scope for lane, cursor in store.lane_cursors.items()}
        await pg.execute(
            "CREATE TABLE noetl.event_new PARTITION OF noetl.event FOR VALUES FROM (-20) TO (-10)"
        )
        begun = len(store.batches)
        _, _, sweep = source.lanes(store, Ticks())
        async with following(sweep, store) as follower:
            await follower.until(lambda: len(store.lane_cursors) == len(scopes) + 1)
            await follower.until(lambda: sweep.state.caught_up)
    changed = {lane for lane, scope in scopes.items() if store.lane_cursors[lane].scope != scope}
    assert len(changed) == 1  # DEFAULT, whose range is what the others leave
    compared = {b.lane for b in store.batches[begun:] if b.cursor is not None and b.anchor is None}
    assert compared == changed | (set(store.lane_cursors) - set(scopes))


async def test_a_round_takes_no_longer_than_its_time(pg: Database) -> None:
    store = MemoryStore()
    async with opened(pg.dsn, sweep_round_s=1.0) as source:
        _, _, sweep = source.lanes(store, Ticks())
        async with following(sweep, store) as follower:
            await follower.until(lambda: sweep.state.caught_up)
            first = {lane: store.polls(lane) for lane in store.lane_cursors}
            await follower.until(lambda: all(store.polls(lane) > n for lane, n in first.items()), timeout_s=5)
            spread = [cursor.polled_at for cursor in store.lane_cursors.values()]
    assert max(spread) - min(spread) < 2_000_000


async def test_a_plain_table_is_one_lane(pg: Database) -> None:
    await pg.execute(
        "CREATE SCHEMA plain; CREATE TABLE plain.event (LIKE noetl.event INCLUDING DEFAULTS);"
        "ALTER TABLE plain.event ADD PRIMARY KEY (execution_id, event_id);"
        "INSERT INTO plain.event (execution_id, catalog_id, event_id, created_at, event_type)"
        " SELECT 1, 1, n, '2025-01-01', 'x' FROM generate_series(1, 5) n"
    )
    store = MemoryStore()
    async with opened(pg.dsn, schema="plain") as source:
        assert not source.table.partitioned
        await _once(source, store)
        relid = source.table.relid
        assert list(store.lane_cursors) == [f"sweep:{relid}:0"]
        await pg.execute("UPDATE plain.event SET error = 'tampered' WHERE event_id = 3")
        _, _, sweep = source.lanes(store, Ticks())
        async with following(sweep, store) as follower:
            await follower.until(lambda: (1, 3) in store.changed)
    assert len(store.bodies) == 5


async def test_frozen_rows_of_any_age_are_found_at_first_sight(pg_server: Any) -> None:
    """At 2.4 and at 3.3 thousand million transactions: their age has turned negative."""
    server = await pg_server()
    pg = Database(server.dsn(), "postgres")
    await pg.insert(_old(BASE, range(1, 501)) + chain_rows(7, range(1, 501)))
    for distance in (2_400_000_000, 900_000_000):
        await walk_xids(server, distance)
        await _find_all(server.dsn(), rows_in_window=500)
        (negative,) = await pg.fetch("SELECT count(*) AS n FROM noetl.event WHERE age(xmin) < 0")
        assert negative["n"] == 1000
    await pg.close()


async def _find_all(dsn: str, rows_in_window: int) -> None:
    swept, windowed = MemoryStore(), MemoryStore()
    async with opened(dsn) as source:
        await _once(source, swept)
        assert len(swept.bodies) == 1000
        live, _, _ = source.lanes(windowed, Ticks())
        await drained(live, windowed)
    assert len(windowed.bodies) == rows_in_window
