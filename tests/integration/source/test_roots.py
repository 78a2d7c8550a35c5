"""The sampler of the root invariant on real Postgres.  Spec 3.8, 8.5 I12, I34, 9."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from sidecar.core.roots import WORST_MAX, Roots
from sidecar.errors import SourceContractError, SourceUnavailable
from sidecar.service.sampler import Sampled, Sampler
from sidecar.service.told import Instruments
from sidecar.source.connection import Session
from sidecar.source.opened import LogSource
from sidecar.source.options import Shard, SourceOptions
from sidecar.source.roots import RootsReader, roots_sql
from sidecar.telemetry.health import Health
from sidecar.telemetry.metrics import Metrics
from tests.support.databases import Database
from tests.support.deadlines import server_first
from tests.support.fixture_log import SPEC_ROWS
from tests.support.rows import chain_rows, event_row, insert_rows
from tests.support.service import value

HOUR = 1.0
E = 4400


def hours_ago(hours: float) -> datetime:
    return datetime.utcnow() - timedelta(hours=hours)  # noqa: DTZ003 (the column is naive UTC)


@asynccontextmanager
async def reader(pg: Database, *, shard: Shard | None = None) -> AsyncIterator[RootsReader]:
    source = await LogSource.open(SourceOptions(pg.dsn, shard=shard or Shard()))
    try:
        yield source.roots(HOUR)
    finally:
        await source.close()


async def sampled(pg: Database, **options: Any) -> Roots:
    async with reader(pg, **options) as log:
        return await log.read()


def now_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"created_at": hours_ago(0.1)} for row in rows]


async def test_the_fixture_is_six_one_root_and_one_multi_root(pg: Database) -> None:
    await pg.insert(now_rows(list(SPEC_ROWS)))
    found = await sampled(pg)
    assert (found.one_root, found.multi_root, found.no_root) == (6, 1, 0)
    assert found.worst == ((2001, 3),)
    assert (found.executions, found.healthy) == (7, 6 / 7)


async def test_i12_a_duplicate_terminal_after_eviction_is_counted_in_multi_root(pg: Database) -> None:
    rows = chain_rows(E, [1, 2, 3])
    rows.append(event_row(E, 4, prev=None, event_type="execution.completed"))
    await pg.insert([*rows, *chain_rows(E + 1, [11, 12])])
    found = await sampled(pg)
    assert found.counts == {"one_root": 1, "multi_root": 1, "no_root": 0}
    assert found.worst == ((E, 2),)


async def test_an_execution_without_a_root_is_no_root(pg: Database) -> None:
    await pg.insert([event_row(E, 2, prev=1)])
    found = await sampled(pg)
    assert found.counts == {"one_root": 0, "multi_root": 0, "no_root": 1}
    assert found.worst == ((E, 0),)


async def test_an_empty_window_is_healthy_nought_not_one(pg: Database) -> None:
    await pg.insert(chain_rows(E, [1, 2], created_at=hours_ago(3)))
    found = await sampled(pg)
    assert (found, found.executions, found.healthy) == (Roots(), 0, 0.0)


async def test_a_root_older_than_the_window_still_counts(pg: Database) -> None:
    root, *rest = chain_rows(E, [1, 2, 3])
    await pg.insert([root | {"created_at": hours_ago(3)}, *now_rows(rest)])
    assert (await sampled(pg)).counts == {"one_root": 1, "multi_root": 0, "no_root": 0}


async def test_the_worst_come_first_and_are_bounded(pg: Database) -> None:
    rows = [event_row(E + i, n, prev=None) for i in range(WORST_MAX + 5) for n in range(i + 1)]
    await pg.insert(rows)
    found = await sampled(pg)
    assert len(found.worst) == WORST_MAX
    assert found.worst[0] == (E + WORST_MAX + 4, WORST_MAX + 5)
    assert [roots for _, roots in found.worst] == sorted((r for _, r in found.worst), reverse=True)


async def test_shards_divide_the_sample(pg: Database) -> None:
    for i in range(20):
        await pg.insert(chain_rows(E + i, [i * 10 + 1, i * 10 + 2]))
    parts = [await sampled(pg, shard=Shard(index, 3)) for index in range(3)]
    assert sum(part.executions for part in parts) == 20
    assert all(part.executions for part in parts)


async def test_an_install_without_links_has_only_roots(pg_older: Database) -> None:
    conn = await pg_older.connect()
    await conn.execute("ALTER TABLE noetl.event DROP COLUMN IF EXISTS prev_event_id")
    rows = [{k: v for k, v in row.items() if k != "prev_event_id"} for row in chain_rows(E, [1, 2])]
    await insert_rows(conn, rows)
    assert (await sampled(pg_older)).counts == {"one_root": 0, "multi_root": 1, "no_root": 0}


async def test_the_window_is_searched_by_its_index_and_the_roots_by_key(pg: Database) -> None:
    conn = await pg.connect()
    await conn.execute(
        "INSERT INTO noetl.event (execution_id, event_id, catalog_id, event_type, created_at, prev_event_id)"
        " SELECT 5000 + n / 10, n, 0, 'step.exit', (now() at time zone 'UTC') - n * interval '1 minute',"
        " nullif(n - 1, -1) FROM generate_series(0, 20000) n"
    )
    await conn.execute("ANALYZE noetl.event")
    async with reader(pg) as log:
        sql = roots_sql(log.table, Shard())
    plan = [row[0] for row in await conn.fetch(f"EXPLAIN (COSTS OFF) {sql}", HOUR)]
    held = await conn.fetchval("SELECT tableoid::regclass::text FROM noetl.event LIMIT 1")
    named = [line.strip() for line in plan if held.partition(".")[2] in line]
    assert len(named) >= 2
    assert not [line for line in named if "Seq Scan" in line]  # partitions without rows may be
    assert any("Index Cond: (created_at >=" in line for line in plan)


async def test_a_sample_that_takes_too_long_ends_on_the_server(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_first(monkeypatch)
    await pg.insert(chain_rows(E, [1, 2]))
    session = Session(pg.dsn, query_timeout_s=5)
    async with reader(pg) as log:
        late = RootsReader(session, log.table, Shard(), window_h=HOUR, timeout_s=3)
        late._timeout_s = 3
        late._sql = "select pg_sleep(30), $1::float8"
        with pytest.raises(SourceUnavailable, match="57014"):
            await late.read()
    await session.close()


class Scripted:
    """A reader that answers or fails in turn, and then waits for ever."""

    window_h = HOUR

    def __init__(self, *answers: Roots | Exception) -> None:
        self._answers = list(answers)
        self.done = asyncio.Event()

    async def read(self) -> Roots:
        if not self._answers:
            self.done.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def ran(*answers: Roots | Exception) -> tuple[Sampler, Metrics]:
    """A sampler after these answers."""
    log = Scripted(*answers)
    metrics = Metrics()
    sampler = Sampler(log, Instruments(metrics, Health(), structlog.get_logger()), every_s=0, retry_s=0)
    task = asyncio.create_task(sampler.run())
    await asyncio.wait_for(log.done.wait(), 5)
    task.cancel()
    await asyncio.wait({task})
    return sampler, metrics


async def test_i34_a_sampler_that_never_ran_says_so() -> None:
    sampler, metrics = await ran(SourceUnavailable("Postgres cannot be reached"))
    assert sampler.latest == Sampled(HOUR)
    assert sampler.latest.roots.healthy == 0.0  # not read as healthy
    assert value(metrics.registry, "invariant_sampled_at_seconds") == 0


async def test_a_failed_sample_leaves_the_former_values_and_their_time() -> None:
    good = Roots(5, 2, 1, ((E, 3), (E + 1, 2), (E + 2, 0)))
    with capture_logs() as told:
        sampler, metrics = await ran(
            good,
            SourceUnavailable("Postgres cannot be reached"),
            SourceUnavailable("Postgres cannot be reached"),
            SourceContractError("a right is missing"),
        )
    assert sampler.latest.roots == good
    at = value(metrics.registry, "invariant_sampled_at_seconds")
    assert at == sampler.latest.at > 1_600_000_000
    counts = [value(metrics.registry, "root_invariant", outcome=name) for name in good.counts]
    assert counts == [5, 2, 1]
    assert [line["reason"] for line in told] == ["Postgres cannot be reached", "a right is missing"]


async def test_a_new_sample_takes_the_place_of_the_old_one() -> None:
    _, metrics = await ran(Roots(5, 2, 1), Roots(7, 0, 0))
    assert value(metrics.registry, "root_invariant", outcome="multi_root") == 0
    assert value(metrics.registry, "root_invariant", outcome="one_root") == 7
