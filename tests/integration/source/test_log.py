"""Complete reads of the log, and walks over all of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.core.body import canonical_body
from sidecar.core.ports import ExecutionLog
from sidecar.errors import SourceContractError, SourceError, SourceUnavailable
from sidecar.source import scan as scanning
from sidecar.source.log import PostgresLog
from sidecar.source.options import Shard
from sidecar.source.scan import scan
from tests.support.databases import Database
from tests.support.deadlines import server_first
from tests.support.rows import chain_rows, event_row, insert_rows
from tests.support.tailing import Ticks, opened

E = 500


def _ids(log: ExecutionLog) -> list[int]:
    assert log.events is not None
    return sorted(event.event_id for event in log.events)


async def test_many_executions_are_read_by_one_statement_each_id_answered_in_order(pg: Database) -> None:
    await pg.insert(chain_rows(1, [1, 2]) + chain_rows(10**15, [3]) + chain_rows(-7, [4]))
    async with opened(pg.dsn) as source:
        logs = await source.reader(Ticks()).read([10**15, 99, 1, -7, 1])
    assert [log.execution_id for log in logs] == [10**15, 99, 1, -7, 1]
    assert [_ids(log) for log in logs] == [[3], [], [1, 2], [4], [1, 2]]


async def test_nothing_asked_nothing_read(pg: Database) -> None:
    async with opened(pg.dsn) as source:
        assert await source.reader(Ticks()).read([]) == []


async def test_i32_null_links_are_none(pg: Database) -> None:
    await pg.insert([event_row(E, 1), event_row(E, 2, prev=1, parent=7)])
    async with opened(pg.dsn) as source:
        (log,) = await source.reader(Ticks()).read([E])
    links = {e.event_id: (e.prev_event_id, e.parent_execution_id) for e in log.events or ()}
    assert links == {1: (None, None), 2: (1, 7)}


async def test_i31_a_failed_read_raises_and_is_never_an_empty_log(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_first(monkeypatch)
    await pg.insert(chain_rows(E, [1, 2]))
    locker = await pg.connect()
    async with opened(pg.dsn, query_timeout_s=5) as source:
        reader = source.reader(Ticks())
        assert _ids((await reader.read([E]))[0]) == [1, 2]
        await locker.execute("BEGIN; LOCK TABLE noetl.event IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceUnavailable, match="longer than its deadline"):
            await reader.read([E])
        await locker.execute("ROLLBACK")
        assert _ids((await reader.read([E]))[0]) == [1, 2]


async def test_i31_a_connection_that_breaks_in_a_read_raises_and_the_next_read_has_a_new_one(
    pg: Database,
) -> None:
    await pg.insert(chain_rows(E, [1, 2]))
    locker = await pg.connect()
    async with opened(pg.dsn) as source:
        reader = source.reader(Ticks())
        await locker.execute("BEGIN; LOCK TABLE noetl.event IN ACCESS EXCLUSIVE MODE")
        reading = asyncio.create_task(reader.read([E]))
        terminated: list[Any] = []
        async with asyncio.timeout(10):
            while not terminated:
                terminated = await pg.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                    " AND datname = current_database() AND application_name = 'noetl-chain'"
                )
        with pytest.raises(SourceUnavailable):
            await reading
        await locker.execute("ROLLBACK")
        assert _ids((await reader.read([E]))[0]) == [1, 2]


async def test_a_column_that_is_dropped_while_we_run_is_an_error(pg: Database) -> None:
    await pg.insert(chain_rows(E, [1]))
    async with opened(pg.dsn) as source:
        reader = source.reader(Ticks())
        await pg.execute("ALTER TABLE noetl.event DROP COLUMN frame_id")
        with pytest.raises(SourceContractError, match="column"):
            await reader.read([E])
    async with opened(pg.dsn) as source:
        assert source.table.missing == ("frame_id",)
        await source.reader(Ticks()).read([E])


@pytest.mark.parametrize(("rows", "complete"), [(4, True), (5, False), (6, False)])
async def test_rows_at_or_above_the_limit_are_truncated(pg: Database, rows: int, complete: bool) -> None:
    await pg.insert(chain_rows(E, range(1, rows + 1)) + chain_rows(E + 1, [1]))
    async with opened(pg.dsn, read_limit=5) as source:
        first, second = await source.reader(Ticks()).read([E, E + 1])
    assert (first.events is not None) is complete
    assert _ids(second) == [1]


async def test_the_read_says_when_it_began_in_which_epoch_and_the_anchor_after_it(pg: Database) -> None:
    await pg.insert(chain_rows(E, [1]))
    clock = Ticks()
    async with opened(pg.dsn) as source:
        reader = source.reader(clock)
        before = clock.now()
        (log,) = await reader.read([E])
        after = clock.now()
    (next_xid,) = await pg.fetch("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xid")
    assert before < log.read.began_at < after
    assert log.read.epoch is not None
    assert log.read.epoch.count("/") == 3
    assert log.read.anchor is not None
    assert log.read.anchor <= next_xid["xid"]
    xmin = await pg.fetch("SELECT xmin::text::bigint AS xmin FROM noetl.event")
    assert xmin[0]["xmin"] < log.read.anchor


async def test_newest_at_is_none_for_infinity_and_dates_pass_as_text(pg: Database) -> None:
    await pg.insert(
        [
            event_row(1, 1, created_at="infinity"),
            event_row(2, 1, created_at="1970-01-01T00:00:01.000002"),
            event_row(2, 2, created_at="10000-01-01"),
        ]
    )
    async with opened(pg.dsn) as source:
        infinite, far = await source.reader(Ticks()).read([1, 2])
    assert infinite.newest_at is None
    assert far.newest_at == 1_000_002
    assert infinite.events is not None
    assert '"timestamp":"infinity"' in infinite.events[0].body


async def test_the_body_is_the_twins_and_huge_and_odd_rows_survive(pg: Database) -> None:
    rows: list[dict[str, Any]] = [
        event_row(2**62, 2**62 + 1, error="\u2028 \U0001f600 \x07", created_at="2026-01-02T03:04:05.120000"),
        event_row(
            2**62,
            2**62 + 2,
            prev=2**62 + 1,
            created_at="2026-01-02T03:04:05",
            context='{"n": 1E400}',
            error="é" * 300_000,
        ),
    ]
    await pg.insert(rows)
    async with opened(pg.dsn) as source:
        (log,) = await source.reader(Ticks()).read([2**62])
    assert {event.body for event in log.events or ()} == {canonical_body(row) for row in rows}


async def test_a_read_that_planned_with_an_old_tree_is_run_again(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement that first shows a new tree may have read the old partitions."""
    async with opened(pg.dsn) as source:
        reader = source.reader(Ticks())
        await reader.read([-15])
        statements = 0
        right = PostgresLog._statement

        async def counting(self: PostgresLog, *args: Any) -> Any:
            nonlocal statements
            statements += 1
            return await right(self, *args)

        monkeypatch.setattr(PostgresLog, "_statement", counting)
        await reader.read([-15])
        assert statements == 1
        await pg.execute(
            "CREATE TABLE noetl.event_new PARTITION OF noetl.event FOR VALUES FROM (-20) TO (-10)"
        )
        await pg.insert(chain_rows(-15, [1]))
        assert _ids((await reader.read([-15]))[0]) == [1]
        assert statements == 3


