"""The rules of the feed, one test each: what is dropped, held, labelled, extended, read, due.

Source: spec 2.12.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.due import Windows
from sidecar.core.ports import ExecutionLog, Unit
from sidecar.core.settle import Limits
from sidecar.core.verdict import Verdict
from sidecar.errors import SourceUnavailable, StoreFull
from sidecar.store.overview import coverage
from tests.support.meddling import add_foreign_row
from tests.support.scripted import LONG, Scripted
from tests.unit.core.build import E, chain, ev

Line = Callable[..., Awaitable[Scripted]]


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    opened: list[Scripted] = []

    async def start(**options: Any) -> Scripted:
        opened.append(await Scripted.open(tmp_path, **options))
        return opened[-1]

    yield start
    for each in opened:
        await each.store.close()


async def matched(line: Scripted, *ids: int) -> None:
    await line.write(*chain(*ids))
    assert [judged.judgement.verdict for judged in (await line.tick()).judged] == [Verdict.MATCH]
    assert await line.due(E) is None


# Step 1: known rows


async def test_a_row_that_waits_counts_once_however_many_lanes_deliver_it(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    waiting = here.commit(ev(3, 2))
    reports = [await here.deliver(*waiting, lane=lane) for lane in ("live", "late", "sweep:1:1")]
    assert [report.rows for report in reports] == [1, 0, 0]
    partition = await here.partition(E)
    assert (partition.rows_seen, partition.held) == (2, 1)


async def test_a_refused_row_counts_once_however_many_lanes_deliver_it(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    refused = here.commit(ev(2))
    reports = [await here.deliver(*refused, lane=lane) for lane in ("live", "late", "sweep:1:1")]
    assert [report.rows for report in reports] == [1, 0, 0]
    partition = await here.partition(E)
    assert (partition.rows_seen, partition.held) == (2, 1)


async def test_a_waiting_row_is_stored_with_the_position_that_the_wal_lane_came_with_later(
    line: Line,
) -> None:
    here = await line()
    await matched(here, 1)
    waiting = here.commit(ev(3, 2))
    await here.deliver(*waiting)
    batch = here.batch(*waiting, lane="wal")
    again = replace(batch, rows=tuple(replace(row, commit_lsn=77) for row in batch.rows))
    assert (await here.feed.take(again)).rows == 0
    await here.write(ev(2, 1))
    assert await here.stored(E) == [1, 2, 3]
    assert await here.store.transact(lambda unit: unit.commits(E)) == {3: 77}


async def test_a_row_that_stands_twice_in_a_batch_is_one_row(line: Line) -> None:
    """As the lane `wal` shows a row that was inserted and changed between two looks."""
    here = await line()
    await matched(here, 1)
    first = here.batch(*here.commit(ev(2, 1)))
    second = here.batch(*here.commit(ev(2, 1, note="changed")))
    report = await here.feed.take(replace(second, rows=(*first.rows, *first.rows, *second.rows)))
    assert (report.rows, (await here.partition(E)).rows_seen) == (1, 2)
    assert [event.body for event in await here.store.chain(E)][1:] == [ev(2, 1, note="changed").body]
    twice = here.batch(*here.commit(ev(4, 3)), *here.log[E].values())
    report = await here.feed.take(replace(twice, rows=twice.rows * 2))
    assert (report.rows, (await here.partition(E)).rows_seen, (await here.partition(E)).held) == (1, 3, 1)
    assert await here.due(E) is not None


async def test_the_xid_of_a_change_in_the_same_batch_is_no_proof(line: Line) -> None:
    """Another transaction may have inserted the row long before."""
    here = await line()
    await matched(here, 1)
    first = here.batch(*here.commit(ev(4, 3)))
    second = here.batch(*here.commit(ev(4, 3, note="changed")))
    assert second.rows[0].xid is not None
    await here.feed.take(replace(second, rows=(*first.rows, *second.rows)))
    waiting = here.feed.settling.pool(E)[4]
    assert (waiting.event, waiting.xid) == (second.rows[0].event, None)


async def test_a_stored_row_that_comes_again_is_dropped(line: Line) -> None:
    here = await line()
    await matched(here, 1, 2)
    assert (await here.deliver(*here.log[E].values(), lane="late")).rows == 0
    assert await here.due(E) is None
    assert (await here.guarded(E)).events is not None


async def test_a_stored_row_with_other_bytes_is_flagged_and_due_at_once(line: Line) -> None:
    here = await line()
    await matched(here, 1, 2)
    await here.write(ev(1, note="changed"))
    due = await here.due(E)
    assert due is not None
    assert due.changed is not None
    assert await here.is_due(E)
    assert (await here.guarded(E)).reason == "rows_held_back"
    report = await here.tick()
    assert [judged.new_kinds for judged in report.judged] == [("payload",)]
    assert await here.due(E) is None


# Step 2: the pool


async def test_the_pool_of_one_execution_is_bounded_and_overflow_is_read_again(line: Line) -> None:
    here = await line(limits=Limits(pool=2))
    await matched(here, 1)
    await here.write(ev(3, 2), ev(4, 3), ev(5, 4))
    assert len(here.feed.settling.pool(E)) == 2
    assert (await here.partition(E)).held == 3
    due = await here.due(E)
    assert due is not None
    assert due.reread is not None
    here.commit(ev(2, 1))
    await here.tick()
    assert await here.stored(E) == [1, 2, 3, 4, 5]
    assert (await here.partition(E)).held == 0
    assert (await here.guarded(E)).events is not None


async def test_all_pools_together_are_bounded(line: Line) -> None:
    here = await line(limits=Limits(pool_total=4))
    for execution_id in (E, E + 1):
        root = ev(1, execution_id=execution_id)
        await here.write(root, *(ev(n, n - 1, execution_id=execution_id) for n in (3, 4)))
    assert len(here.feed.settling.pool(E)) + len(here.feed.settling.pool(E + 1)) == 4
    assert (await here.partition(E + 1)).held == 3
    due = await here.due(E + 1)
    assert due is not None
    assert due.reread is not None


async def test_rows_of_a_labelled_execution_are_counted_and_not_pooled(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    await here.write(ev(2))
    await here.write(ev(5, 4), ev(6, 5))
    assert here.feed.settling.pool(E) == {}
    assert (await here.partition(E)).held == 3


async def test_held_survives_a_restart_and_the_log_is_read_again(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    await here.write(ev(3, 2))
    await here.restart()
    assert here.feed.settling.pool(E) == {}
    due = await here.due(E)
    assert due is not None
    assert due.reread is not None
    await here.write(ev(5, 4))
    assert (await here.partition(E)).held == 2, "one of it in no pool"
    here.commit(ev(2, 1))
    await here.tick()
    assert (await here.partition(E)).held == 3, "a refused read clears nothing, and shows row 2"


async def test_after_a_populate_held_is_what_is_left_in_the_pool(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    await here.write(ev(3, 2))
    await here.restart()
    here.commit(ev(2, 1))
    await here.tick()
    assert await here.stored(E) == [1, 2, 3]
    assert (await here.partition(E)).held == 0
    assert (await here.guarded(E)).events is not None


async def test_a_batch_that_was_rolled_back_leaves_the_pool_as_it_was(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await line()
    await matched(here, 1)
    batch = here.batch(*here.commit(ev(3, 2)))
    real = here.store.transact

    async def full(work: Callable[[Unit], Awaitable[object]]) -> object:
        async def failing(unit: Unit) -> object:
            result = await work(unit)
            if isinstance(result, list):  # which logs to read: no write
                return result
            raise StoreFull("the disk is full")

        return await real(failing)

    monkeypatch.setattr(here.store, "transact", full)
    with pytest.raises(StoreFull):
        await here.feed.take(batch)
    monkeypatch.undo()
    assert here.feed.settling.pool(E) == {}
    assert (await here.feed.take(batch)).rows == 1
    assert (await here.partition(E)).rows_seen == 2
    assert len(here.feed.settling.pool(E)) == 1


async def test_a_row_that_waited_and_left_the_log_is_forgotten(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    await here.write(ev(3, 2))
    del here.log[E][3]
    await here.judge(E)
    assert here.feed.settling.pool(E) == {}
    assert (await here.guarded(E)).events is not None


# Step 3: labels


async def test_a_first_read_that_is_refused_labels_in_the_feed(line: Line) -> None:
    here = await line()
    await here.write(ev(1), ev(2))
    partition = await here.partition(E)
    assert (partition.label, partition.revoked_reason) == ("multiple_roots", "multiple_roots")
    due = await here.due(E)
    assert due is not None
    assert due.labelled is not None


async def test_the_feed_reads_a_labelled_log_no_more_and_the_comparator_does(line: Line) -> None:
    here = await line()
    await here.write(ev(1), ev(2))
    assert here.reads == [(E,)]
    await here.write(ev(3))
    await here.write(ev(4, 3))
    assert here.reads == [(E,)]
    await here.tick()
    assert here.reads == [(E,), (E,)]


async def test_a_label_from_the_comparators_read_asks_for_another_verdict(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    await here.write(ev(3, 2))
    here.commit(ev(9))  # no lane has delivered it
    here.commit(ev(2, 1))
    report = await here.judge(E)
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.REFUSED_MULTIPLE_ROOTS]
    assert (await here.partition(E)).label == "multiple_roots"
    due = await here.due(E)
    assert due is not None
    assert due.labelled is not None


async def test_a_label_is_due_at_once_though_the_execution_was_just_judged(line: Line) -> None:
    here = await line()
    await matched(here, 1, 2)
    await here.write(ev(3, 2))
    assert not await here.is_due(E), "an ordinary row waits for settle"
    await here.write(ev(4, 1))
    assert await here.is_due(E)


async def test_clearing_a_label_reads_again_what_came_after_the_read_began(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    await here.write(ev(2))
    here.commit(ev(2, 1, note="relinked"))

    async def meanwhile() -> None:
        await here.write(ev(3, 2))

    here.after_read = meanwhile
    await here.tick()
    assert await here.stored(E) == [1, 2]
    due = await here.due(E)
    assert due is not None
    assert due.reread is not None
    assert (await here.guarded(E)).reason == "rows_held_back"
    await here.tick()
    assert await here.stored(E) == [1, 2, 3]
    assert (await here.guarded(E)).events is not None


# Step 4: extend


async def test_while_the_log_must_be_read_again_nothing_is_extended(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    await here.write(ev(8, 7))
    await here.restart()
    report = await here.write(ev(2, 1))
    assert report.ways == {}
    assert await here.stored(E) == [1]
    assert len(here.feed.settling.pool(E)) == 1


async def test_a_head_of_an_ended_epoch_is_not_extended_but_read_again(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    here.epoch = "epoch-2"
    await here.write(ev(2, 1))
    assert await here.stored(E) == [1]
    due = await here.due(E)
    assert due is not None
    assert due.reread is not None
    await here.tick()
    assert await here.stored(E) == [1, 2]
    await here.write(ev(3, 2))
    assert await here.stored(E) == [1, 2, 3], "the read confirmed the head in this epoch"


async def test_a_head_that_a_poll_of_the_new_epoch_shows_is_extended(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    here.epoch = "epoch-2"
    await here.deliver(*here.log[E].values())
    reads = len(here.reads)
    await here.write(ev(2, 1))
    assert await here.stored(E) == [1, 2]
    assert len(here.reads) == reads


async def test_rows_that_contradict_the_record_are_due_at_once_and_not_extended(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    await add_foreign_row(here.path, E, 900, move_head=False)
    report = await here.write(ev(2, 1))
    assert report.ways == {}
    due = await here.due(E)
    assert due is not None
    assert due.changed is not None
    assert (await here.guarded(E)).events is None


async def test_other_executions_of_a_batch_with_a_conflict_commit(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    other = ev(1, execution_id=E + 1)
    await here.write(other)
    await add_foreign_row(here.path, E, 900, move_head=False)
    await here.write(ev(2, 1), ev(2, 1, execution_id=E + 1))
    assert await here.stored(E + 1) == [1, 2]


# Steps 5 and 6: reads of the feed


async def test_a_row_that_fills_a_gap_of_an_unstored_execution_is_worth_a_read(line: Line) -> None:
    here = await line()
    await here.write(ev(1), ev(3, 2))
    assert await here.stored(E) == []
    await here.write(ev(9, 8))
    assert len(here.reads) == 1, "it fills nothing"
    here.log[E].pop(9)
    await here.write(ev(2, 1))
    assert len(here.reads) == 2
    assert await here.stored(E) == [1, 2, 3]
    due = await here.due(E)
    assert due is not None
    assert due.reread is None, "the feed did it itself"


# Step 7, and what lanes without horizon bring


async def test_a_divergence_that_the_feed_meets_is_due_at_once(line: Line) -> None:
    here = await line()
    await matched(here, 1, 2)
    here.commit(ev(2, 1, note="changed"))
    await here.sweep(E)
    assert (await here.partition(E)).coverage is None
    assert (await here.guarded(E)).reason == "rows_held_back", "other bytes await judgement"
    assert await here.is_due(E)
    report = await here.tick()
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.DIVERGENT]


async def test_an_execution_that_is_gone_is_due_at_once(line: Line) -> None:
    here = await line()
    await matched(here, 1, 2)
    here.log.clear()
    await here.sweep(gone=(E,))
    assert await here.is_due(E)
    report = await here.tick()
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.LOG_PRUNED]


async def test_a_log_that_is_cut_again_is_no_change(line: Line) -> None:
    """Else an execution that ended long ago stood in every window of coverage for ever."""
    here = await line(limits=Limits(read=3), windows=replace(LONG, settle=0))
    await here.write(*chain(1, 2, 3, 4))
    before = await here.partition(E)
    for _ in range(2):
        assert [each.judgement.verdict for each in (await here.tick()).judged] == [Verdict.LOG_TRUNCATED]
    after = await here.partition(E)
    assert (after.last_change_at, after.held) == (before.last_change_at, before.held)
    await here.write(ev(5, 4))
    assert (await here.partition(E)).last_change_at != before.last_change_at


async def test_a_truncated_log_of_a_lane_is_due_at_once(line: Line) -> None:
    here = await line(limits=Limits(read=3))
    await matched(here, 1, 2)
    here.commit(ev(3, 2))
    await here.sweep(E)
    assert await here.is_due(E)
    report = await here.tick()
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.LOG_TRUNCATED]


async def test_an_old_stored_execution_of_a_catch_up_needs_no_entry(line: Line) -> None:
    here = await line()
    here.newest_at -= LONG.lookback + 1
    here.commit(*chain(1, 2))
    here.commit(ev(1, execution_id=E + 1), ev(2, execution_id=E + 1))
    await here.sweep(E, E + 1)
    assert await here.stored(E) == [1, 2]
    assert await here.due(E) is None
    assert await here.due(E + 1) is not None, "what was refused does"
    assert (await here.partition(E)).rows_seen == 2


async def test_a_young_execution_of_a_catch_up_is_judged(line: Line) -> None:
    here = await line()
    here.commit(*chain(1, 2))
    await here.sweep(E)
    assert await here.is_due(E)


async def test_a_lane_s_log_clears_the_wish_to_read_again(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    here.epoch = "epoch-2"
    await here.write(ev(2, 1))
    await here.sweep(E)
    due = await here.due(E)
    assert due is not None
    assert due.reread is None
    assert await here.stored(E) == [1, 2]
    assert (await here.guarded(E)).events is not None


# After every populate, the comparator's too


async def test_what_came_after_the_comparators_read_is_extended_in_its_hold(line: Line) -> None:
    """Row 2 was delivered by nobody; the read finds it, and row 3, which waited, follows at once."""
    here = await line()
    await matched(here, 1)
    await here.write(ev(8, 7))
    del here.log[E][8]
    here.commit(ev(2, 1))

    async def meanwhile() -> None:
        await here.write(ev(3, 2))
        assert await here.stored(E) == [1]

    here.after_read = meanwhile
    report = await here.judge(E)
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.MATCH]
    assert await here.stored(E) == [1, 2, 3]
    assert here.feed.settling.pool(E) == {}


async def test_the_comparators_own_read_ignores_what_waits_and_leaves_it_waiting(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    here.commit(ev(2, 1))
    await here.sweep(E)

    async def meanwhile() -> None:
        await here.write(ev(4, 3))

    here.after_read = meanwhile
    report = await here.judge(E)
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.MATCH]
    assert len(here.feed.settling.pool(E)) == 1
    assert (await here.guarded(E)).reason == "rows_held_back"
    reads = len(here.reads)
    await here.write(ev(3, 2))
    assert await here.stored(E) == [1, 2, 3, 4]
    assert len(here.reads) == reads


async def test_a_final_refusal_drops_the_pool_and_keeps_held(line: Line) -> None:
    here = await line(windows=Windows(tick=1, settle=0, dangling=0))
    await here.write(ev(1))
    await here.tick()
    await here.write(ev(3, 2))
    report = await here.tick()
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.REFUSED_DANGLING_PREV]
    assert here.feed.settling.pool(E) == {}
    partition = await here.partition(E)
    assert (partition.held, partition.revoked_reason) == (1, "refused_dangling_prev")
    assert (await here.guarded(E)).events is None


async def test_pruned_before_it_was_stored_is_not_empty_and_waits_for_nothing(line: Line) -> None:
    here = await line()
    await here.write(ev(3, 2))
    here.log.clear()
    report = await here.tick()
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.LOG_PRUNED]
    assert (await here.partition(E)).held == 0


async def test_pruned_between_its_first_row_and_its_first_log_read_is_not_empty(line: Line) -> None:
    """A lane has handed a row over: a log read that finds nothing afterwards is no empty log."""
    here = await line()
    batch = here.batch(*here.commit(ev(1), ev(2, 1)))
    here.log.clear()
    await here.feed.take(batch)
    report = await here.tick()
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.LOG_PRUNED]
    assert (await here.guarded(E)).events is None


async def test_pruned_between_the_sweeps_count_and_its_log_read_is_not_empty(line: Line) -> None:
    """The sweep reads what it has counted: rows were there."""
    here = await line()
    await here.sweep(E)
    report = await here.judge(E)
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.LOG_PRUNED]
    assert (await here.guarded(E)).events is None


# One transaction with the cursor


async def test_the_cursor_moves_with_the_last_part_of_a_batch(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.feed.reads.FIRST_SIGHTS_MAX", 1)
    here = await line()
    batch = here.batch(*here.commit(ev(1), ev(1, execution_id=E + 1)), gone=(E + 2,))

    async def fail() -> None:
        async def broken() -> None:
            raise SourceUnavailable("Postgres did not answer in time")

        here.after_read = broken

    here.after_read = fail
    with pytest.raises(SourceUnavailable):
        await here.feed.take(batch)
    assert await here.stored(E) == [1]
    assert await here.store.cursors() == {}
    assert await here.due(E + 2) is None
    await here.feed.take(batch)
    assert set(await here.store.cursors()) == {"live"}
    assert await here.stored(E + 1) == [1]
    assert (await here.partition(E)).rows_seen == 1
    assert await here.due(E + 2) is not None


class Unreadable:
    """Of one execution no log read comes to an end."""

    def __init__(self, here: Scripted, execution_id: int) -> None:
        self.execution_id: int | None = execution_id
        self._read = here.read

    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        if self.execution_id in execution_ids:
            raise SourceUnavailable("a statement took longer than its deadline")
        return await self._read(execution_ids)


@pytest.mark.parametrize("comparing", [True, False])
async def test_a_log_that_cannot_be_read_holds_up_no_other(
    line: Line, monkeypatch: pytest.MonkeyPatch, comparing: bool
) -> None:
    here = await line(comparing=comparing, windows=replace(LONG, settle=0))
    broken = Unreadable(here, E + 1)
    monkeypatch.setattr(here, "read", broken.read)
    rows = here.commit(*(ev(n, execution_id=E + i) for i in range(4) for n in (1,)))
    with pytest.raises(SourceUnavailable):  # it may be the server
        await here.deliver(*rows)
    assert await here.store.cursors() == {}
    await here.deliver(*rows)  # the server has answered a poll
    assert [await here.stored(E + i) for i in range(4)] == [[1], [], [1], [1]]
    assert set(await here.store.cursors()) == {"live"}
    waiting, due = await here.partition(E + 1), await here.due(E + 1)
    assert (waiting.held, waiting.rows_seen, due and due.reread is not None) == (1, 1, True)
    assert (await here.guarded(E + 1)).events is None
    if comparing:
        report = await here.tick()
        assert Verdict.LOG_READ_FAILED in {each.judgement.verdict for each in report.judged}
        found = await coverage(here.store, since=0, unjudged_before=0)
        assert found.uncovered == {"log_read_failed": 1}
        assert (found.eligible_executions, found.eligible_events) == (4, 4)
    broken.execution_id = None
    await here.write(ev(2, 1, execution_id=E + 1))
    if comparing:
        await here.tick()
    assert await here.stored(E + 1) == [1, 2]


async def test_whoever_asks_a_read_that_failed_is_asked_again(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await line()
    await matched(here, 1)
    with monkeypatch.context() as patched:
        patched.setattr(here, "read", Unreadable(here, E).read)
        report = await here.judge(E)
    assert [each.judgement.verdict for each in report.judged] == [Verdict.LOG_READ_FAILED]
    due = await here.due(E)
    assert due is not None
    assert due.tries == 1


async def test_a_server_that_does_not_answer_leaves_no_execution_behind(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await line()
    rows = here.commit(*(ev(1, execution_id=E + i) for i in range(3)))

    async def away(execution_ids: Sequence[int]) -> list[ExecutionLog]:
        raise SourceUnavailable("Postgres cannot be reached")

    with monkeypatch.context() as patched:
        patched.setattr(here, "read", away)
        with pytest.raises(SourceUnavailable):
            await here.deliver(*rows)
    await here.deliver(*rows)
    assert [await here.stored(E + i) for i in range(3)] == [[1], [1], [1]]


async def test_a_lane_that_left_the_tree_loses_its_cursor(line: Line) -> None:
    here = await line()
    await here.deliver(lane="sweep:1:1")
    assert set(await here.store.cursors()) == {"sweep:1:1"}
    await here.deliver(dropped_lanes=("sweep:1:1",))
    assert set(await here.store.cursors()) == {"live"}


async def test_every_poll_says_that_its_epoch_still_stands(line: Line) -> None:
    here = await line()
    await here.deliver()
    (first,) = await here.store.epochs()
    await here.deliver()
    (second,) = await here.store.epochs()
    assert first.first_seen_at == second.first_seen_at
    assert first.last_seen_at < second.last_seen_at


# The work list


async def test_an_entry_for_every_execution_with_a_new_row_stored_or_not(line: Line) -> None:
    here = await line()
    await here.write(ev(1), ev(3, 2, execution_id=E + 1))
    assert await here.is_due(E)
    assert await here.is_due(E + 1)


async def test_a_retry_keeps_the_entry_and_a_new_row_makes_it_due(line: Line) -> None:
    here = await line(windows=Windows(tick=3600_000_000, settle=0, dangling=3600_000_000))
    await here.write(ev(1), ev(3, 2))
    report = await here.tick()
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.PENDING_VISIBILITY]
    due = await here.due(E)
    assert due is not None
    assert (due.tries, await here.is_due(E)) == (1, False)
    await here.write(ev(4, 3))
    assert await here.is_due(E)
    due = await here.due(E)
    assert due is not None
    assert due.tries == 0


async def test_a_row_that_came_during_the_read_keeps_the_entry(line: Line) -> None:
    here = await line()
    await here.write(ev(1))

    async def meanwhile() -> None:
        await here.write(ev(3, 2))

    here.after_read = meanwhile
    await here.tick()
    assert await here.due(E) is not None
    assert not await here.is_due(E), "settle later"


async def test_a_log_read_corrects_the_count_of_rows_unless_rows_came_meanwhile(line: Line) -> None:
    here = await line()
    here.commit(*chain(1, 2, 3))
    await here.deliver(here.log[E][3])
    partition = await here.partition(E)
    assert partition.rows_seen == 3, "the first read has shown them"

    async def counted_twice(unit: Unit) -> None:
        unit.put_partition(replace(partition, rows_seen=6))

    await here.store.transact(counted_twice)
    await here.judge(E)
    assert (await here.partition(E)).rows_seen == 3

    async def meanwhile() -> None:
        await here.write(ev(5, 4))

    here.after_read = meanwhile
    await here.judge(E)
    assert (await here.partition(E)).rows_seen == 4


async def test_i16_a_store_that_moved_again_is_pending_and_asked_no_third_time(line: Line) -> None:
    here = await line()
    await matched(here, 1)

    async def after_the_first() -> None:
        await here.write(ev(2, 1))
        here.after_read = after_the_second

    async def after_the_second() -> None:
        await here.write(ev(3, 2))

    reads, here.after_read = len(here.reads), after_the_first
    report = await here.judge(E)
    assert len(here.reads) == reads + 2
    assert [judged.judgement.verdict for judged in report.judged] == [Verdict.PENDING_STALE]
    assert report.outcomes == {"stale_log": 1, "stale_log_unresolved": 1}
    assert (await here.guarded(E)).events is not None, "an old read withdraws nothing"


# Divergences are counted once


async def test_a_kind_is_counted_once_until_a_match_also_over_a_restart(line: Line) -> None:
    here = await line()
    await matched(here, 1, 2)

    async def judged_kinds() -> list[tuple[str, ...]]:
        return [judged.new_kinds for judged in (await here.tick()).judged]

    await here.write(ev(1, note="changed"))
    assert await judged_kinds() == [("payload",)]
    await here.restart()
    await here.write(ev(2, 1, note="changed too"))
    assert await judged_kinds() == [()]
    assert (await here.partition(E)).revoked_reason == "divergent"
    # The log is as it was, and a row asks for a look.
    here.commit(ev(1), ev(2, 1))
    await here.write(ev(3, 2, kind="playbook.completed"))
    assert await judged_kinds() == [()]
    assert (await here.partition(E)).counted_kinds == frozenset()
    await here.write(ev(1, note="changed"))
    assert await judged_kinds() == [("payload",)]


# Without a comparator


async def test_without_a_comparator_only_unstored_rows_keep_an_entry(line: Line) -> None:
    here = await line(comparing=False)
    await here.write(ev(1))
    assert await here.due(E) is None
    await here.write(ev(3, 2))
    assert await here.due(E) is not None
    await here.write(ev(2, 1))
    assert await here.stored(E) == [1, 2, 3]
    assert await here.due(E) is None


async def test_without_a_comparator_the_feed_reads_what_is_flagged(line: Line) -> None:
    here = await line(comparing=False, windows=Windows(settle=0))
    await here.write(ev(1))
    await here.write(ev(3, 2))
    await here.restart()
    here.commit(ev(2, 1))
    await here.deliver()
    assert await here.stored(E) == [1, 2, 3]
    assert await here.due(E) is None


async def test_without_a_comparator_a_log_is_not_read_again_at_every_poll(line: Line) -> None:
    here = await line(comparing=False)
    await here.write(ev(1), ev(3, 2))
    before = len(here.reads)
    for _ in range(10):
        await here.deliver()
    assert len(here.reads) <= before + 1


async def test_without_a_comparator_logs_that_stay_refused_do_not_starve_the_others(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.feed.reads.FIRST_SIGHTS_MAX", 2)
    here = await line(comparing=False, windows=Windows(settle=0))
    for n in range(4):
        await here.write(ev(1, execution_id=E + n), ev(3, 2, execution_id=E + n))
    await here.restart()
    here.commit(ev(2, 1, execution_id=E + 3))
    for _ in range(4):
        await here.deliver()
    assert await here.stored(E + 3) == [1, 2, 3]
