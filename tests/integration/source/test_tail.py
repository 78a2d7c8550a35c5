"""The window lanes, rule by rule."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sidecar.core.horizon import DISTANCE_MAX, Cursor
from sidecar.source import pieces, poll, tail
from sidecar.source.options import Shard
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row, insert_rows
from tests.support.tailing import MemoryStore, Ticks, drained, following, opened

E = 500


def _ago(**span: float) -> datetime:
    return datetime.now(UTC).replace(tzinfo=None) - timedelta(**span)


async def _with_horizon(lane: Any, store: MemoryStore) -> None:
    await drained(lane, store, polls=2)
    assert store.horizon(lane.name) is not None


async def test_the_first_poll_stores_the_tree_and_no_h_the_second_has_both(pg: Database) -> None:
    await pg.insert(chain_rows(E, [1, 2, 3]))
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        (first,) = await drained(live, store)
        assert first.cursor is not None
        assert (first.cursor.horizon, first.cursor.tree) == (None, source.table.tree)
        assert len(first.rows) == 3
        (second,) = await drained(live, store)
        assert second.cursor is not None
        assert second.cursor.horizon is not None
        assert len(second.rows) == 3, "read without predicate once more"


async def test_rows_read_without_predicate_have_no_xid_and_later_ones_have(pg: Database) -> None:
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await pg.insert(chain_rows(E, [1]))
        await _with_horizon(live, store)
        await pg.insert([event_row(E, 2, prev=1)])
        await drained(live, store)
    assert store.first_rows[(E, 1)].xid is None
    row = store.first_rows[(E, 2)]
    assert row.xid is not None
    assert row.xid % 2**32 == row.xmin
    assert (row.event.prev_event_id, row.event.parent_execution_id) == (1, None)
    assert row.ingested_at is not None


async def test_a_row_inserted_after_another_was_visible_has_an_xid_at_or_above_its_anchor(
    pg: Database,
) -> None:
    store = MemoryStore()
    writer = await pg.connect()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        async with following(live, store) as follower:
            await follower.until(lambda: store.horizon("live") is not None)
            # v takes its xid before u is seen, and commits after: nothing may be concluded.
            await writer.execute("BEGIN")
            await insert_rows(writer, [event_row(E, 10)])
            await pg.insert([event_row(E, 20)])
            await follower.until(lambda: (E, 20) in store.bodies)
            await writer.execute("COMMIT")
            await pg.insert([event_row(E, 30)])
            await follower.until(lambda: {(E, 10), (E, 30)} <= set(store.bodies))
    anchor = store.first_rows[(E, 20)].anchor
    early, later = store.first_rows[(E, 10)].xid, store.first_rows[(E, 30)].xid
    assert anchor is not None
    assert early is not None
    assert later is not None
    assert early < anchor <= later


async def test_the_same_version_is_emitted_once_while_h_is_pinned(pg: Database) -> None:
    store, holder = MemoryStore(), await pg.connect()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        async with following(live, store) as follower:
            await follower.until(lambda: store.horizon("live") is not None)
            await holder.execute("BEGIN")
            await holder.execute("SELECT pg_current_xact_id()")
            await pg.insert(chain_rows(E, [1, 2, 3]))
            await follower.until(lambda: len(store.bodies) == 3)
            pinned = store.horizon("live")
            await follower.polls("live", 3)
            assert store.horizon("live") == pinned
            assert sum(len(batch.rows) for batch in store.batches) == 3
            await holder.execute("ROLLBACK")
            await follower.until(lambda: store.horizon("live") != pinned)
    assert sum(len(batch.rows) for batch in store.batches) == 3


async def test_a_batch_that_was_not_stored_is_emitted_again(pg: Database) -> None:
    """Remembering is for stored batches: a lane closed at its yield knows nothing of it."""
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await _with_horizon(live, store)
        await pg.insert(chain_rows(E, [1, 2]))
        for _ in range(2):
            async with aclosing(live.batches()) as batches:
                batch = await anext(batches)
            assert [row.event.event_id for row in batch.rows] == [1, 2]
        await drained(live, store)
    assert len(store.bodies) == 2


async def test_an_update_is_emitted_again_without_an_xid(pg: Database) -> None:
    store, holder = MemoryStore(), await pg.connect()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        async with following(live, store) as follower:
            await follower.until(lambda: store.horizon("live") is not None)
            await holder.execute("BEGIN")
            await holder.execute("SELECT pg_current_xact_id()")
            await pg.insert(chain_rows(E, [1, 2]))
            await follower.until(lambda: len(store.bodies) == 2)
            await pg.execute("UPDATE noetl.event SET error = 'tampered' WHERE event_id = 1")
            await follower.until(lambda: (E, 1) in store.changed)
    assert "tampered" in store.changed[(E, 1)].event.body
    assert store.changed[(E, 1)].xid is None
    assert set(store.changed) == {(E, 1)}


async def test_an_update_is_emitted_again_when_h_has_passed_the_first_version(pg: Database) -> None:
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await pg.insert(chain_rows(E, [1, 2]))
        await _with_horizon(live, store)
        await pg.execute("UPDATE noetl.event SET error = 'tampered' WHERE event_id = 1")
        await drained(live, store)
    assert set(store.changed) == {(E, 1)}


async def test_a_delete_is_invisible_to_a_tail(pg: Database) -> None:
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await pg.insert(chain_rows(E, [1, 2, 3]))
        await _with_horizon(live, store)
        await pg.execute("DELETE FROM noetl.event WHERE event_id = 2")
        batches = await drained(live, store, polls=2)
    assert [batch.rows for batch in batches] == [(), ()]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Los_Angeles"])
async def test_the_window_is_counted_in_utc_whatever_the_zone(pg: Database, zone: str) -> None:
    await pg.execute(f"ALTER DATABASE \"{pg.name}\" SET TimeZone = '{zone}'")
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, late, _ = source.lanes(store, Ticks())
        now, hour, old = event_row(E, 1), event_row(E, 2, created_at=_ago(minutes=30)), event_row(E, 3)
        await pg.insert([now, hour, {**old, "created_at": _ago(hours=2)}])
        (seen,) = await drained(live, store)
        assert [row.event.event_id for row in seen.rows] == [1]
        (seen,) = await drained(late, store)
        assert {row.event.event_id for row in seen.rows} == {1, 2}


async def test_the_window_reaches_back_to_the_lanes_last_stored_poll(pg: Database) -> None:
    """After an hour of standing still, the live lane looks an hour back, not a minute."""
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await _with_horizon(live, store)
        cursor = store.lane_cursors["live"]
        store.lane_cursors["live"] = replace(cursor, polled_at=cursor.polled_at - 3_600_000_000)
        await pg.insert([event_row(E, 1, created_at=_ago(minutes=59))])
        await drained(live, store)
    assert set(store.bodies) == {(E, 1)}


def _other_scope(cursor: Cursor) -> Cursor:
    return replace(cursor, scope=cursor.scope + "x")


def _other_epoch(cursor: Cursor) -> Cursor:
    return replace(cursor, epoch="another")


def _ahead(cursor: Cursor) -> Cursor:
    return replace(cursor, horizon=(cursor.horizon or 0) + 10**6)


def _far_behind(cursor: Cursor) -> Cursor:
    return replace(cursor, horizon=(cursor.horizon or 0) - DISTANCE_MAX - 10**6)


@pytest.mark.parametrize("change", [_other_scope, _other_epoch, _ahead, _far_behind])
async def test_an_h_that_does_not_hold_is_never_used(pg: Database, change: Any) -> None:
    """The row lies below H, as one does whose xid was used again after a crash."""
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await pg.insert(chain_rows(E, [1, 2]))
        await _with_horizon(live, store)
        store.bodies.clear()
        await drained(live, store)
        assert store.bodies == {}  # below H: an H that holds does not see them
        store.lane_cursors["live"] = change(store.lane_cursors["live"])
        await drained(live, store)
        assert set(store.bodies) == {(E, 1), (E, 2)}


@pytest.mark.parametrize("what", ["shard", "window", "table"])
async def test_the_scope_names_everything_h_is_bound_to(pg: Database, what: str) -> None:
    store = MemoryStore()
    await pg.insert(chain_rows(E, [1]))
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await _with_horizon(live, store)
    if what == "table":
        await pg.execute(
            "ALTER TABLE noetl.event RENAME TO event_was; CREATE TABLE noetl.event"
            " (LIKE noetl.event_was INCLUDING ALL); INSERT INTO noetl.event SELECT * FROM noetl.event_was"
        )
    changed: dict[str, dict[str, Any]] = {
        "shard": {"shard": Shard(0, 2)},
        "window": {"live_window_s": 61.0},
        "table": {},
    }
    before = store.lane_cursors["live"]
    async with opened(pg.dsn, **changed[what]) as source:
        live, _, _ = source.lanes(store, Ticks())
        (batch,) = await drained(live, store)
    assert batch.cursor is not None
    assert batch.cursor.scope != before.scope
    assert batch.cursor.horizon is None


async def test_a_changed_tree_leaves_the_lane_without_h_and_still_gives_the_rows(pg: Database) -> None:
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await _with_horizon(live, store)
        await pg.execute(
            "CREATE TABLE noetl.event_new PARTITION OF noetl.event FOR VALUES FROM (-20) TO (-10)"
        )
        await pg.insert(chain_rows(-15, [1]))
        (batch,) = await drained(live, store)
        assert [row.event.execution_id for row in batch.rows] == [-15]
        assert batch.cursor is not None
        assert batch.cursor.horizon is None
        await drained(live, store)
        assert store.horizon("live") is not None


async def test_a_subpartition_belongs_to_the_tree(pg: Database) -> None:
    await pg.execute(
        "CREATE TABLE noetl.event_deep PARTITION OF noetl.event FOR VALUES FROM (-20) TO (-10)"
        " PARTITION BY RANGE (execution_id)"
    )
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await _with_horizon(live, store)
        await pg.execute("CREATE TABLE noetl.event_deeper PARTITION OF noetl.event_deep DEFAULT")
        await drained(live, store)
        assert store.horizon("live") is None


async def test_a_big_poll_is_cut_and_only_the_last_batch_has_the_cursor(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "PIECE_ROWS", 100)
    monkeypatch.setattr(pieces, "ROWS_FIRST", 40)
    monkeypatch.setattr(pieces, "ROWS_MAX", 40)
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await _with_horizon(live, store)
        await pg.insert(chain_rows(E, range(1, 351)))
        batches = await drained(live, store)
    assert len(batches) > 2
    assert [batch.cursor is not None for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert len({row.event.event_id for batch in batches for row in batch.rows}) == 350


async def test_a_poll_is_cut_by_bytes_too(pg: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll, "PIECE_BYTES", 100_000)
    monkeypatch.setattr(pieces, "AIM_BYTES", 90_100)
    monkeypatch.setattr(pieces, "ROWS_FIRST", 2)
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await _with_horizon(live, store)
        await pg.insert(chain_rows(E, range(1, 11), error="x" * 90_000))
        batches = await drained(live, store)
    assert max(len(batch.rows) for batch in batches) == 2
    assert len(store.bodies) == 10


@pytest.mark.parametrize("filtered", [False, True])
async def test_killed_at_any_batch_of_a_big_poll_it_resumes_and_loses_nothing(
    pg: Database, monkeypatch: pytest.MonkeyPatch, filtered: bool
) -> None:
    monkeypatch.setattr(poll, "PIECE_ROWS", 50)
    monkeypatch.setattr(pieces, "ROWS_FIRST", 20)
    monkeypatch.setattr(pieces, "ROWS_MAX", 20)
    async with opened(pg.dsn) as source:
        base = MemoryStore()
        live, _, _ = source.lanes(base, Ticks())
        if filtered:
            await _with_horizon(live, base)
        await pg.insert(chain_rows(E, range(1, 301)))
        for stored in range(7):
            store = MemoryStore()
            store.lane_cursors = dict(base.lane_cursors)
            live, _, _ = source.lanes(store, Ticks())
            async with aclosing(live.batches()) as batches:
                for _ in range(stored):
                    store.take(await anext(batches))
                await anext(batches)  # handed out, never stored
            assert not filtered or stored >= 6 or store.horizon("live") == base.horizon("live")
            live, _, _ = source.lanes(store, Ticks())
            await drained(live, store)
            assert len(store.bodies) == 300


async def test_without_h_every_row_of_the_window_is_read_for_it_may_have_changed(pg: Database) -> None:
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await pg.insert(chain_rows(E, range(1, 101)))
        await drained(live, store)
        store.lane_cursors["live"] = _other_epoch(store.lane_cursors["live"])
        await pg.execute(f"UPDATE noetl.event SET meta = '{{}}' WHERE execution_id = {E} AND event_id = 7")
        (batch,) = await drained(live, store)
    assert {row.event.event_id for row in batch.rows} == set(range(1, 101))
    assert '"meta":{}' in next(row.event.body for row in batch.rows if row.event.event_id == 7)


async def test_pinned_it_reads_keys_first_and_still_sees_updates(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "PINNED_ROWS", 50)
    store, holder = MemoryStore(), await pg.connect()
    modes: list[bool] = []
    right = poll.poll_sql

    def noting(*args: Any, **options: Any) -> str:
        modes.append(options["bodies"])
        return right(*args, **options)

    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await pg.insert(chain_rows(E, [1]))
        async with following(live, store) as follower:
            await follower.until(lambda: store.horizon("live") is not None)
            monkeypatch.setattr(poll, "poll_sql", noting)
            await holder.execute("BEGIN")
            await holder.execute("SELECT pg_current_xact_id()")
            await pg.insert([event_row(E, number, prev=number - 1) for number in range(2, 102)])
            await follower.until(lambda: len(store.bodies) == 101)
            await follower.polls("live", 2)
            assert not modes[-1]
            asked = store.asked_missing
            await pg.insert([event_row(E, 102, prev=101)])
            await pg.execute("UPDATE noetl.event SET error = 'tampered' WHERE event_id IN (1, 50)")
            await follower.until(lambda: (E, 102) in store.bodies and len(store.changed) == 2)
            assert store.asked_missing == asked
            assert not modes[-1]
            await holder.execute("ROLLBACK")
            await follower.until(lambda: modes[-1])
    assert set(store.changed) == {(E, 1), (E, 50)}


def test_a_pinned_lane_takes_its_time_and_another_does_not() -> None:
    assert tail.pause_s(0.3, 0.15, pinned=False) == 0.15
    assert tail.pause_s(0.1, 0.15, pinned=True) == pytest.approx(1.0)
    assert tail.pause_s(0.001, 0.15, pinned=True) == 0.15
    assert tail.pause_s(60, 0.15, pinned=True) == 2.0


async def test_the_age_of_h_grows_while_it_is_pinned_and_not_on_an_idle_server(pg_server: Any) -> None:
    server = await pg_server({"autovacuum": "off"})
    pg = Database(server.dsn(), "postgres")
    store, holder = MemoryStore(), await pg.connect()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        async with following(live, store) as follower:
            await follower.until(lambda: store.horizon("live") is not None)
            await follower.polls("live", 5)
            assert live.state.caught_up
            assert live.state.horizon_age_s == 0.0
            await holder.execute("BEGIN")
            await holder.execute("SELECT pg_current_xact_id()")
            await pg.insert(chain_rows(E, [1]))
            await follower.until(lambda: len(store.bodies) == 1)
            await follower.until(lambda: live.state.horizon_age_s > 0.05)
            await holder.execute("ROLLBACK")
            await follower.until(lambda: live.state.horizon_age_s == 0.0)
    await pg.close()


async def test_dates_that_drivers_cannot_read_pass(pg: Database) -> None:
    days = ["infinity", "10000-01-01", "-infinity", "0044-03-15 BC"]
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, sweep = source.lanes(store, Ticks())
        await _with_horizon(live, store)
        await pg.insert([event_row(E, n, created_at=day, ingest_time=day) for n, day in enumerate(days)])
        await drained(live, store)
        assert {event_id for _, event_id in store.bodies} == {0, 1}  # the window has no upper end
        assert store.first_rows[(E, 0)].ingested_at is None
        await drained(sweep, store, polls=len(store.lane_cursors) + 20)
    assert {event_id for _, event_id in store.bodies} == {0, 1, 2, 3}
    assert '"timestamp":"infinity"' in store.bodies[(E, 0)]
    assert '"timestamp":"10000-01-01T00:00:00"' in store.bodies[(E, 1)]


async def test_an_older_install_is_followed_with_links_none(pg_older: Database) -> None:
    store = MemoryStore()
    rows = chain_rows(E, [1, 2])
    for row in rows:
        del row["prev_event_id"]
    async with opened(pg_older.dsn) as source:
        assert {"prev_event_id", "command_id", "stage_id", "frame_id"} <= set(source.table.missing)
        assert not source.table.has_links
        live, _, _ = source.lanes(store, Ticks())
        await pg_older.insert(rows)
        await drained(live, store)
        (log,) = await source.reader(Ticks()).read([E])
    assert [row.event.prev_event_id for row in store.first_rows.values()] == [None, None]
    assert [event.prev_event_id for event in log.events or ()] == [None, None]
    assert {event.body for event in log.events or ()} == set(store.bodies.values())


async def test_shards_divide_the_executions(pg: Database) -> None:
    await pg.insert(row for execution_id in range(1, 41) for row in chain_rows(execution_id, [1]))
    found = []
    for index in range(3):
        store = MemoryStore()
        async with opened(pg.dsn, shard=Shard(index, 3)) as source:
            live, _, _ = source.lanes(store, Ticks())
            await drained(live, store)
        found.append(set(store.bodies))
    assert all(found)
    assert sum(map(len, found)) == 40
    assert set.union(*found) == {(execution_id, 1) for execution_id in range(1, 41)}