async def test_a_tree_that_never_stands_still_is_an_error(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(pg.dsn) as source:
        reader = source.reader(Ticks())
        right = PostgresLog._statement

        async def moving(self: PostgresLog, *args: Any) -> Any:
            self._tree = "another"
            return await right(self, *args)

        monkeypatch.setattr(PostgresLog, "_statement", moving)
        with pytest.raises(SourceError, match="without end"):
            await reader.read([1])


async def test_callers_take_turns(pg: Database) -> None:
    await pg.insert(row for number in range(20) for row in chain_rows(number, [1, 2]))
    async with opened(pg.dsn) as source:
        reader = source.reader(Ticks())
        logs = await asyncio.gather(*(reader.read([number]) for number in range(20)))
    assert [_ids(log) for (log,) in logs] == [[1, 2]] * 20


async def _scanned(source: Any, **bounds: int) -> list[list[ExecutionLog]]:
    return [logs async for logs in scan(source.reader(Ticks()), **bounds)]


@pytest.mark.parametrize("share", [0.0, 2.0], ids=["by range", "by ids"])
async def test_a_scan_gives_every_execution_once_in_batches(
    pg: Database, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(scanning, "_RANGE_SHARE", share)
    monkeypatch.setattr(scanning, "CHUNK_EXECUTIONS", 7)
    monkeypatch.setattr(scanning, "_FIRST_ROWS", 10)
    monkeypatch.setattr(scanning, "BATCH_ROWS", 10)
    executions = [-(2**63), -5, *range(40), 10**12, 2**63 - 1]
    await pg.insert(row for number in executions for row in chain_rows(number, range(1, 2 + abs(number) % 5)))
    async with opened(pg.dsn, read_limit=5) as source:
        batches = await _scanned(source)
    logs = [log for batch in batches for log in batch]
    assert sorted(log.execution_id for log in logs) == executions
    assert all((log.events is None) == (1 + abs(log.execution_id) % 5 >= 5) for log in logs)
    assert max(sum(len(log.events or ()) for log in batch) for batch in batches) <= 10
    assert len(batches) > 5


async def test_a_scan_keeps_to_its_bounds_and_its_shard(pg: Database) -> None:
    await pg.insert(row for number in range(40) for row in chain_rows(number, [1, 2]))
    async with opened(pg.dsn) as source:
        found = {log.execution_id for batch in await _scanned(source, low=10, high=20) for log in batch}
    assert found == set(range(10, 21))
    parts = []
    for index in range(2):
        async with opened(pg.dsn, shard=Shard(index, 2)) as source:
            parts.append({log.execution_id for batch in await _scanned(source) for log in batch})
    assert parts[0] | parts[1] == set(range(40))
    assert not parts[0] & parts[1]


async def test_a_scan_stops_a_read_that_grows_too_heavy(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "BATCH_BYTES", 40_000)
    monkeypatch.setattr(scanning, "READ_BYTES", 50_000)
    await pg.insert(row for number in range(20) for row in chain_rows(number, [1, 2], error="x" * 10_000))
    async with opened(pg.dsn) as source:
        batches = await _scanned(source)
    assert [log.execution_id for batch in batches for log in batch] == list(range(20))
    assert max(len(batch) for batch in batches) <= 3


async def test_a_scan_holds_no_snapshot_between_statements(pg: Database) -> None:
    await pg.insert(row for number in range(10) for row in chain_rows(number, [1]))
    async with opened(pg.dsn) as source:
        async for _ in scan(source.reader(Ticks())):
            (held,) = await pg.fetch(
                "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'noetl-chain'"
                " AND datname = current_database() AND backend_xmin IS NOT NULL"
            )
            assert held["n"] == 0


async def test_an_execution_that_grew_past_the_limit_after_the_count_is_truncated(pg: Database) -> None:
    await pg.insert(chain_rows(E, [1, 2]))
    conn = await pg.connect()
    async with opened(pg.dsn, read_limit=4) as source:
        reader = source.reader(Ticks())
        counted = await reader.count(E, E, 10)
        await insert_rows(conn, [event_row(E, 3, prev=2), event_row(E, 4, prev=3)])
        (logs,) = [
            logs
            async for logs in scanning.read_counted(reader, counted, counted.counts, scanning.BatchSize())
        ]
    assert [log.events for log in logs] == [None]
