"""A probe compares now and moves its own counter alone.  Source: spec 3.3, I28."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.comparator.probe import Probed, probe
from sidecar.core.event import Event
from sidecar.core.ports import ExecutionLog
from sidecar.core.verdict import Verdict
from sidecar.errors import SourceUnavailable
from sidecar.source.opened import LogSource
from sidecar.source.options import SourceOptions
from sidecar.store import ChainStore
from sidecar.telemetry.metrics import Metrics
from tests.contract.events import chain
from tests.support.changing import replace
from tests.support.databases import Database
from tests.support.meddling import add_foreign_row, drop_row
from tests.support.rows import chain_rows
from tests.support.scripted import LONG, Scripted
from tests.support.service import service

E = 7300


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Scripted]:
    scripted = await Scripted.open(tmp_path)
    yield scripted
    await scripted.store.close()


async def probed(line: Scripted, reader: Any = None) -> Probed:
    asked: Counter[Verdict] = Counter()
    answer = await probe(E, line.store, reader or line, LONG, lambda verdict: asked.update([verdict]))
    assert asked == {answer.judgement.verdict: 1}
    return answer


def tables(store: Path) -> dict[str, list[Any]]:
    """Every table of the store, whole."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as conn:
        names = [name for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: conn.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in names}


async def matched(line: Scripted, *ids: int) -> tuple[Event, ...]:
    rows = chain(*ids, execution_id=E)
    await line.write(*rows)
    await line.judge(E)
    return rows


async def test_i28_ten_probes_of_a_divergent_execution_change_no_row_of_any_table(line: Scripted) -> None:
    rows = await matched(line, 1, 2, 3)
    line.commit(replace(rows[1], body="{}"))
    await line.judge(E)
    await line.write(*chain(1, 2, 3, 4, execution_id=E)[3:])  # something is due, too
    before = tables(line.path)
    assert [len(before[name]) for name in ("finding", "due", "partition")] == [1, 1, 1]
    answers = [await probed(line) for _ in range(10)]
    assert {answer.judgement.verdict for answer in answers} == {Verdict.DIVERGENT}
    assert tables(line.path) == before


class Detaching:
    """A log of which a partition is leaving: `shown` rows of each execution are still in sight."""

    def __init__(self, line: Scripted, shown: int) -> None:
        self._line = line
        self._shown = shown

    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        logs = await self._line.read(execution_ids)
        return [
            replace(log, events=(log.events or ())[: self._shown], read=replace(log.read, whole=False))
            for log in logs
        ]


@pytest.mark.parametrize("shown", [0, 2])
async def test_a_probe_while_a_partition_leaves_says_that_it_could_not_read(
    line: Scripted, shown: int
) -> None:
    """Not that the log is pruned, nor that somebody else has written the rows out of sight."""
    await matched(line, 1, 2, 3)
    answer = await probed(line, Detaching(line, shown))
    assert answer.judgement.verdict is Verdict.LOG_READ_FAILED


async def test_a_probe_of_what_nobody_saw_while_a_partition_leaves_is_not_empty(line: Scripted) -> None:
    assert (await probed(line, Detaching(line, 0))).judgement.verdict is Verdict.LOG_READ_FAILED
    assert (await probed(line)).judgement.verdict is Verdict.EMPTY


async def test_i28_before_its_first_verdict_a_divergent_execution_is_not_revoked_by_a_probe(
    line: Scripted,
) -> None:
    """The comparator has not looked yet: the probe sees it, and leaves finding it to others."""
    rows = await matched(line, 1, 2, 3)
    line.commit(replace(rows[1], body="{}"))
    before = tables(line.path)
    answer = await probed(line)
    assert (answer.judgement.verdict, answer.judgement.position) == (Verdict.DIVERGENT, 1)
    assert (answer.stored_verdict, answer.guarded.events is not None) == ("match", True)
    assert tables(line.path) == before


async def test_a_match_is_a_match(line: Scripted) -> None:
    await matched(line, 1, 2, 3)
    answer = await probed(line)
    assert answer.judgement.verdict is Verdict.MATCH
    document = answer.document()
    assert (document["probe"], document["execution_id"], document["servable"]) == (True, str(E), True)
    assert document["log"] == {"rows": 3, "event_id": None}


