"""What a call costs: statements counted, query plans read.  Source: spec 2.1, cost contracts."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial

import pytest

from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog
from sidecar.store import ChainStore, reads
from sidecar.store.unit import HIGH, StoreUnit
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain, long_chain
from tests.support.sqlite import raw


class Statements:
    """The statements that the writer ran."""

    def __init__(self) -> None:
        self.all: list[str] = []

    async def of(self, store: ChainStore, call: Callable[[], Awaitable[object]]) -> list[str]:
        """Those of one call, transaction control left out."""
        await raw(store._writer).set_trace_callback(self.all.append)
        self.all.clear()
        await call()
        return [sql for sql in self.all if not sql.startswith(("BEGIN", "COMMIT"))]


async def populate(store: ChainStore, executions: range, length: int) -> None:
    """One populate of many new executions."""
    read = LogRead(store.clock.now())
    logs = [ExecutionLog(e, long_chain(length, execution_id=e), read) for e in executions]
    await store.transact(lambda unit: unit.populate(logs))


def reading(statements: list[str], table: str) -> list[str]:
    return [sql for sql in statements if sql.startswith("SELECT") and f" FROM {table}" in sql]


async def test_d03_append_reads_the_head_once_whatever_the_length(sqlite: SqliteBackend) -> None:
    statements = Statements()
    counts = []
    async with sqlite.open() as store:
        for length in (10, 1000):
            events = long_chain(length + 1, execution_id=length)
            await store.populate_from_log(length, events[:-1])
            ran = await statements.of(store, partial(store.append, events[-1]))
            assert len(reading(ran, "partition")) == 1
            assert reading(ran, "event") == []
            counts.append(len(ran))
    assert counts[0] == counts[1] <= 6


async def test_d03_populate_of_many_executions_is_a_fixed_number_of_reads(sqlite: SqliteBackend) -> None:
    statements = Statements()
    reads_ran = []
    async with sqlite.open() as store:
        for start, count in ((0, 2), (100, 60)):
            ran = await statements.of(store, partial(populate, store, range(start, start + count), 5))
            reads_ran.append([sql for sql in ran if sql.startswith("SELECT")])
    assert len(reads_ran[0]) == len(reads_ran[1]) == 3  # sequence, partitions, chains


async def test_a_unit_that_changes_nothing_writes_nothing(sqlite: SqliteBackend) -> None:
    statements = Statements()
    async with sqlite.open() as store:
        await store.populate_from_log(E, chain(1, 2))

        async def look(unit: StoreUnit) -> None:
            await unit.guarded_read(E)

        ran = await statements.of(store, lambda: store.transact(look))
    assert all(sql.startswith("SELECT") for sql in ran)


def plan(sqlite: SqliteBackend, sql: str) -> list[str]:
    with closing(sqlite3.connect(sqlite.path)) as connection:
        numbered = {int(number) for number in re.findall(r"\?(\d+)", sql)}
        parameters = max(numbered) if numbered else sql.count("?")
        rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", ("[]",) * parameters)
        return [detail for *_, detail in rows]


CLUSTERED = "SEARCH event USING PRIMARY KEY (execution_id=?)"


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (reads.PARTITIONS, ["SEARCH partition USING INTEGER PRIMARY KEY (rowid=?)"]),
        (reads.DUE, ["SEARCH due USING INTEGER PRIMARY KEY (rowid=?)"]),
        (reads.CHAINS, [CLUSTERED]),
        (reads.ROW_COUNTS, ["SEARCH event USING COVERING INDEX event_identity (execution_id=?)"]),
        (reads.FIND, ["SEARCH e USING INDEX event_identity (execution_id=? AND event_id=?)"]),
        (reads.PRESENT, ["SEARCH e USING COVERING INDEX event_identity (execution_id=? AND event_id=?)"]),
        (
            reads.SUMS,
            ["SEARCH event USING COVERING INDEX event_identity (execution_id>? AND execution_id<?)"],
        ),
        (HIGH, ["SEARCH sequence USING INDEX sqlite_autoindex_sequence_1 (dataset=?)"]),
        (
            reads.EXECUTIONS,
            [
                "SEARCH partition USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
                "SEARCH event USING COVERING INDEX event_identity (execution_id>? AND execution_id<?)",
            ],
        ),
        (
            reads.DUE_NOW,
            ["SEARCH due USING COVERING INDEX due_order (due_at<?)"],
        ),
    ],
)
async def test_d03_no_statement_scans_a_table(sqlite: SqliteBackend, sql: str, wanted: list[str]) -> None:
    async with sqlite.open() as store:
        for e in range(5):
            await store.populate_from_log(e, long_chain(3, execution_id=e))
    details = plan(sqlite, sql)
    touched = [
        d for d in details if any(f" {t}" in d for t in ("event", "e ", "partition", "due", "sequence"))
    ]
    assert [detail for detail in touched if "SUBQUERY" not in detail] == wanted
    assert not any("TEMP B-TREE FOR ORDER BY" in d for d in plan(sqlite, reads.CHAINS))


async def test_d03_a_chain_read_touches_no_other_execution(sqlite: SqliteBackend) -> None:
    """The work of one read, in SQLite's own steps, does not move when the store grows tenfold."""
    steps: list[int] = []

    def measured() -> int:
        with closing(sqlite3.connect(sqlite.path)) as connection:
            count = 0

            def tick() -> int:
                nonlocal count
                count += 1
                return 0

            connection.set_progress_handler(tick, 1)
            assert len(connection.execute(reads.CHAINS, (f"[{E}]",)).fetchall()) == 20
            return count

    async with sqlite.open() as store:
        await store.populate_from_log(E, long_chain(20))
        for start, count in ((0, 30), (30, 270)):
            await populate(store, range(start, start + count), 10)
            steps.append(measured())
    assert steps[0] == steps[1]
