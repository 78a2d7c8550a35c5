"""What the stream looks like when the table, its partitions or its transactions are not the plain ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sidecar.core.horizon import TailRow
from sidecar.errors import SourceContractError, SourceReplaced
from sidecar.source.wal import WalLane
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.published import PUBLISH
from tests.support.rows import event_row, insert_rows
from tests.support.tailing import Follower, MemoryStore, Ticks, following, opened
from tests.support.waiting import until

E = 7900
FAR = 9 * 10**18


@asynccontextmanager
async def caught_up(pg: Database, store: MemoryStore) -> AsyncIterator[tuple[WalLane, Follower]]:
    """The lane wal alone, after the sweep has made the round that a first start asks for."""
    async with opened(pg.dsn, tail="wal") as source:
        lane, sweep = source.wal_lanes(store, Ticks())
        async with following(lane, store) as follower:
            async with following(sweep, store):
                await follower.until(lambda: store.horizon("wal") is not None and lane.state.caught_up)
            yield lane, follower


async def bodies_of(pg: Database) -> dict[tuple[int, int], str]:
    """What a log read of now gives."""
    async with opened(pg.dsn) as source:
        reader = source.reader(Ticks())
        ids = sorted({row[0] for row in await pg.fetch("SELECT DISTINCT execution_id FROM noetl.event")})
        logs = await reader.read(ids)
        return {(e.execution_id, e.event_id): e.body for log in logs for e in log.events or ()}


def by_wal(store: MemoryStore) -> list[TailRow]:
    return [row for batch in store.batches if batch.lane == "wal" for row in batch.rows]


async def test_what_was_committed_before_a_hidden_transaction_does_not_wait_for_it(
    pg_server: StartServer,
) -> None:
    """One peek brings three commits; the second waits for a standby that is not there."""
    server = await pg_server({"wal_level": "logical"})
    pg = Database(server.dsn(), "postgres")
    await pg.execute(PUBLISH)
    store = MemoryStore()
    async with caught_up(pg, store):
        pass
    before, waits, after = [await pg.connect() for _ in range(3)]
    await pg.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    await pg.execute("SELECT pg_reload_conf()")

    async def reloaded() -> bool:
        return bool(await waits.fetchval("SHOW synchronous_standby_names") == "nobody")

    async def hidden() -> bool:
        asked = "SELECT wait_event FROM pg_stat_activity WHERE pid = $1"
        return bool(await before.fetchval(asked, waits.get_server_pid()) == "SyncRep")

    await until(reloaded)
    for each in before, after:
        await each.execute("SET synchronous_commit = local")
    await insert_rows(before, [event_row(E, 1)])
    waiting = asyncio.create_task(insert_rows(waits, [event_row(E, 2)]))
    await until(hidden)
    await insert_rows(after, [event_row(E, 3)])
    async with opened(pg.dsn, tail="wal") as source:
        lane, _ = source.wal_lanes(store, Ticks())
        async with following(lane, store) as follower:
            await follower.until(lambda: bool(store.bodies))
            assert set(store.bodies) == {(E, 1)}
            await before.execute("SELECT pg_cancel_backend($1)", waits.get_server_pid())
            await waiting
            await follower.until(lambda: len(store.bodies) == 3)
    assert [row.event.event_id for row in by_wal(store)] == [1, 2, 3]
    await pg.close()


@pytest.mark.torture
async def test_rows_that_were_prepared_come_with_their_commit(pg_server: StartServer) -> None:
    server = await pg_server({"wal_level": "logical", "max_prepared_transactions": "3"})
    pg = Database(server.dsn(), "postgres")
    await pg.execute(PUBLISH)
    store = MemoryStore()
    async with caught_up(pg, store) as (_, follower):
        writer = await pg.connect()
        await writer.execute("BEGIN")
        await insert_rows(writer, [event_row(E, 1)])
        await writer.execute("PREPARE TRANSACTION 'one'")
        await insert_rows(writer, [event_row(E, 2)])
        await follower.until(lambda: (E, 2) in store.bodies)
        assert (E, 1) not in store.bodies
        await writer.execute("COMMIT PREPARED 'one'")
        await follower.until(lambda: (E, 1) in store.bodies)
    first, second = store.first_rows[E, 1], store.first_rows[E, 2]
    assert (first.commit_lsn or 0) > (second.commit_lsn or 0)
    assert store.bodies == await bodies_of(pg)
    await pg.close()


async def test_a_partition_with_other_columns_gives_the_same_rows(pg_wal: Database) -> None:
    """Attached while the stream runs: its columns stand in another order, with holes; rows bear an origin."""
    store = MemoryStore()
    async with caught_up(pg_wal, store) as (_, follower):
        columns = await pg_wal.fetch(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute WHERE attnum > 0"
            " AND attrelid = 'noetl.event'::regclass AND NOT attisdropped ORDER BY attnum DESC"
        )
        checks = await pg_wal.fetch(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE conrelid = 'noetl.event'::regclass AND contype = 'c'"
        )
        made = ", ".join(f'"{name}" {kind}{" NOT NULL" if needed else ""}' for name, kind, needed in columns)
        await pg_wal.execute(f"CREATE TABLE noetl.other (hole int, {made}, hole2 text)")
        await pg_wal.execute("ALTER TABLE noetl.other DROP COLUMN hole, DROP COLUMN hole2")
        for name, check in checks:
            await pg_wal.execute(f'ALTER TABLE noetl.other ADD CONSTRAINT "{name}" {check}')
        await pg_wal.execute("ALTER TABLE noetl.event DETACH PARTITION noetl.event_default")
        await pg_wal.execute("DROP TABLE noetl.event_default")
        await pg_wal.execute("ALTER TABLE noetl.event ATTACH PARTITION noetl.other DEFAULT")
        await pg_wal.execute("SELECT pg_replication_origin_create('elsewhere')")
        writer = await pg_wal.connect()
        await writer.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
        try:
            await insert_rows(writer, [event_row(FAR, 1), event_row(FAR, 2, prev=1)])
            await follower.until(lambda: len(store.bodies) == 2)
        finally:
            await writer.execute("SELECT pg_replication_origin_session_reset()")
            await writer.execute("SELECT pg_replication_origin_drop('elsewhere')")
    assert all(row.commit_lsn is not None for row in by_wal(store))
    assert store.bodies == await bodies_of(pg_wal)


async def test_a_column_whose_type_changes_asks_for_a_restart_and_old_changes_are_read_by_key(
    pg_wal: Database,
) -> None:
    store = MemoryStore()
    async with caught_up(pg_wal, store):
        pass
    async with opened(pg_wal.dsn, tail="wal") as source:
        await pg_wal.insert([event_row(E, 1)])
        await pg_wal.execute(
            "ALTER TABLE noetl.event ALTER COLUMN created_at TYPE timestamptz"
            " USING created_at AT TIME ZONE 'Asia/Tokyo'"
        )
        lane, _ = source.wal_lanes(store, Ticks())
        with pytest.raises(SourceReplaced, match="column created_at"):
            async for _ in lane.batches():
                pass
    assert not store.bodies
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, _ = source.wal_lanes(store, Ticks())
        async with following(lane, store) as follower:
            await pg_wal.insert([event_row(E, 2, prev=1)])
            await follower.until(lambda: len(store.bodies) == 2)
    assert store.bodies == await bodies_of(pg_wal)
    assert store.first_rows[E, 1].commit_lsn is None, "the table was written anew: nothing is known of it"
    assert store.first_rows[E, 2].commit_lsn is not None


async def test_columns_that_come_and_go_leave_the_stream_readable(pg_wal: Database) -> None:
    store = MemoryStore()
    async with caught_up(pg_wal, store) as (_, follower):
        await pg_wal.insert([event_row(E, 1)])
        await pg_wal.execute("ALTER TABLE noetl.event ADD COLUMN more text DEFAULT 'x'")
        await pg_wal.insert([event_row(E, 2, prev=1)])
        await pg_wal.execute("ALTER TABLE noetl.event DROP COLUMN more")
        await pg_wal.insert([event_row(E, 3, prev=2)])
        await follower.until(lambda: len(store.bodies) == 3)
    assert store.bodies == await bodies_of(pg_wal)
    async with opened(pg_wal.dsn, tail="wal") as source:
        await pg_wal.insert([event_row(E, 4, prev=3)])
        await pg_wal.execute("ALTER TABLE noetl.event DROP COLUMN worker_id")
        lane, _ = source.wal_lanes(store, Ticks())
        with pytest.raises(SourceReplaced, match="column worker_id"):
            async for _ in lane.batches():
                pass
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, _ = source.wal_lanes(store, Ticks())
        async with following(lane, store) as follower:
            await follower.until(lambda: len(store.bodies) == 4)
    assert store.bodies == await bodies_of(pg_wal)


async def test_a_table_that_is_renamed_is_named(pg_wal: Database) -> None:
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        await pg_wal.execute("ALTER TABLE noetl.event RENAME TO other")
        lane, _ = source.wal_lanes(store, Ticks())
        with pytest.raises(SourceContractError, match="event table does not exist"):
            async for _ in lane.batches():
                pass


async def test_a_partition_that_is_not_logged_is_refused(pg_wal: Database) -> None:
    """The server decodes nothing of it."""
    async with opened(pg_wal.dsn, tail="wal") as source:
        await pg_wal.execute("ALTER TABLE noetl.event_default SET UNLOGGED")
        with pytest.raises(SourceContractError, match="event_default is not in the write-ahead log"):
            await source.check_tail()
