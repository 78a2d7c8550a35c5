"""Incidents of the reference, each with real rows through the whole line.  Source: spec 8.5."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from sidecar.comparator.loop import Comparator
from sidecar.comparator.report import TickReport
from sidecar.core.due import Windows
from sidecar.core.ports import BoundedReader, ExecutionLog, LogReader
from sidecar.core.settle import Limits
from sidecar.core.verdict import Judgement, Verdict
from sidecar.errors import SourceUnavailable
from sidecar.feed import Feed
from sidecar.source.log import PostgresLog
from sidecar.source.opened import LogSource
from sidecar.source.options import SourceOptions
from sidecar.store import ChainStore
from tests.support.databases import Database
from tests.support.fixture_log import (
    DELAYED,
    GROWING,
    GROWTH,
    LATE_ROW,
    NEVER_ARRIVES,
    OUR_SHAPES,
    SHAPES,
    load_fixture,
)
from tests.support.meddling import add_foreign_row, writing
from tests.support.rows import chain_rows, event_row, insert_rows
from tests.support.service import Service, service

E = 7700


async def _verdicts(sidecar: Service) -> dict[int, str | None]:
    return dict(await sidecar.store.query("SELECT execution_id, verdict FROM partition"))


async def test_i07_i08_i11_i14_i15_every_shape_of_the_fixture_ends_as_it_must(
    pg: Database, tmp_path: Path
) -> None:
    """Two dangling ones wait first; one heals when the row at position 72 of 73 comes."""
    conn = await pg.connect()
    await load_fixture(conn)
    shapes = SHAPES | OUR_SHAPES
    waiting = {execution for execution, (label, _) in shapes.items() if label == "dangling_prev"}
    expected = {
        execution: "match" if label == "ordered" else f"refused_{label}"
        for execution, (label, _) in shapes.items()
    } | dict.fromkeys(waiting, "pending_visibility")
    settings = {"late_window_s": 31_536_000, "live_window_s": 86_400, "dangling_s": 600}
    async with service(pg.dsn, tmp_path / "chain.db", **settings) as sidecar:

        async def judged() -> bool:
            return await _verdicts(sidecar) == expected

        await sidecar.until(judged)
        assert await sidecar.store.chain(DELAYED) == ()
        assert (await sidecar.read(DELAYED)).reason == "not_populated"
        assert sidecar.divergences() == {}
        for execution in (2001, 3002, 3003):
            assert (await sidecar.read(execution)).events is None

        await pg.insert([LATE_ROW])
        await sidecar.stored(DELAYED, 73)
        await sidecar.verdict(DELAYED, "match")
        await pg.insert(GROWTH)
        await sidecar.stored(GROWING, 8)
        await sidecar.verdict(GROWING, "match")
        assert sidecar.divergences() == {}
        assert sidecar.value("shadow_verdict_total", verdict="refused_dangling_prev") == 0
        assert len((await sidecar.read(DELAYED)).events or ()) == 73
        assert (await sidecar.partition(NEVER_ARRIVES)).verdict == "pending_visibility"


async def test_i09_two_of_289_dangle_once_and_the_run_ends_green(pg: Database, tmp_path: Path) -> None:
    executions, late = range(E, E + 289), [E + 17, E + 201]
    async with service(pg.dsn, tmp_path / "chain.db", dangling_s=600) as sidecar:
        a = await pg.connect()
        transaction = a.transaction()
        await transaction.start()
        await insert_rows(a, [event_row(execution, 2, prev=1) for execution in late])
        await pg.insert(
            row
            for execution in executions
            for row in chain_rows(execution, [1, 2, 3])
            if not (execution in late and row["event_id"] == 2)
        )
        for execution in late:
            await sidecar.verdict(execution, "pending_visibility")
        assert sidecar.value("populate_total", outcome="dangling_prev") >= 2
        await transaction.commit()
        for execution in late:
            await sidecar.verdict(execution, "match")
        await sidecar.idle()
        await sidecar.ticks(1)
        assert set((await _verdicts(sidecar)).values()) == {"match"}
        assert sidecar.divergences() == {}
        assert not {verdict for verdict in sidecar.verdicts() if verdict.startswith("refused_")}
        covered = sidecar.value("shadow_covered_executions", window="start")
        eligible = sidecar.value("shadow_eligible_executions", window="start")
        assert covered == eligible == 289
        assert sidecar.value("shadow_covered_events", window="start") == 867
        assert sidecar.value("shadow_eligible_events", window="start") == 867


async def test_i10_a_predecessor_that_never_comes_is_refused_after_the_window(
    pg: Database, tmp_path: Path
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db", dangling_s=0.6) as sidecar:
        await pg.insert([*chain_rows(E, [1, 2]), event_row(E, 4, prev=3)])
        await sidecar.verdict(E, "refused_dangling_prev")
        await sidecar.idle()
        assert sidecar.value("shadow_verdict_total", verdict="pending_visibility") >= 1
        assert sidecar.divergences() == {}
        assert sidecar.value("shadow_covered_executions", window="start") == 0
        # It comes after all: the refusal is taken back.
        await pg.insert([event_row(E, 3, prev=2)])
        await sidecar.verdict(E, "match")
        await sidecar.idle()
        assert len((await sidecar.read(E)).events or ()) == 4


class Instrumented:
    """A log reader that counts its reads and lets a test act before or after each."""

    def __init__(
        self,
        real: LogReader,
        before: Callable[[int], Awaitable[None]] | None = None,
        after: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self.reads = 0
        self._real = real
        self._before = before
        self._after = after

    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        self.reads += 1
        number = self.reads
        if self._before is not None:
            await self._before(number)
        logs = await self._real.read(execution_ids)
        if self._after is not None:
            await self._after(number)
        return logs


class Parts:
    """Store, feed and comparators, without lanes: the test says when what is read."""

    def __init__(self, store: ChainStore, source: LogSource) -> None:
        self.store = store
        self.source = source
        self.windows = Windows(settle=0)
        self.feed = Feed(
            store,
            self.reader(),
            windows=self.windows,
            limits=Limits(source.options.read_limit),
            comparing=True,
        )

    def reader(self) -> BoundedReader:
        return self.source.reader(self.store.clock)

    def comparator(self, reader: LogReader | None = None) -> Comparator:
        return Comparator(self.store, reader or self.reader(), self.feed.settling, self.windows)

    async def judge(self, reader: LogReader | None = None) -> TickReport:
        report = TickReport()
        await self.comparator(reader).judge([E], report)
        return report


@asynccontextmanager
async def parts(pg: Database, store: Path, *, read_limit: int = 10_000) -> AsyncIterator[Parts]:
    source = await LogSource.open(SourceOptions(pg.dsn, read_limit=read_limit))
    try:
        async with ChainStore.open(str(store)) as opened:
            yield Parts(opened, source)
    finally:
        await source.close()


def _only(report: TickReport) -> Judgement:
    (judged,) = report.judged
    return judged.judgement


async def test_i16_eight_tasks_over_one_growing_execution_never_call_an_old_read_a_divergence(
    pg: Database, tmp_path: Path
) -> None:
    chance, rows, report = random.Random(16), 120, TickReport()
    async with parts(pg, tmp_path / "chain.db") as line:
        written = asyncio.Event()

        async def write() -> None:
            conn = await pg.connect()
            for row in chain_rows(E, range(1, rows + 1)):
                await insert_rows(conn, [row])
            written.set()

        async def delay(number: int) -> None:
            await asyncio.sleep(chance.random() * 0.03)

        async def compare() -> None:
            comparator = line.comparator(Instrumented(line.reader(), after=delay))
            while not written.is_set():
                await comparator.judge([E], report)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            for _ in range(8):
                tasks.create_task(compare())
        assert report.outcomes["stale_log"] > 0, "no read was older than the store: there was no race"
        assert not {kind for judged in report.judged for kind in judged.new_kinds}
        seen = {judged.judgement.verdict for judged in report.judged}
        # Eight feeders of one execution may overtake one of them three times in a row.
        assert seen <= {
            Verdict.MATCH,
            Verdict.EMPTY,
            Verdict.PENDING_STALE,
            Verdict.STALE_LOG_UNRESOLVED,
        }
        last = await line.judge()
        assert _only(last).verdict is Verdict.MATCH
        assert [event.event_id for event in await line.store.chain(E)] == list(range(1, rows + 1))


async def _two_foreign_rows(pg: Database, line: Parts, store: Path) -> None:
    await pg.insert(chain_rows(E, [1, 2, 3]))
    assert _only(await line.judge()).verdict is Verdict.MATCH
    await add_foreign_row(store, E, 901, move_head=True)
    await add_foreign_row(store, E, 902, move_head=True)


async def test_i17_rows_the_log_never_had_are_asked_for_exactly_once_more(
    pg: Database, tmp_path: Path
) -> None:
    store = tmp_path / "chain.db"
    async with parts(pg, store) as line:
        await _two_foreign_rows(pg, line, store)
        assert len((await line.store.chain_if_authoritative(E)).events or ()) == 5, "served until then"
        reader = Instrumented(line.reader())
        report = await line.judge(reader)
        assert reader.reads == 2
        assert (_only(report).verdict, report.judged[0].new_kinds) == (
            Verdict.SECOND_WRITER,
            ("second_writer",),
        )
        assert report.outcomes == {"stale_log": 1}
        partition = await line.store.partition(E)
        assert partition is not None
        assert partition.revoked_reason == "second_writer"
        assert (await line.store.chain_if_authoritative(E)).reason == "no_coverage"
        again = await line.judge()
        assert _only(again).verdict is Verdict.SECOND_WRITER
        assert again.judged[0].new_kinds == ()


async def test_i18_a_re_read_that_fails_says_nothing_about_the_log(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"

    async def fail(number: int) -> None:
        if number == 2:
            raise SourceUnavailable("Postgres did not answer in time")

    async with parts(pg, store) as line:
        await _two_foreign_rows(pg, line, store)
        report = await line.judge(Instrumented(line.reader(), before=fail))
        assert _only(report).verdict is Verdict.LOG_READ_FAILED
        assert report.judged[0].new_kinds == ()
        assert report.outcomes == {"stale_log": 1, "log_read_failed": 1}
        partition = await line.store.partition(E)
        assert partition is not None
        assert partition.revoked_at is None
        assert partition.counted_kinds == frozenset()


async def test_i19_a_re_read_of_exactly_the_limit_is_truncated_and_no_second_writer(
    pg: Database, tmp_path: Path
) -> None:
    store = tmp_path / "chain.db"

    async def grow(number: int) -> None:
        if number == 2:
            await pg.insert([event_row(E, 4, prev=3)])

    async with parts(pg, store, read_limit=4) as line:
        await _two_foreign_rows(pg, line, store)
        report = await line.judge(Instrumented(line.reader(), before=grow))
        assert _only(report).verdict is Verdict.LOG_TRUNCATED
        assert report.judged[0].new_kinds == ()
        assert report.outcomes == {"stale_log": 1, "log_truncated": 1}
        partition = await line.store.partition(E)
        assert partition is not None
        assert partition.revoked_at is None


async def test_i16_an_old_read_whose_rows_all_stand_in_the_fresh_one_matches(
    pg: Database, tmp_path: Path
) -> None:
    """The other way out of 3.4: the first read was old."""
    async with parts(pg, tmp_path / "chain.db") as line:
        await pg.insert(chain_rows(E, [1, 2]))

        async def overtaken(number: int) -> None:
            if number == 1:
                await pg.insert([event_row(E, 3, prev=2)])
                assert _only(await line.judge()).verdict is Verdict.MATCH

        reader = Instrumented(line.reader(), after=overtaken)
        report = await line.judge(reader)
        assert reader.reads == 2
        assert _only(report).verdict is Verdict.MATCH
        assert report.outcomes == {"stale_log": 1, "in_sync": 1}


async def test_i20_a_feed_that_extends_between_the_read_and_the_hold_makes_no_length_disagree(
    pg: Database, tmp_path: Path
) -> None:
    """Lanes and comparator at full speed over growing executions: one hold, so never `count`."""
    async with service(pg.dsn, tmp_path / "chain.db", poll_ms=10, tick_s=0.05, settle_s=0) as sidecar:
        await sidecar.idle()
        conn = await pg.connect()
        step = 0

        def seen_growing() -> bool:
            judged = sidecar.value("shadow_verdict_total", verdict="match")
            return sidecar.value("feed_total", way="extend") > 10 and judged > 6

        while step < 200 or not seen_growing():
            step += 1
            rows = [event_row(E + n, step, prev=step - 1 or None) for n in range(6)]
            await insert_rows(conn, rows)
        for n in range(6):
            await sidecar.stored(E + n, step)
        await sidecar.idle()
        assert sidecar.divergences() == {}
        assert "length_disagreement" not in sidecar.moved("populate_total")
        assert set((await _verdicts(sidecar)).values()) == {"match"}


async def test_i31_a_first_read_that_fails_stores_nothing_and_is_never_empty(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane pauses and hands the row over again; nothing says `in_sync` of zero rows.

    The second time it is stored without its log, and the comparator reads that.
    """
    real, failures = PostgresLog.read_some, 2
    seen: list[tuple[float | None, object]] = []

    async def read(log: PostgresLog, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        nonlocal failures
        if failures:
            seen.append((sidecar.moved("populate_total").get("in_sync"), (await sidecar.read(E)).events))
        if failures:
            failures -= 1
            raise SourceUnavailable("Postgres did not answer in time")
        return await real(log, execution_ids)

    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await sidecar.idle()
        monkeypatch.setattr(PostgresLog, "read_some", read)
        with structlog.testing.capture_logs() as logs:
            await pg.insert(chain_rows(E, [1, 2]))
            await sidecar.verdict(E, "match")
        assert failures == 0
        assert "loop_paused" in {line["event"] for line in logs}
        assert seen == [(None, None)] * 2, "after the first failure, too, nothing is known and nothing served"
        assert {"empty", "log_pruned"}.isdisjoint(sidecar.verdicts())


async def test_i31_a_comparator_read_that_fails_is_a_verdict_of_its_own_and_is_tried_again(
    pg: Database, tmp_path: Path
) -> None:
    async def fail(number: int) -> None:
        raise SourceUnavailable("Postgres did not answer in time")

    async with parts(pg, tmp_path / "chain.db") as line:
        await pg.insert(chain_rows(E, [1, 2]))
        report = await line.judge(Instrumented(line.reader(), before=fail))
        assert _only(report).verdict is Verdict.LOG_READ_FAILED
        assert await line.store.chain(E) == ()
        assert (await line.store.chain_if_authoritative(E)).reason == "not_populated"
        assert _only(await line.judge()).verdict is Verdict.MATCH


async def test_i32_null_links_of_a_real_row_are_none(pg: Database, tmp_path: Path) -> None:
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await pg.insert([event_row(E, 1), event_row(E + 1, 1, parent=E)])
        await sidecar.verdict(E, "match")
        await sidecar.verdict(E + 1, "match")
        (root,), (child,) = await sidecar.store.chain(E), await sidecar.store.chain(E + 1)
        assert (root.prev_event_id, root.parent_execution_id) == (None, None)
        assert (child.prev_event_id, child.parent_execution_id) == (None, E)


async def test_i21_i22_a_foreign_row_at_a_place_of_the_log_revokes_and_keeps_the_evidence(
    pg: Database, tmp_path: Path
) -> None:
    store = tmp_path / "chain.db"

    def rewrite() -> None:
        with writing(store) as conn:
            conn.execute("UPDATE event SET body = '{}' WHERE execution_id = ? AND exec_seq = 2", (E,))

    async with parts(pg, store) as line:
        await pg.insert(chain_rows(E, [1, 2, 3]))
        assert _only(await line.judge()).verdict is Verdict.MATCH
        before = await line.store.partition(E)
        await asyncio.to_thread(rewrite)
        report = await line.judge()
        judgement = _only(report)
        assert (judgement.verdict, judgement.kinds, judgement.position) == (
            Verdict.DIVERGENT,
            ("payload",),
            1,
        )
        after = await line.store.partition(E)
        assert before is not None
        assert after is not None
        assert (after.watermark, after.coverage) == (before.watermark, None)
        assert (await line.store.stored_chain(E))[1].event.body == "{}"
        assert (await line.store.chain_if_authoritative(E)).reason == "no_coverage"
