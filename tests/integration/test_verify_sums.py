"""`verify --store` by sums: what agrees is not read, and nothing passes that a row read would name."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from sidecar.comparator import slices as slicing
from sidecar.comparator.slices import SliceSize, slices
from sidecar.core.event import Event
from sidecar.core.ports import ExecutionLog
from sidecar.errors import SourceUnavailable
from sidecar.source.log import PostgresLog
from sidecar.source.sums import LogSums
from sidecar.store.sums import StoreSums
from tests.integration.source.test_sums import made, store_raw
from tests.integration.test_verify import against, backfill, verdicts
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.tailing import Ticks, opened

E = 7001


@pytest.fixture
def read_by_row(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The executions that were read row by row, in order."""
    read: list[int] = []
    real = PostgresLog.read_ids

    async def counted(self: PostgresLog, execution_ids: Any, **options: Any) -> list[ExecutionLog]:
        read.extend(execution_ids)
        return await real(self, execution_ids, **options)

    monkeypatch.setattr(PostgresLog, "read_ids", counted)
    return read


async def test_a_healthy_store_is_verified_without_reading_a_row(
    pg: Database, tmp_path: Path, read_by_row: list[int]
) -> None:
    await pg.insert([row for n in range(30) for row in chain_rows(E + n, [1, 2, 3])])
    await backfill(pg, tmp_path / "chain.db")
    read_by_row.clear()
    found = await against(pg, tmp_path / "chain.db")
    assert (found.executions, found.events, found.covered, found.covered_events) == (30, 90, 30, 90)
    assert (found.exit_code, read_by_row) == (0, [])


async def test_only_executions_that_differ_are_read(
    pg: Database, tmp_path: Path, read_by_row: list[int]
) -> None:
    await pg.insert([row for n in range(20) for row in chain_rows(E + n, [1, 2, 3])])
    await backfill(pg, tmp_path / "chain.db")
    await pg.execute("UPDATE noetl.event SET status = 'x' WHERE execution_id = $1 AND event_id = 2", E + 3)
    await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1", E + 5)
    await pg.insert(chain_rows(E + 50, [1]))
    read_by_row.clear()
    found = await against(pg, tmp_path / "chain.db")
    named = {j.execution_id: j.verdict.value for j in found.findings}
    assert named == {E + 3: "divergent", E + 5: "log_pruned", E + 50: "behind"}
    assert (found.executions, found.covered) == (21, 18)
    # The pruned one a second time: what the store has more is asked for once again.
    assert sorted(read_by_row) == [E + 3, E + 5, E + 5, E + 50]


REFUSED_LOGS: dict[str, list[tuple[int, int | None]]] = {
    "multiple_roots": [(1, None), (2, 1), (3, None)],
    "fork": [(1, None), (2, 1), (3, 1)],
    "dangling_prev": [(1, None), (3, 2)],
    "no_root": [(1, 2), (2, 1)],
    "unreachable": [(1, None), (2, 3), (3, 2)],
}


@pytest.mark.parametrize("label", REFUSED_LOGS)
async def test_a_log_that_is_refused_is_refused_also_where_the_store_holds_its_very_rows(
    pg: Database, tmp_path: Path, label: str
) -> None:
    """Equal sums are no agreement of links: such a store holds no whole chain, and the log is read."""
    path = tmp_path / "chain.db"
    await pg.insert([event_row(E, event_id, prev=prev) for event_id, prev in REFUSED_LOGS[label]])
    summer = await made(path)
    async with opened(pg.dsn) as source:
        log = source.reader(Ticks())
        (read,) = await log.read([E])
        store_raw(path, read.events or ())
        assert (await summer.of([E]))[E].sums == (await LogSums(log).of([E]))[E]
    found = await against(pg, path)
    assert verdicts(found) == {f"refused_{label}": 1}
    assert (found.eligible, found.covered, found.exit_code) == (1, 0, 3)


async def test_a_log_at_the_read_limit_is_truncated_also_where_the_store_has_as_many(
    pg: Database, tmp_path: Path, read_by_row: list[int]
) -> None:
    await pg.insert(chain_rows(E, range(1, 6)))
    await backfill(pg, tmp_path / "chain.db")
    read_by_row.clear()
    found = await against(pg, tmp_path / "chain.db", limit=5)
    assert verdicts(found) == {"log_truncated": 1}
    assert read_by_row == []


async def test_sums_that_take_too_long_are_read_row_by_row(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_by_row: list[int]
) -> None:
    await pg.insert([row for n in range(4) for row in chain_rows(E + n, [1, 2])])
    await backfill(pg, tmp_path / "chain.db")

    async def slow(self: LogSums, low: int, high: int, without: Any) -> Any:
        raise SourceUnavailable("a statement took longer than its deadline")

    monkeypatch.setattr(LogSums, "between", slow)
    read_by_row.clear()
    found = await against(pg, tmp_path / "chain.db")
    assert verdicts(found) == {"match": 4}
    assert read_by_row == [E, E + 1, E + 2, E + 3]


async def test_slices_leave_no_execution_out_and_no_slice_grows_with_one_side(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executions of one side only, of both, and long ones, over pages smaller than what is there."""
    monkeypatch.setattr(slicing, "PAGE_EXECUTIONS", 3)
    path = tmp_path / "chain.db"
    store = await made(path)
    lengths = {E + n: 1 + n % 4 for n in range(0, 20, 2)}
    await pg.insert([row for e, rows in lengths.items() for row in chain_rows(e, range(1, rows + 1))])
    for e in [*range(E, E + 9), *range(E + 30, E + 50)]:
        store_raw(path, [Event(e, 1, None, None, "", "{}")])
    async with opened(pg.dsn) as source:
        log = LogSums(source.reader(Ticks()))
        async with aclosing(slices(log, StoreSums(path), SliceSize(5))) as cuts:
            found = [cut async for cut in cuts]
    assert sorted(i for cut in found for i in cut.executions) == sorted(
        {*lengths, *range(E, E + 9), *range(E + 30, E + 50)}
    )
    assert [cut.low for cut in found[1:]] == [cut.high + 1 for cut in found[:-1]]
    assert (found[0].low, found[-1].high) == (-(2**63), 2**63 - 1)
    assert all(cut.rows <= 5 for cut in found)
    assert await store.counts(E, E, 1) == [(E, 1)]
