"""Executions that are seen for the first time, whose whole logs are too large for one read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sidecar.core.due import Windows
from sidecar.core.horizon import Cursor, TailRow
from sidecar.core.ports import Batch, ExecutionLog
from sidecar.core.settle import Limits
from sidecar.errors import SourceUnavailable
from sidecar.feed import Feed
from sidecar.feed.report import FeedReport
from sidecar.source import log
from sidecar.source.log import PostgresLog
from sidecar.source.opened import LogSource
from sidecar.source.options import SourceOptions
from sidecar.store import ChainStore
from tests.support.databases import Database
from tests.support.rows import chain_rows

EXECUTIONS = range(1, 7)


class Counting:
    """A reader that notes how many executions each bounded read answered; from one on they may fail."""

    def __init__(self, real: PostgresLog, fails_at: int | None = None) -> None:
        self.answered: list[int] = []
        self.fails_at = fails_at
        self._real = real

    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        return await self._real.read(execution_ids)

    async def read_some(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        if len(self.answered) == self.fails_at:
            raise SourceUnavailable("gone")
        logs = await self._real.read_some(execution_ids)
        self.answered.append(len(logs))
        return logs


@asynccontextmanager
async def _feed(
    pg: Database, store: ChainStore, *, fails_at: int | None = None
) -> AsyncIterator[tuple[Feed, Counting, Batch]]:
    """A feed, its reader, and a batch with the last row of every execution."""
    source = await LogSource.open(SourceOptions(pg.dsn))
    try:
        reader = source.reader(store.clock)
        logs = await reader.read(list(EXECUTIONS))
        epoch = logs[0].read.epoch or ""
        last = [log.events[-1] for log in logs if log.events]
        rows = tuple(TailRow(event, 10, None, epoch, None, store.clock.now()) for event in last)
        cursor = Cursor("live", 7, epoch, "scope", "tree", 1)
        batch = Batch("live", epoch, None, 1, rows=rows, cursor=cursor)
        counting = Counting(reader, fails_at)
        yield Feed(store, counting, windows=Windows(), limits=Limits(), comparing=True), counting, batch
    finally:
        await source.close()


@pytest.fixture(autouse=True)
async def _small_reads(pg: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "READ_BYTES", 5000)
    for execution_id in EXECUTIONS:
        first = execution_id * 100
        await pg.insert(chain_rows(execution_id, range(first, first + 4), error="x" * 500))


async def test_first_sights_that_are_too_large_together_are_read_piece_by_piece(
    pg: Database, tmp_path: Path
) -> None:
    async with (
        ChainStore.open(str(tmp_path / "chain.db")) as store,
        _feed(pg, store) as (feed, reader, batch),
    ):
        report = await feed.take(batch)
        assert sum(reader.answered) == len(EXECUTIONS)
        assert len(reader.answered) > 1
        assert report.rows == 4 * len(EXECUTIONS)
        for execution_id in EXECUTIONS:
            assert len((await store.chain_if_authoritative(execution_id)).events or ()) == 4
        assert set(await store.cursors()) == {"live"}


async def test_a_piece_that_cannot_be_read_leaves_the_cursor_where_it_was(
    pg: Database, tmp_path: Path
) -> None:
    async with (
        ChainStore.open(str(tmp_path / "chain.db")) as store,
        _feed(pg, store, fails_at=1) as (feed, reader, batch),
    ):
        told: list[FeedReport] = []
        with pytest.raises(SourceUnavailable):
            await feed.take(batch, told.append)
        stored = [i for i in EXECUTIONS if await store.chain(i)]
        assert len(stored) == reader.answered[0]
        assert await store.cursors() == {}
        assert [report.rows for report in told] == [4 * len(stored)], "what stands is counted"
        reader.fails_at = None
        assert (await feed.take(batch, told.append)).rows == sum(report.rows for report in told[1:])
        assert sum(report.rows for report in told) == 4 * len(EXECUTIONS), "and counted once"
        assert [len(await store.chain(i)) for i in EXECUTIONS] == [4] * len(EXECUTIONS)
        assert set(await store.cursors()) == {"live"}


async def test_one_execution_alone_is_read_however_large_it_is(pg: Database, tmp_path: Path) -> None:
    await pg.insert(chain_rows(9, range(900, 930), error="x" * 500))
    async with ChainStore.open(str(tmp_path / "chain.db")) as store, _feed(pg, store) as (_, reader, _batch):
        (only,) = await reader.read_some([9])
        assert len(only.events or ()) == 30
