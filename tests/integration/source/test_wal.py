"""The lane `wal`, rule by rule, over a real server."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

from sidecar.core.horizon import Cursor
from sidecar.core.ports import Batch
from sidecar.core.shards import Shard
from sidecar.core.walgap import Gap
from sidecar.errors import SourceContractError
from sidecar.source import wal as lane_of_wal
from sidecar.source.opened import LogSource
from sidecar.source.slot import SlotReader
from sidecar.source.sweep import SweepLane
from sidecar.source.wal import WalLane
from sidecar.source.walrows import WalRows
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.published import PUBLISH, slots
from tests.support.rows import chain_rows, event_row, insert_rows
from tests.support.tailing import Follower, MemoryStore, Ticks, drained, following, opened

E = 500
TAKE = (
    "SELECT count(*) FROM pg_logical_slot_get_binary_changes('noetl_chain', NULL, NULL,"
    " 'proto_version', '1', 'publication_names', 'noetl_chain')"
)
FAR = 9 * 10**18


def _lanes(source: LogSource, store: MemoryStore) -> tuple[WalLane, SweepLane]:
    return source.wal_lanes(store, Ticks())


async def _repaired(lane: WalLane, sweep: SweepLane, store: MemoryStore, follower: Follower) -> None:
    """Until the round that the first start asks for has ended and the position is stored."""
    async with following(sweep, store):
        await follower.until(lambda: store.horizon("wal") is not None and lane.state.caught_up)


def _rows(store: MemoryStore) -> list[int]:
    return [row.event.event_id for batch in store.batches if batch.lane == "wal" for row in batch.rows]


async def test_what_is_committed_comes_once_and_in_the_order_of_the_commits(pg_wal: Database) -> None:
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
            assert lane.gaps == {Gap.FIRST: 1}
            late, early = await pg_wal.connect(), await pg_wal.connect()
            async with late.transaction():
                await insert_rows(late, [event_row(E, 1)])
                async with early.transaction():
                    await insert_rows(early, [event_row(E, 3, prev=2), event_row(E, 2, prev=1)])
            await follower.until(lambda: len(store.bodies) == 3)
    rows = [row for batch in store.batches for row in batch.rows]
    assert [row.event.event_id for row in rows] == [3, 2, 1]
    first, same, later = [row.commit_lsn or 0 for row in rows]
    assert 0 < first == same < later
    xids = dict(await pg_wal.fetch("SELECT event_id, xmin::text::bigint FROM noetl.event"))
    assert {row.event.event_id: row.xid % 2**32 for row in rows if row.xid is not None} == xids
    assert all(row.anchor is not None and row.xid is not None and row.anchor > row.xid for row in rows)
    assert all(row.ingested_at is not None for row in rows)
    assert list(await slots(pg_wal)) == ["noetl_chain"]


async def test_while_the_sweep_owes_a_round_no_row_has_an_anchor(pg_wal: Database) -> None:
    """What the gap hides may stand behind a tip that a root would be joined to."""
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await follower.polls("wal", 1)
            await pg_wal.insert([event_row(E, 1)])
            await follower.until(lambda: (E, 1) in store.bodies)
            await _repaired(lane, sweep, store, follower)
            await pg_wal.insert([event_row(E, 2, prev=1)])
            await follower.until(lambda: (E, 2) in store.bodies)
    anchors = {r.event.event_id: r.anchor for b in store.batches if b.lane == "wal" for r in b.rows}
    assert anchors[1] is None
    assert anchors[2] is not None


async def test_a_peek_that_leaves_something_gives_no_anchor(pg_wal: Database) -> None:
    """Of a root handed over early and a row behind the tip, both visible, the second is to come."""
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
            await follower.polls("wal", 1)
    await pg_wal.insert([event_row(E, 1)])
    await pg_wal.insert([event_row(E, 2, prev=1)])
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, _ = source.wal_lanes(store, Ticks(), changes_max=1)
        async with following(lane, store) as follower:
            await follower.until(lambda: len(store.bodies) == 2)
            await follower.polls("wal", 1)
    anchors = {r.event.event_id: r.anchor for b in store.batches if b.lane == "wal" for r in b.rows}
    assert set(anchors) == {1, 2}
    assert anchors[1] is None


async def test_rows_that_change_and_go_are_told(pg_wal: Database) -> None:
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, _ = _lanes(source, store)
        async with following(lane, store) as follower:
            await follower.polls("wal", 1)
            await pg_wal.insert(chain_rows(E, [1, 2, 3]))
            await pg_wal.insert(chain_rows(E + 1, [4]))
            await follower.until(lambda: len(store.bodies) == 4)
            await pg_wal.execute("UPDATE noetl.event SET status = 'else' WHERE event_id = 2")
            await pg_wal.execute("DELETE FROM noetl.event WHERE event_id = 3")
            await follower.until(lambda: bool(store.gone) and bool(store.changed))
    assert store.gone == [E]
    changed = store.changed[(E, 2)]
    assert '"status":"else"' in changed.event.body
    assert (changed.xid, changed.commit_lsn) == (None, None), "an update proves nothing of the insertion"


async def test_until_the_sweep_has_made_its_round_the_cursor_has_no_position(pg_wal: Database) -> None:
    await pg_wal.insert(chain_rows(E, [1, 2]))
    store = MemoryStore()
    store.lane_cursors |= {"live": _cursor("live"), "late": _cursor("late")}
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await follower.polls("wal", 1)
            await pg_wal.insert([event_row(E, 3, prev=2)])
            await follower.until(lambda: bool(store.bodies))
            await follower.polls("wal", 1)
            assert store.horizon("wal") is None
            assert not lane.state.caught_up
            assert set(store.bodies) == {(E, 3)}, "the rows before the slot are the sweep's"
            assert set(store.lane_cursors) == {"wal"}, "the cursors of the poll have ended"
            await _repaired(lane, sweep, store, follower)
    assert set(store.bodies) == {(E, 1), (E, 2), (E, 3)}
    assert lane.gaps == {Gap.FIRST: 1}


def _cursor(lane: str) -> Cursor:
    return Cursor(lane, 5, "e", "s", "t", 1)


async def test_a_restart_goes_on_from_the_position_and_reads_nothing_twice(pg_wal: Database) -> None:
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
            await pg_wal.insert(chain_rows(E, [1, 2]))
            await follower.until(lambda: len(store.bodies) == 2)
            await follower.polls("wal", 1)
    await pg_wal.insert([event_row(E, 3, prev=2)])
    before = len(store.batches)
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, _ = _lanes(source, store)
        async with following(lane, store) as follower:
            await follower.until(lambda: len(store.bodies) == 3)
    assert [row.event.event_id for batch in store.batches[before:] for row in batch.rows] == [3]
    assert lane.gaps == {}


async def test_what_was_stored_and_not_confirmed_is_read_again(pg_wal: Database) -> None:
    """The process ends between the store's transaction and the call that moves the slot."""
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
        await pg_wal.insert(chain_rows(E, [1, 2]))
        async with aclosing(lane.batches()) as batches:
            async for batch in batches:
                store.take(batch)
                if batch.rows:
                    break
    stands, stored = (await slots(pg_wal))["noetl_chain"], store.horizon("wal")
    assert stored is not None
    assert stands < stored
    await pg_wal.insert([event_row(E, 3, prev=2)])
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, _ = _lanes(source, store)
        async with following(lane, store) as follower:
            await follower.until(lambda: len(store.bodies) == 3)
            await follower.polls("wal", 1)
    assert _rows(store) == [1, 2, 1, 2, 3]
    assert lane.gaps == {}, "to stand behind is no gap"
    assert (await slots(pg_wal))["noetl_chain"] >= stored


