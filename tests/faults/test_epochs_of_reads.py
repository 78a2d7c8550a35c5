"""Reads beside a restart of the server: to which epoch belongs what they saw?

A row is a lost log only if the epoch it was seen in has ended.  A row seen after the restart
and removed by somebody is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.comparator.loop import Comparator
from sidecar.comparator.report import TickReport
from sidecar.core.due import Windows
from sidecar.core.ports import ExecutionLog, LogReader
from sidecar.core.settle import Limits
from sidecar.core.verdict import Verdict
from sidecar.feed import Feed
from sidecar.store import ChainStore
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.proxy import proxy
from tests.support.rows import chain_rows
from tests.support.tailing import Ticks, opened

OLD, NEW = 8400, 8401


def _comparator(store: ChainStore, reader: LogReader, feed: Feed) -> Comparator:
    return Comparator(store, reader, feed.settling, Windows(settle=0))


async def _verdict(comparator: Comparator, execution: int) -> Verdict:
    report = TickReport()
    await comparator.judge([execution], report)
    return report.judged[-1].judgement.verdict


async def test_a_read_begins_when_it_is_connected_and_not_while_it_waits(pg: Database) -> None:
    await pg.insert(chain_rows(OLD, [1, 2]))
    clock = Ticks()
    async with proxy(pg.dsn) as way, opened(way.dsn) as source:
        log = source.reader(clock)
        way.open.clear()
        reading = asyncio.create_task(log.read([OLD]))
        await way.accepts(1)
        waited = clock.now()
        way.open.set()
        (found,) = await reading
        assert found.read.began_at > waited


@pytest.mark.timeout(120)
async def test_a_row_that_a_read_saw_after_a_restart_and_somebody_removed_is_no_lost_log(
    pg_server: StartServer, tmp_path: Path
) -> None:
    server = await pg_server()
    pg = Database(server.dsn(), "postgres")
    await pg.insert(chain_rows(OLD, [1, 2]))
    async with (
        proxy(pg.dsn) as way,
        opened(way.dsn, query_timeout_s=60) as slow,
        opened(pg.dsn) as source,
        ChainStore.open(str(tmp_path / "chain.db")) as store,
    ):
        feed = Feed(
            store, source.reader(store.clock), windows=Windows(settle=0), limits=Limits(), comparing=True
        )
        comparator = _comparator(store, source.reader(store.clock), feed)
        assert await _verdict(comparator, OLD) is Verdict.MATCH
        way.open.clear()
        reading = asyncio.create_task(slow.reader(store.clock).read([NEW]))
        await way.accepts(1)
        server.restart()
        await pg.insert(chain_rows(NEW, [1, 2, 3]))
        again = _comparator(store, source.reader(store.clock), feed)
        while await _verdict(again, OLD) is Verdict.LOG_READ_FAILED:
            pass  # its connection has broken; it is opened again
        assert len(await store.epochs()) == 2
        way.open.set()
        await again.judge_logs(await reading, TickReport())
        assert len(await store.chain(NEW)) == 3
        await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1 AND event_id = 3", NEW)
        assert await _verdict(again, NEW) is Verdict.SECOND_WRITER
    await pg.close()


class TwoEpochs:
    """Answers of a read that was taken apart while the server restarted: one before, one after."""

    def __init__(self, logs: Sequence[ExecutionLog]) -> None:
        self._logs = {log.execution_id: log for log in logs}

    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        return [self._logs[i] for i in execution_ids]


async def test_one_hold_over_reads_of_two_epochs_sees_both(pg: Database, tmp_path: Path) -> None:
    await pg.insert([*chain_rows(OLD, [1, 2]), *chain_rows(NEW, [1, 2])])
    async with opened(pg.dsn) as source, ChainStore.open(str(tmp_path / "chain.db")) as store:
        reader = source.reader(store.clock)
        old, _ = await reader.read([OLD, NEW])
        _, new = await reader.read([OLD, NEW])
        assert old.read.epoch is not None
        later = replace(new, read=replace(new.read, epoch=old.read.epoch + "1"))
        feed = Feed(store, reader, windows=Windows(settle=0), limits=Limits(), comparing=True)
        report = TickReport()
        await _comparator(store, TwoEpochs([old, later]), feed).judge([OLD, NEW], report)
        assert [judged.judgement.verdict for judged in report.judged] == [Verdict.MATCH, Verdict.MATCH]
        first, second = await store.epochs()
        assert (first.first_seen_at, second.first_seen_at) == (old.read.began_at, later.read.began_at)
        assert first.last_seen_at < second.first_seen_at, "the ended epoch was seen again after its end"
