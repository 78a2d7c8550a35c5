"""The sums of a chain are the same in Postgres, in Python and recomputed from the store's rows."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.core.event import Event
from sidecar.core.links import Ordered, order_by_links
from sidecar.core.sums import NOTHING, StoredSums, Sums, agree, sums_of
from sidecar.source.log import PostgresLog
from sidecar.source.options import Shard
from sidecar.source.sums import LogSums
from sidecar.store import ChainStore
from sidecar.store.rows import event_row
from sidecar.store.sums import StoreSums
from tests.integration.source.test_body_twin import ROWS
from tests.support.databases import Database
from tests.support.rows import chain_rows
from tests.support.rows import event_row as log_row
from tests.support.tailing import Ticks, opened

E = 9001
_next_execution = count(E)


def store_raw(path: Path, events: Sequence[Event]) -> None:
    """The rows as somebody could write them: in this order, whatever their links."""
    with closing(sqlite3.connect(path)) as raw:
        raw.executemany(
            "INSERT INTO event (execution_id, exec_seq, event_id, prev_event_id, parent_execution_id,"
            " event_type, body) VALUES (?,?,?,?,?,?,?)",
            [event_row(seq, event, 0, None, None)[:7] for seq, event in enumerate(events, start=1)],
        )
        raw.commit()


async def made(path: Path) -> StoreSums:
    async with ChainStore.open(str(path)):
        pass
    return StoreSums(path)


LOGS = st.lists(ROWS, max_size=5, unique_by=lambda row: row["event_id"])


def _linked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    before: dict[str, Any] = {}
    linked = []
    for row in rows:
        kept = {name: value for name, value in row.items() if name != "prev_event_id"}
        linked.append(kept | ({"prev_event_id": before["event_id"]} if before else {}))
        before = row
    return linked


@dataclass(frozen=True)
class Sides:
    """One log and one store for all generated examples, each example an execution of its own."""

    conn: Any
    types: Mapping[str, str]
    log: PostgresLog
    path: Path
    store: StoreSums

    async def insert(self, row: dict[str, Any]) -> None:
        values = ", ".join(f"${n}::text::{self.types[name]}" for n, name in enumerate(row, start=1))
        sql = f"INSERT INTO noetl.event ({', '.join(row)}) VALUES ({values})"
        await self.conn.execute(sql, *map(str, row.values()))


@pytest.fixture
async def sides(pg: Database, tmp_path: Path) -> AsyncIterator[Sides]:
    path = tmp_path / "chain.db"
    async with opened(pg.dsn) as source:
        conn = await pg.connect(statement_cache_size=0)
        yield Sides(conn, source.table.types, source.reader(Ticks()), path, await made(path))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.one_of(LOGS, LOGS.map(_linked)))
async def test_pushed_down_python_and_recomputed_sums_are_one(
    sides: Sides, rows: list[dict[str, Any]]
) -> None:
    """Over generated bodies, links and lengths; and a chain is whole exactly when its links say so."""
    execution_id = next(_next_execution)
    for row in rows:
        await sides.insert(row | {"execution_id": execution_id})
    (read,) = await sides.log.read([execution_id])
    pushed_down = (await LogSums(sides.log).of([execution_id]))[execution_id]
    between = await LogSums(sides.log).between(execution_id, execution_id, [])
    assert read.events is not None
    assert len(read.events) == len(rows)
    assert pushed_down == sums_of(read.events)
    assert between == ({execution_id: pushed_down} if rows else {})

    order = order_by_links(read.events)
    in_order = order.events if isinstance(order, Ordered) else read.events
    store_raw(sides.path, in_order)
    stored = (await sides.store.of([execution_id])).get(execution_id, StoredSums())
    assert stored.sums == pushed_down
    assert stored.whole == isinstance(order, Ordered)
    assert await sides.store.between(execution_id, execution_id) == ({execution_id: stored} if rows else {})
    assert agree(pushed_down, stored) == isinstance(order, Ordered)


async def test_an_empty_chain_has_nothing_and_agrees_with_nothing_stored(
    pg: Database, tmp_path: Path
) -> None:
    summer = await made(tmp_path / "chain.db")
    async with opened(pg.dsn) as source:
        assert await LogSums(source.reader(Ticks())).of([E]) == {E: NOTHING}
    assert await summer.of([E]) == {}
    assert agree(NOTHING, StoredSums())
    assert not agree(None, StoredSums())


async def test_an_older_install_without_links_counts_every_row_as_a_root(pg_older: Database) -> None:
    await pg_older.execute(
        "INSERT INTO noetl.event (execution_id, catalog_id, event_id, created_at, event_type)"
        " VALUES (9001, 1, 1, now(), 'x'), (9001, 1, 2, now(), 'x')"
    )
    async with opened(pg_older.dsn) as source:
        log = source.reader(Ticks())
        (read,) = await log.read([E])
        assert read.events is not None
        found = await LogSums(log).of([E])
    assert found == {E: sums_of(read.events)}
    assert found[E].roots == 2


COLUMNS_BESIDE_THEIR_BODY = {
    "the parent": "UPDATE event SET parent_execution_id = 5 WHERE exec_seq = 2",
    "no parent": "UPDATE event SET parent_execution_id = NULL WHERE exec_seq = 1",
    "the type": "UPDATE event SET event_type = 'other' WHERE exec_seq = 2",
    "the link": "UPDATE event SET prev_event_id = 1 WHERE exec_seq = 3",
    "a second root": "UPDATE event SET prev_event_id = NULL WHERE exec_seq = 3",
    "the id": "UPDATE event SET event_id = 9 WHERE exec_seq = 3",
    "the place": "UPDATE event SET exec_seq = 9 WHERE exec_seq = 3",
    "the execution": "UPDATE event SET execution_id = 77",
    "two bodies exchanged": "CREATE TEMP TABLE o AS SELECT exec_seq, body FROM event; UPDATE event SET body ="
    " (SELECT o.body FROM o WHERE o.exec_seq = 5 - event.exec_seq) WHERE exec_seq IN (2, 3)",
    "two places exchanged": "UPDATE event SET exec_seq = -exec_seq WHERE exec_seq > 1;"
    " UPDATE event SET exec_seq = 5 + exec_seq WHERE exec_seq < 0",
}


@pytest.mark.parametrize("change", COLUMNS_BESIDE_THEIR_BODY.values(), ids=COLUMNS_BESIDE_THEIR_BODY.keys())
async def test_a_column_changed_beside_an_untouched_body_is_no_agreement(
    pg: Database, tmp_path: Path, change: str
) -> None:
    path = tmp_path / "chain.db"
    await pg.insert(chain_rows(E, [1, 2, 3], parent=4))
    summer = await made(path)
    async with opened(pg.dsn) as source:
        log = source.reader(Ticks())
        (read,) = await log.read([E])
        store_raw(path, read.events or ())
        pushed_down = (await LogSums(log).of([E]))[E]
    assert agree(pushed_down, (await summer.of([E]))[E])
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(change)
        raw.commit()
    (changed,) = (await summer.between(-1, E)).values()
    # The bodies are what they were: only the columns tell.
    assert changed.sums.digest == pushed_down.digest
    assert not agree(pushed_down, changed)


async def test_sums_are_the_shards_own_and_without_what_was_left_out(pg: Database) -> None:
    await pg.insert([row for e in range(E, E + 8) for row in chain_rows(e, [1, 2])])
    halves: list[dict[int, Sums]] = []
    for index in (0, 1):
        async with opened(pg.dsn, shard=Shard(index, 2)) as source:
            halves.append(await LogSums(source.reader(Ticks())).between(E, E + 7, []))
    assert set(halves[0]) | set(halves[1]) == set(range(E, E + 8))
    assert not set(halves[0]) & set(halves[1])
    async with opened(pg.dsn) as source:
        found = await LogSums(source.reader(Ticks())).between(E, E + 7, [E + 1])
    assert set(found) == set(range(E, E + 8)) - {E + 1}


async def test_what_is_left_of_an_execution_is_counted_with_or_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    summer = await made(path)
    store_raw(path, [Event(E, 1, None, None, "", "{}"), Event(E, 2, 1, None, "", "{}")])
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("INSERT INTO partition (execution_id) VALUES (?)", (E + 1,))
        raw.commit()
    assert await summer.counts(E, E + 9, 10) == [(E, 2), (E + 1, 0)]
    assert await summer.counts(E, E + 9, 1) == [(E, 2)]


async def test_the_sum_of_an_execution_reads_by_execution(pg: Database) -> None:
    """No partition is read whole for one slice of it."""
    conn = await pg.connect()
    await conn.execute(
        "INSERT INTO noetl.event (execution_id, catalog_id, event_id, created_at, event_type)"
        " SELECT 1000000000000 + n / 10, 1, n, '2025-01-01'::timestamp, 'x' FROM generate_series(1, 20000) n"
    )
    await conn.execute("ANALYZE noetl.event")
    async with opened(pg.dsn) as source:
        sums = LogSums(source.reader(Ticks()))
        plan = await conn.fetch(f"EXPLAIN {sums._between}", 10**12, 10**12 + 20, [])
    filled = [row[0] for row in plan if "event_2024_q1_standard" in row[0]]
    assert filled
    assert all("Seq Scan" not in line for line in filled)


async def test_a_type_is_found_as_it_is_spelled(pg: Database, tmp_path: Path) -> None:
    """A type with quotes and escapes stands in the body as it stands in the column."""
    path_type = 'a"b\\c\u2028\u0001é'
    await pg.insert([log_row(E, 1, event_type=path_type), log_row(E, 2, prev=1, event_type="")])
    async with opened(pg.dsn) as source:
        (read,) = await source.reader(Ticks()).read([E])
    summer = await made(tmp_path / "chain.db")
    store_raw(tmp_path / "chain.db", read.events or ())
    assert (await summer.of([E]))[E].whole