async def test_a_huge_transaction_comes_in_pieces_and_the_position_behind_the_last(
    pg_wal: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_of_wal, "PIECE_ROWS", 300)
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
        await pg_wal.insert(chain_rows(E, range(1, 2001)))
        await pg_wal.insert(chain_rows(E + 1, range(3001, 3004)))
        before = len(store.batches)
        async with following(lane, store) as follower:
            await follower.until(lambda: len(store.bodies) == 2003)
    pieces = [batch for batch in store.batches[before:] if batch.rows]
    huge = [batch for batch in pieces if batch.rows[0].event.execution_id == E]
    assert len(huge) > 2
    assert all(len(batch.rows) <= 2 * 300 for batch in huge)
    assert all(batch.more for batch in huge[:-1]), "no position inside a transaction"
    assert all(row.anchor is None for batch in huge[:-1] for row in batch.rows)
    assert _rows(store) == [*range(1, 2001), *range(3001, 3004)]


async def test_a_peek_is_bounded_by_messages_and_ends_behind_a_transaction(pg_wal: Database) -> None:
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = source.wal_lanes(store, Ticks(), changes_max=10)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
        for first in range(1, 100, 5):
            await pg_wal.insert(chain_rows(E + first, range(first, first + 5)))
        before = len(store.batches)
        async with following(lane, store) as follower:
            await follower.until(lambda: len(store.bodies) == 100)
    sizes = [len(batch.rows) for batch in store.batches[before:] if batch.rows]
    assert len(sizes) >= 10
    assert all(size % 5 == 0 for size in sizes)
    assert all(batch.cursor is not None for batch in store.batches[before:])


