"""What reading costs, whatever the size of the store.  Source: spec 2.1, cost contracts.

The reference keeps an event under its id, so its predecessor fetch is a search of the primary
key.  Here rows lie by place, and the id is the unique index `event_identity`, whose entry is
the place: one search of that index, which leads to one row.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest

from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog
from sidecar.store import ChainStore, reads, sequence
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, long_chain
from tests.support.sqlite import quick, raw

LENGTH = 100


async def statements(store: ChainStore, call: Callable[[], Awaitable[object]]) -> list[str]:
    """What the connections of point reads ran for one call."""
    ran: list[str] = []
    await raw(store._points).set_trace_callback(ran.append)
    quick(store)._raw.set_trace_callback(ran.append)
    await call()
    await raw(store._points).set_trace_callback(None)  # type: ignore[arg-type] # None takes it away again
    quick(store)._raw.set_trace_callback(None)
    return [sql for sql in ran if not sql.startswith(("BEGIN", "COMMIT"))]


async def grown(store: ChainStore, executions: range) -> None:
    read = LogRead(store.clock.now())
    logs = [ExecutionLog(e, long_chain(LENGTH, execution_id=e), read) for e in executions]
    await store.transact(lambda unit: unit.populate(logs))


def plan(sqlite: SqliteBackend, sql: str) -> list[str]:
    parameters = ("{}",) * (max(map(int, re.findall(r"\?(\d+)", sql)), default=0) or sql.count("?"))
    with closing(sqlite3.connect(sqlite.path)) as connection:
        return [detail for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]


def steps(sqlite: SqliteBackend, sql: str, parameters: tuple[object, ...]) -> int:
    """The work of one statement in SQLite's own steps."""
    taken = 0

    def tick() -> int:
        nonlocal taken
        taken += 1
        return 0

    with closing(sqlite3.connect(sqlite.path)) as connection:
        connection.set_progress_handler(tick, 1)
        assert connection.execute(sql, parameters).fetchall()
    return taken


async def test_d03_each_point_read_is_its_fixed_number_of_statements(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        for e in (E, 5):
            await store.populate_from_log(e, long_chain(LENGTH, execution_id=e))
        last = (await store.chain(E))[-1]
        costs = {
            "parent_of": len(await statements(store, lambda: store.parent_of(last))),
            "get": len(await statements(store, lambda: store.get(E, last.event_id))),
            "chain": len(await statements(store, lambda: store.chain(E))),
            "parent_execution_of": len(await statements(store, lambda: store.parent_execution_of(E))),
            "guarded": len(await statements(store, lambda: store.chain_if_authoritative(E))),
            "guarded of two": len(await statements(store, lambda: store.guarded_reads((E, 5)))),
            "walk": len(await statements(store, lambda: store.walk_from_head(E))),
        }
    assert costs == {
        "parent_of": 1,
        "get": 1,
        "chain": 1,
        "parent_execution_of": 1,
        "guarded": 1,  # record, work list, rows
        "guarded of two": 3,
        "walk": 2,  # not one a link
    }


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (reads.FIND, "SEARCH e USING INDEX event_identity (execution_id=? AND event_id=?)"),
        (reads.PLACES, "SEARCH e USING PRIMARY KEY (execution_id=? AND exec_seq=?)"),
        (reads.FIRST, "SEARCH event USING PRIMARY KEY (execution_id=?)"),
        (reads.CHAINS, "SEARCH event USING PRIMARY KEY (execution_id=?)"),
        (reads.EVENTS, "SEARCH event USING PRIMARY KEY (execution_id=?)"),
        (reads.GUARDED, "SEARCH event USING PRIMARY KEY (execution_id=?)"),
        (sequence.AFTER, "SEARCH event USING INDEX event_by_gseq (gseq>?)"),
        (sequence.UP_TO, "SEARCH event USING INDEX event_by_gseq (gseq<?)"),
    ],
)
async def test_d03_rows_are_searched_by_key_and_never_sorted(
    sqlite: SqliteBackend, sql: str, wanted: str
) -> None:
    async with sqlite.open() as store:
        await grown(store, range(3))
        await store.prepare_following()
    details = plan(sqlite, sql)
    assert wanted in details
    assert [detail for detail in details if re.match(r"SCAN (e|event)\b", detail)] == []
    assert not any("TEMP B-TREE" in detail for detail in details)


@pytest.mark.parametrize(("sql", "columns"), [(reads.GUARDED, 6), (reads.EVENTS, 5)])
async def test_d03_no_row_of_a_chain_brings_what_its_reader_knows(
    sqlite: SqliteBackend, sql: str, columns: int
) -> None:
    """Each column is a tenth of a read: the execution was asked for, a claim is as wide as a row."""
    async with sqlite.open():
        pass
    with closing(sqlite3.connect(sqlite.path)) as connection:
        names = [name for name, *_ in connection.execute(sql, (E,)).description]
    assert len(names) == columns
    assert "execution_id" not in names


async def test_d03_the_cost_of_a_key_does_not_move_when_the_store_grows_tenfold(
    sqlite: SqliteBackend,
) -> None:
    wanted = long_chain(LENGTH)
    questions = {
        reads.FIND: (f'{{"{E}": [{wanted[50].event_id}]}}',),
        reads.PLACES: (f'{{"{E}": [51]}}',),
        reads.CHAINS: (f"[{E}]",),
        reads.FIRST: (E,),
        reads.PARTITIONS: (f"[{E}]",),
    }
    taken = []
    async with sqlite.open() as store:
        await store.populate_from_log(E, wanted)
        for executions in (range(10), range(10, 100)):
            await grown(store, executions)
            taken.append([steps(sqlite, sql, parameters) for sql, parameters in questions.items()])
    assert taken[0] == taken[1]