async def test_what_the_store_lacks_is_behind_and_stays_lacking(line: Scripted) -> None:
    line.commit(*chain(1, 2, execution_id=E))
    before = tables(line.path)
    assert (await probed(line)).judgement.verdict is Verdict.BEHIND
    await matched(line, 1, 2)
    line.commit(*chain(1, 2, 3, execution_id=E)[2:])
    answer = await probed(line)
    assert (answer.judgement.verdict, answer.judgement.log_rows, answer.judgement.stored_rows) == (
        "behind",
        3,
        2,
    )
    assert before["event"] == []
    assert await line.stored(E) == [1, 2]


async def test_never_seen_by_either_is_empty(line: Scripted) -> None:
    assert (await probed(line)).judgement.verdict is Verdict.EMPTY


async def test_i17_a_foreign_row_is_asked_for_once_more_and_nothing_is_revoked(line: Scripted) -> None:
    await matched(line, 1, 2)
    await add_foreign_row(line.path, E, 99, move_head=True)
    line.reads.clear()
    before = tables(line.path)
    answer = await probed(line)
    assert answer.judgement.verdict is Verdict.SECOND_WRITER
    assert line.reads == [(E,), (E,)]
    assert tables(line.path) == before


async def test_an_old_read_is_explained_by_the_second_one(line: Scripted) -> None:
    rows = chain(1, 2, 3, execution_id=E)
    await line.write(*rows[:2])

    async def grown() -> None:
        await line.write(rows[2])

    line.after_read = grown
    assert (await probed(line)).judgement.verdict is Verdict.MATCH


async def test_a_missing_predecessor_is_pending_until_the_comparator_gave_it_up(line: Scripted) -> None:
    first, _, third = chain(1, 2, 3, execution_id=E)
    await line.write(first, third)
    assert (await probed(line)).judgement.verdict is Verdict.PENDING_VISIBILITY
    await line.restart(windows=replace(LONG, dangling=0))
    await line.judge(E)
    assert (await line.partition(E)).verdict == "refused_dangling_prev"
    before = tables(line.path)
    assert (await probed(line)).judgement.verdict is Verdict.REFUSED_DANGLING_PREV
    assert tables(line.path) == before


async def test_a_hole_in_the_store_is_a_gap(line: Scripted) -> None:
    await matched(line, 1, 2, 3)
    await drop_row(line.path, E, 2)
    assert (await probed(line)).judgement.verdict is Verdict.REFUSED_STORE_GAP


class Failing:
    """A log that cannot be read, from the n-th time on."""

    def __init__(self, line: Scripted, good: int) -> None:
        self._line = line
        self._good = good

    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        self._good -= 1
        if self._good < 0:
            raise SourceUnavailable("the connection broke")
        return await self._line.read(execution_ids)


@pytest.mark.parametrize("good", [0, 1])
async def test_i18_a_read_that_fails_is_a_verdict_and_says_nothing_of_the_log(
    line: Scripted, good: int
) -> None:
    await matched(line, 1, 2)
    await add_foreign_row(line.path, E, 99, move_head=True)
    answer = await probed(line, Failing(line, good))
    assert answer.judgement.verdict is Verdict.LOG_READ_FAILED
    assert (answer.judgement.detail, answer.read_began_at) == ("the connection broke", None)


async def test_a_log_as_long_as_the_limit_is_truncated(line: Scripted) -> None:
    await matched(line, 1, 2, 3)
    line.limits = replace(line.limits, read=3)
    assert (await probed(line)).judgement.verdict is Verdict.LOG_TRUNCATED


async def test_i28_a_probe_of_a_real_log_moves_the_probe_counter_alone(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    await pg.insert(chain_rows(E, range(1, 4)))
    async with service(pg.dsn, path) as sidecar:
        await sidecar.verdict(E, "match")
    await pg.execute("UPDATE noetl.event SET error = 'other' WHERE event_id = 2")
    metrics = Metrics()

    def series() -> dict[tuple[str, str], float]:
        return {
            (sample.name, str(sample.labels)): sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
        }

    source = await LogSource.open(SourceOptions(dsn=pg.dsn))
    try:
        async with ChainStore.open(str(path)) as store:
            before, counted = tables(path), series()
            for _ in range(10):
                answer = await probe(E, store, source.reader(store.clock), LONG, metrics.probed)
                assert answer.judgement.verdict is Verdict.DIVERGENT
            assert tables(path) == before
    finally:
        await source.close()
    moved = {key: value for key, value in series().items() if value != counted[key]}
    assert moved == {("noetl_chain_shadow_probe_total", "{'verdict': 'divergent'}"): 10}