async def test_wal_of_others_is_passed_over_in_bounded_steps(
    pg_wal: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_of_wal, "SPAN_BYTES", 200_000)
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
            stood = (await slots(pg_wal))["noetl_chain"]
            await pg_wal.execute(
                "CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 3000)"
            )
            await pg_wal.insert(chain_rows(E, [1]))
            await follower.until(lambda: len(store.bodies) == 1)
            await follower.polls("wal", 1)
    positions = [batch.cursor.horizon for batch in store.batches if batch.cursor and batch.lane == "wal"]
    steps = [b - a for a, b in pairwise(positions) if a is not None and b is not None]
    assert sum(step > 100_000 for step in steps) > 5
    assert (await slots(pg_wal))["noetl_chain"] > stood + 3_000_000


async def test_a_value_that_an_update_left_alone_is_read_by_its_key(pg_wal: Database) -> None:
    long = json.dumps({"data": "".join(chr(33 + (7 * n * n + n // 3) % 90) for n in range(20_000))})
    await pg_wal.execute("ALTER TABLE noetl.event ALTER COLUMN context SET STORAGE EXTERNAL")
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
            await pg_wal.insert([event_row(E, 1, context=long)])
            await follower.until(lambda: len(store.bodies) == 1)
            await pg_wal.execute("UPDATE noetl.event SET status = 'else' WHERE event_id = 1")
            await follower.until(lambda: bool(store.changed))
        (log,) = await source.reader(Ticks()).read([E])
    assert log.events is not None
    assert store.changed[(E, 1)].event == log.events[0]
    assert len(log.events[0].body) > 20_000


async def test_a_row_that_is_too_large_is_read_by_its_key(pg_wal: Database) -> None:
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = source.wal_lanes(store, Ticks(), message_bytes=5000)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
            rows = [event_row(E, 1), event_row(E, 2, prev=1, error="y" * 9000), event_row(E, 3, prev=2)]
            await pg_wal.insert(rows)
            await follower.until(lambda: len(store.bodies) == 3)
        (log,) = await source.reader(Ticks()).read([E])
    assert _rows(store) == [1, 2, 3]
    assert {event.body for event in log.events or ()} == set(store.bodies.values())
    assert all(row.xid is not None and row.commit_lsn is not None for row in store.first_rows.values())


async def test_a_row_that_is_too_large_and_hides_its_key_is_the_sweep_s(pg_wal: Database) -> None:
    """A table whose key columns stand behind a large one, as after it was made anew by hand."""
    await pg_wal.execute(
        "DROP TABLE noetl.event CASCADE; CREATE TABLE noetl.event (error text, execution_id bigint,"
        " event_id bigint, catalog_id bigint, prev_event_id bigint, parent_execution_id bigint,"
        " event_type text, created_at timestamp NOT NULL, PRIMARY KEY (execution_id, event_id));"
        " ALTER PUBLICATION noetl_chain ADD TABLE noetl.event"
    )
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = source.wal_lanes(store, Ticks(), message_bytes=5000)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
            await pg_wal.insert([event_row(E, 1), event_row(E, 2, prev=1, error="y" * 9000)])
            await follower.until(lambda: bool(store.bodies))
            assert _rows(store) == [1]
            await follower.until(lambda: lane.gaps[Gap.UNREADABLE] == 1)
            await _repaired(lane, sweep, store, follower)
    assert set(store.bodies) == {(E, 1), (E, 2)}


async def test_a_truncated_table_is_counted_again(pg_wal: Database) -> None:
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
            await pg_wal.insert(chain_rows(E, [1, 2]))
            await follower.until(lambda: len(store.bodies) == 2)
            conn = await pg_wal.connect()
            async with conn.transaction():
                await conn.execute("TRUNCATE noetl.event")
                await insert_rows(conn, [event_row(E + 1, 3)])
            await follower.until(lambda: len(store.bodies) == 3)
            assert store.horizon("wal") is None
            await _repaired(lane, sweep, store, follower)
    assert store.gone == [E]
    assert lane.gaps == {Gap.FIRST: 1, Gap.TRUNCATED: 1}


async def test_a_row_that_moves_between_partitions_is_the_same_row(pg_wal: Database) -> None:
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
            await pg_wal.insert(chain_rows(E, [1, 2]))
            await follower.until(lambda: len(store.bodies) == 2)
            await pg_wal.execute(
                "CREATE TABLE noetl.event_far PARTITION OF noetl.event"
                f" FOR VALUES FROM ({FAR}) TO ({FAR + 10})"
            )
            await pg_wal.execute("UPDATE noetl.event SET execution_id = $1 WHERE event_id = 2", FAR)
            await follower.until(lambda: len(store.bodies) == 3)
    assert (FAR, 2) in store.bodies
    assert store.gone == [E]


async def test_a_commit_that_others_do_not_see_yet_is_not_taken(
    pg_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a standby that is not there: decoded already, and not in the log."""
    refused = 0
    ask = WalRows.hidden

    async def hidden(*args: Any) -> tuple[int, frozenset[int]]:
        nonlocal refused
        xmax, found = await ask(*args)
        refused += bool(found)
        return xmax, found

    monkeypatch.setattr(WalRows, "hidden", hidden)
    server = await pg_server({"wal_level": "logical"})
    pg = Database(server.dsn(), "postgres")
    await pg.execute(PUBLISH)
    store = MemoryStore()
    async with opened(pg.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
            await pg.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            await pg.execute("SELECT pg_reload_conf()")
            writer = await pg.connect()
            shown = "SHOW synchronous_standby_names"
            while await writer.fetchval(shown) != "nobody":  # noqa: ASYNC110 - a server gives no event
                await asyncio.sleep(0.01)
            waiting = asyncio.create_task(insert_rows(writer, [event_row(E, 1)]))
            pid, watcher = writer.get_server_pid(), await pg.connect()
            asked = "SELECT wait_event FROM pg_stat_activity WHERE pid = $1"
            while await watcher.fetchval(asked, pid) != "SyncRep":  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
            await follower.until(lambda: refused > 2)
            assert not store.bodies
            await watcher.execute("SELECT pg_cancel_backend($1)", pid)
            await waiting
            await follower.until(lambda: len(store.bodies) == 1)
    row = store.first_rows[(E, 1)]
    assert row.xid is not None
    assert row.anchor is not None
    assert row.anchor > row.xid
    await pg.close()


async def test_rows_that_somebody_takes_between_look_and_peek_are_a_gap(
    pg_wal: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, peek, taken = MemoryStore(), SlotReader.peek, 0

    async def robbed(*args: Any, **more: Any) -> Any:
        nonlocal taken
        if taken == 0:
            taken = (await pg_wal.fetch(TAKE))[0][0]
        return await peek(*args, **more)

    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
        await pg_wal.insert(chain_rows(E, [1, 2]))
        monkeypatch.setattr(SlotReader, "peek", robbed)
        async with following(lane, store) as follower:
            await follower.until(lambda: lane.gaps[Gap.SLOT_AHEAD] == 1)
            await _repaired(lane, sweep, store, follower)
    assert taken > 0
    assert set(store.bodies) == {(E, 1), (E, 2)}
    assert not _rows(store), "they came by the sweep"


async def test_each_shard_reads_its_own_from_a_slot_of_its_own(pg_wal: Database) -> None:
    executions = range(E, E + 40)
    stores = [MemoryStore(), MemoryStore()]
    for index, store in enumerate(stores):
        async with opened(pg_wal.dsn, tail="wal", shard=Shard(index, 2)) as source:
            await drained(_lanes(source, store)[0], store)
    await pg_wal.insert([event_row(execution, execution) for execution in executions])
    await pg_wal.insert([event_row(E, 1, prev=E, error="z" * 400_000)])
    for index, store in enumerate(stores):
        async with opened(pg_wal.dsn, tail="wal", shard=Shard(index, 2)) as source:
            await drained(_lanes(source, store)[0], store, polls=1)
    first, second = (set(store.bodies) for store in stores)
    assert first | second == {(execution, execution) for execution in executions} | {(E, 1)}
    assert not first & second
    assert set(await slots(pg_wal)) == {"noetl_chain_0of2", "noetl_chain_1of2"}


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("DROP PUBLICATION noetl_chain", "there is no publication"),
        ("ALTER PUBLICATION noetl_chain SET (publish = 'insert')", "whole event table"),
        ("ALTER PUBLICATION noetl_chain SET (publish_via_partition_root = false)", "whole event table"),
        ("ALTER PUBLICATION noetl_chain SET TABLE noetl.event WHERE (event_id > 5)", "whole event table"),
        ("ALTER PUBLICATION noetl_chain DROP TABLE noetl.event", "whole event table"),
        ("SELECT pg_create_physical_replication_slot('noetl_chain')", "another database's or plugin's"),
    ],
)
async def test_what_is_missing_stops_the_start_with_its_remedy(pg_wal: Database, sql: str, why: str) -> None:
    await pg_wal.execute(sql)
    try:
        with pytest.raises(SourceContractError, match=why) as refused:
            async with opened(pg_wal.dsn, tail="wal") as source:
                await source.check_tail()
        assert refused.value.hint
    finally:
        await pg_wal.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_type = 'physical'"
        )


async def test_a_server_without_logical_wal_and_a_role_without_the_right_are_refused(
    pg_server: StartServer,
) -> None:
    server = await pg_server()
    pg = Database(server.dsn(), "postgres")
    await pg.execute(PUBLISH)
    with pytest.raises(SourceContractError, match="wal_level is replica"):
        async with opened(pg.dsn, tail="wal") as source:
            await source.check_tail()


async def _plain_role(pg: Database) -> str:
    role = f"wal_reader_{pg.name}"
    await pg.execute(
        f"CREATE ROLE {role} LOGIN; ALTER ROLE {role} SET default_transaction_read_only = on;"
        f" GRANT USAGE ON SCHEMA noetl TO {role}; GRANT SELECT ON noetl.event TO {role}"
    )
    return role


async def test_a_plain_role_that_may_read_and_replicate_suffices(pg_wal: Database) -> None:
    role = await _plain_role(pg_wal)
    dsn = pg_wal.dsn.replace("postgres@", f"{role}@", 1).replace("user=postgres", f"user={role}")
    try:
        with pytest.raises(SourceContractError, match="may not use replication slots"):
            async with opened(dsn, tail="wal") as source:
                await source.check_tail()
        await pg_wal.execute(f"ALTER ROLE {role} REPLICATION")
        store = MemoryStore()
        async with opened(dsn, tail="wal") as source:
            lane, sweep = _lanes(source, store)
            async with following(lane, store) as follower:
                await _repaired(lane, sweep, store, follower)
                await pg_wal.insert(chain_rows(E, [1, 2]))
                await follower.until(lambda: len(store.bodies) == 2)
    finally:
        await pg_wal.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def _batches_of_wal(store: MemoryStore) -> list[Batch]:
    return [batch for batch in store.batches if batch.lane == "wal"]


async def test_an_idle_server_is_not_peeked_and_its_slot_stays(pg_wal: Database) -> None:
    store = MemoryStore()
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, sweep = _lanes(source, store)
        async with following(lane, store) as follower:
            await _repaired(lane, sweep, store, follower)
            await follower.polls("wal", 3)
            assert lane.wal.retained_bytes < 2**24
            assert all(batch.cursor is not None for batch in _batches_of_wal(store))
