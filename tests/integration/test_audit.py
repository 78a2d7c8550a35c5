"""The audit over a real log and a real store: what it finds, what it leaves alone, where it goes on.

The audit is stepped by the test and the comparator ticks when told to, so nothing is waited for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sidecar.commands.backfill import backfilled
from sidecar.comparator import audit as auditing
from sidecar.comparator.audit import LOOK_AGAIN_S, Audit, AuditReport
from sidecar.comparator.loop import Comparator
from sidecar.comparator.nopools import NoPools
from sidecar.comparator.pace import Pace
from sidecar.comparator.report import TickReport
from sidecar.core.due import SECOND, Windows
from sidecar.core.exclusion import Exclusion
from sidecar.errors import SourceUnavailable, StoreError
from sidecar.settings import Settings
from sidecar.source.opened import LogSource
from sidecar.source.options import Shard
from sidecar.source.sums import LogSums
from sidecar.store import ChainStore
from sidecar.store.audit import StoreAuditBook
from sidecar.store.sums import StoreSums
from tests.support.databases import Database
from tests.support.meddling import add_foreign_row, drop_row, writing
from tests.support.rows import chain_rows, event_row
from tests.support.tailing import opened

E = 8001
LONG_AGO = datetime(2025, 1, 1)  # noqa: DTZ001 - the column is naive


@dataclass
class Rig:
    """An audit whose time stands still unless the test moves it."""

    store: ChainStore
    source: LogSource
    comparator: Comparator
    audit: Audit
    seconds: list[float] = field(default_factory=lambda: [0.0])

    async def round(self) -> AuditReport:
        """One whole round; what its steps counted, together."""
        total = AuditReport()
        before = (await self.progress())[0]
        while True:
            report = await self.audit.step()
            total.equal += report.equal
            total.different += report.different
            total.read += report.read
            total.judged += report.judged
            total.progress = report.progress
            number, finished = await self.progress()
            if number > before and finished:
                return total

    async def progress(self) -> tuple[int, bool]:
        """The number of the round begun last, and whether it is finished."""
        found = await self.store.query(
            "SELECT round, finished_at IS NOT NULL FROM audit_progress ORDER BY round DESC LIMIT 1"
        )
        return (found[0][0], bool(found[0][1])) if found else (0, False)

    async def due(self) -> list[int]:
        return [row[0] for row in await self.store.query("SELECT execution_id FROM due ORDER BY 1")]

    async def verdicts(self) -> dict[int, str | None]:
        return dict(await self.store.query("SELECT execution_id, verdict FROM partition"))


@asynccontextmanager
async def rig(
    pg: Database, path: Path, *, share: float = 1.0, round_us: int = 0, exclude: tuple[str, ...] = ()
) -> AsyncIterator[Rig]:
    async with ChainStore.open(str(path)) as store, opened(pg.dsn) as source:
        windows = Windows(tick=1, settle=0, dangling=0)
        seconds = [0.0]
        audit = Audit(
            source.summer(store.clock),
            StoreSums(path),
            StoreAuditBook(store),
            store.clock,
            windows,
            Pace(share, lambda: seconds[0]),
            round_us=round_us,
            exclusion=Exclusion(exclude),
        )
        comparator = Comparator(store, source.reader(store.clock), NoPools(), windows, projecting=True)
        yield Rig(store, source, comparator, audit, seconds)


async def filled(pg: Database, path: Path, executions: int, rows: int = 3) -> None:
    """A log of old executions, and a store that holds all of it; nobody has judged any."""
    ids = range(1, rows + 1)
    await pg.insert([r for n in range(executions) for r in chain_rows(E + n, ids, created_at=LONG_AGO)])
    await backfilled(Settings.given(dsn=pg.dsn, store=str(path)))


async def test_what_a_catch_up_stored_is_judged_by_its_sums_and_never_read(
    pg: Database, tmp_path: Path
) -> None:
    """Old executions have no entry; the audit is the one that judges them (spec 2.12)."""
    path = tmp_path / "chain.db"
    await filled(pg, path, 5)
    async with rig(pg, path) as it:
        assert set((await it.verdicts()).values()) == {None}
        first = await it.round()
        assert (first.equal, first.different, first.read, len(first.judged)) == (5, 0, 0, 5)
        assert set((await it.verdicts()).values()) == {"match"}
        states = await it.store.query("SELECT execution_id, status, data <> '' FROM d3_projection")
        assert states == [(E + n, "match", 1) for n in range(5)]
        second = await it.round()
        assert (second.equal, second.read, second.judged, await it.due()) == (5, 0, [], [])


async def test_each_thing_that_no_tail_sees_is_found_and_named(pg: Database, tmp_path: Path) -> None:
    """The store's last row is put back by the read that the audit asked for; a hole is refused."""
    path = tmp_path / "chain.db"
    await filled(pg, path, 9)
    async with rig(pg, path) as it:
        await it.round()
        await pg.execute("UPDATE noetl.event SET status = 'x' WHERE execution_id = $1 AND event_id = 2", E)
        await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1 AND event_id = 2", E + 1)
        await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1", E + 2)
        await add_foreign_row(path, E + 3, 99, move_head=True)
        await drop_row(path, E + 4, 2)
        await drop_row(path, E + 5, 3)
        await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1 AND event_id = 1", E + 6)
        await pg.insert(chain_rows(E + 70, [1, 2], created_at=LONG_AGO))
        found = await it.round()
        assert (found.equal, found.different, found.read) == (2, 8, 8)
        assert await it.due() == [E, E + 1, E + 2, E + 3, E + 4, E + 5, E + 6, E + 70]
        report = await it.comparator.tick()
        named = {judged.judgement.execution_id: judged.judgement.verdict.value for judged in report.judged}
        assert named == {
            E: "divergent",
            E + 1: "second_writer",
            E + 2: "log_pruned",
            E + 3: "second_writer",
            E + 4: "refused_store_gap",
            E + 5: "match",
            E + 6: "log_pruned",
            E + 70: "match",
        }
        kinds = {
            j.judgement.execution_id: [k.value for k in j.new_kinds] for j in report.judged if j.new_kinds
        }
        assert kinds == {E: ["payload"], E + 1: ["second_writer"], E + 3: ["second_writer"]}
        assert "origin log" in next(
            j.judgement.detail for j in report.judged if j.judgement.execution_id == E + 1
        )


async def test_what_is_known_to_differ_is_read_once_and_again_when_a_side_moves(
    pg: Database, tmp_path: Path
) -> None:
    """A refused log has no chain in the store: it differs for ever, and says nothing new."""
    path = tmp_path / "chain.db"
    await filled(pg, path, 2)
    for n in range(4):
        await pg.insert([event_row(E + 50 + n, i, created_at=LONG_AGO) for i in (1, 2)])
    await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1", E + 1)
    async with rig(pg, path) as it:
        first = await it.round()
        assert (first.equal, first.different, first.read) == (1, 5, 5)
        await it.comparator.tick()
        assert (await it.verdicts())[E + 50] == "refused_multiple_roots"
        for _ in range(2):
            again = await it.round()
            assert (again.equal, again.different, again.read, await it.due()) == (1, 5, 0, [])
        # One more row on the log's side, one changed body, one execution put right.
        await pg.insert([event_row(E + 50, 3, prev=2, created_at=LONG_AGO)])
        await pg.execute("UPDATE noetl.event SET status = 'x' WHERE execution_id = $1", E + 51)
        await pg.execute(
            "UPDATE noetl.event SET prev_event_id = 1 WHERE execution_id = $1 AND event_id = 2", E + 52
        )
        moved = await it.round()
        assert (moved.different, moved.read, await it.due()) == (5, 3, [E + 50, E + 51, E + 52])
        await it.comparator.tick()
        assert (await it.verdicts())[E + 52] == "match"
        last = await it.round()
        assert (last.equal, last.different, last.read) == (2, 4, 0)


async def test_a_difference_that_a_verdict_of_agreement_hides_is_read_again(
    pg: Database, tmp_path: Path
) -> None:
    """A log that was right for the moment in which it was read, and is wrong as it was before."""
    path = tmp_path / "chain.db"
    await filled(pg, path, 1)
    change = "UPDATE noetl.event SET status = $2 WHERE execution_id = $1 AND event_id = 2"
    async with rig(pg, path) as it:
        await it.round()
        await pg.execute(change, E, "x")
        assert (await it.round()).read == 1
        await pg.execute(change, E, None)
        await it.comparator.tick()
        assert (await it.verdicts())[E] == "match"
        await pg.execute(change, E, "x")
        assert (await it.round()).read == 1
        await it.comparator.tick()
        assert (await it.verdicts())[E] == "divergent"


async def test_what_was_put_right_below_every_horizon_is_judged_anew(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    await filled(pg, path, 1)
    change = "UPDATE noetl.event SET status = $2 WHERE execution_id = $1 AND event_id = 2"
    async with rig(pg, path) as it:
        await it.round()
        await pg.execute(change, E, "x")
        await it.round()
        await it.comparator.tick()
        await pg.execute(change, E, None)
        right = await it.round()
        assert (right.equal, right.different, right.read) == (1, 0, 1)
        await it.comparator.tick()
        assert (await it.verdicts())[E] == "match"
        assert (await it.store.chain_if_authoritative(E)).events is not None
        assert (await it.round()).read == 0


async def test_what_was_pruned_and_is_back_is_judged_anew(pg: Database, tmp_path: Path) -> None:
    """`log_pruned` is final until a row comes: for a partition that is attached again none does."""
    path = tmp_path / "chain.db"
    bounds = f"FOR VALUES FROM ({E}) TO ({E + 10})"
    await pg.execute(f"CREATE TABLE noetl.event_old PARTITION OF noetl.event {bounds}")
    await filled(pg, path, 1)
    async with rig(pg, path) as it:
        await pg.execute("ALTER TABLE noetl.event DETACH PARTITION noetl.event_old")
        await it.round()
        await it.comparator.tick()  # the tree has just changed: read again
        await it.comparator.tick()
        assert (await it.verdicts())[E] == "log_pruned"
        await pg.execute(f"ALTER TABLE noetl.event ATTACH PARTITION noetl.event_old {bounds}")
        back = await it.round()
        assert (back.equal, back.different, back.read) == (1, 0, 1)
        await it.comparator.tick()
        assert (await it.verdicts())[E] == "match"
        assert (await it.round()).read == 0


async def test_what_is_in_flight_is_left_to_the_comparator(pg: Database, tmp_path: Path) -> None:
    """It has an entry, so it is judged anyway; its sums are no answer, and it counts as nothing."""
    path = tmp_path / "chain.db"
    await filled(pg, path, 2)
    await pg.insert([event_row(E, 9, prev=8)])
    async with rig(pg, path) as it:
        first = await it.round()
        assert (first.equal, first.different, first.read) == (1, 1, 1)
        again = await it.round()
        assert (again.equal, again.different, again.read, await it.due()) == (1, 0, 0, [E])


async def test_a_row_that_a_lane_stores_between_two_looks_is_no_difference(
    pg: Database, tmp_path: Path
) -> None:
    """The log is ahead of the store for as long as a poll takes."""
    path = tmp_path / "chain.db"
    await filled(pg, path, 2)
    async with rig(pg, path) as it:
        await it.round()
        await pg.insert([event_row(E, 4, prev=3)])
        looked = await it.audit.step()
        assert (looked.equal, looked.different, looked.rest_s) == (0, 0, LOOK_AGAIN_S)
        (log,) = await it.source.reader(it.store.clock).read([E])
        await it.store.populate_from_log(E, log.events or (), read=log.read)
        again = await it.audit.step()
        assert (again.equal, again.different, again.read, await it.due()) == (2, 0, 0, [])


async def test_a_log_that_moves_between_two_looks_is_in_flight(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    await filled(pg, path, 2)
    async with rig(pg, path) as it:
        await it.round()
        await pg.insert([event_row(E, 4, prev=3)])
        await it.audit.step()
        await pg.insert([event_row(E, 5, prev=4)])
        again = await it.audit.step()
        assert (again.equal, again.different, again.read) == (1, 0, 0)
        # It stands still now, and nobody stored it: the next round says so.
        assert (await it.round()).read == 1


async def test_a_round_that_was_killed_goes_on_where_it_stopped(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was handed over and how far the round had come are one transaction."""
    monkeypatch.setattr(auditing, "SLICE_ROWS", 12)
    path = tmp_path / "chain.db"
    await filled(pg, path, 10)
    await pg.execute("UPDATE noetl.event SET status = 'x' WHERE execution_id = ANY($1)", [E + 1, E + 7])
    async with rig(pg, path) as it:
        while await it.due() != [E + 1]:
            await it.audit.step()
        (after,) = (await it.store.query("SELECT after_id FROM audit_progress"))[0]
        assert E + 1 <= after < E + 7
    summed: list[int] = []
    real = LogSums.between

    async def noted(self: LogSums, low: int, high: int, without: object) -> object:
        summed.append(low)
        return await real(self, low, high, [])

    monkeypatch.setattr(LogSums, "between", noted)
    async with rig(pg, path) as it:
        assert await it.due() == [E + 1]
        number, finished = await it.progress()
        assert (number, finished) == (1, False)
        while not (await it.progress())[1]:
            report = await it.audit.step()
        assert min(summed) == after + 1
        assert await it.progress() == (1, True)
        assert await it.due() == [E + 1, E + 7]
        assert report.progress == 1.0


async def test_a_slice_whose_saving_fails_is_looked_at_again(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chain.db"
    await filled(pg, path, 2)
    async with rig(pg, path) as it:
        await it.round()
        await pg.execute("UPDATE noetl.event SET status = 'x' WHERE execution_id = $1", E)
        real = StoreAuditBook.save

        async def full(self: StoreAuditBook, *args: object) -> None:
            raise StoreError("the disk is full")

        monkeypatch.setattr(StoreAuditBook, "save", full)
        await it.audit.step()
        with pytest.raises(StoreError):
            await it.audit.step()
        assert await it.due() == []
        monkeypatch.setattr(StoreAuditBook, "save", real)
        assert ((await it.round()).read, await it.due()) == (1, [E])


async def test_an_outage_moves_nothing_and_one_execution_that_cannot_be_summed_is_read(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chain.db"
    await filled(pg, path, 4)
    async with rig(pg, path) as it:
        await it.round()
        real = LogSums.between

        async def slow(self: LogSums, low: int, high: int, without: list[int]) -> object:
            if low <= E + 2 <= high and E + 2 not in without:
                raise SourceUnavailable("a statement took longer than its deadline")
            return await real(self, low, high, without)

        monkeypatch.setattr(LogSums, "between", slow)
        failures = 0
        while not (await it.due()):
            try:
                await it.audit.step()
            except SourceUnavailable:
                failures += 1
            assert failures < 10, "the slice shrinks with every failure"
        assert await it.due() == [E + 2]
        assert failures > 1
        await it.comparator.tick()
        assert set((await it.verdicts()).values()) == {"match"}


async def test_a_truncated_log_is_never_summed_and_is_read_once(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    await filled(pg, path, 1, rows=5)
    async with ChainStore.open(str(path)) as store, opened(pg.dsn, read_limit=5) as source:
        windows = Windows(settle=0)
        summer = source.summer(store.clock)
        book, pace = StoreAuditBook(store), Pace(1, lambda: 0.0)
        audit = Audit(summer, StoreSums(path), book, store.clock, windows, pace, round_us=0)
        comparator = Comparator(store, source.reader(store.clock), NoPools(), windows)
        it = Rig(store, source, comparator, audit)
        assert (await it.round()).read == 1
        await comparator.tick()
        assert (await it.verdicts())[E] == "log_truncated"
        again = await it.round()
        assert (again.equal, again.different, again.read) == (0, 1, 0)


async def test_the_share_is_kept_by_accounting_and_a_round_by_its_time(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    await filled(pg, path, 2)
    async with rig(pg, path, share=0.1, round_us=3600 * SECOND) as it:
        real = it.audit._step

        async def working() -> AuditReport:
            it.seconds[0] += 0.5
            return await real()

        it.audit._step = working  # type: ignore[method-assign]  # half a second of work by the clock
        # Half a second worked, four and a half rested: a tenth of the time.
        assert (await it.audit.step()).rest_s == pytest.approx(4.5)
        assert await it.progress() == (1, True)
        rest = (await it.audit.step()).rest_s
        assert 3500 < rest < 3610
        assert await it.progress() == (1, True), "a round begins at most once in its time"


def _fail_after_a_second(pace: Pace, now: list[float]) -> None:
    with pace.working():
        now[0] += 1
        raise StoreError("full")


def test_a_pace_counts_work_that_fails_too() -> None:
    now = [0.0]
    pace = Pace(0.25, lambda: now[0])
    for _ in range(2):
        with pytest.raises(StoreError):
            _fail_after_a_second(pace, now)
    assert pace.rest() == pytest.approx(6)
    assert pace.rest() == 0


async def test_the_audit_of_one_shard_leaves_the_others_alone(pg: Database, tmp_path: Path) -> None:
    """A store that once held every execution is asked for its own only."""
    path = tmp_path / "chain.db"
    await filled(pg, path, 8)
    async with ChainStore.open(str(path)) as store, opened(pg.dsn, shard=Shard(0, 2)) as source:
        windows, book = Windows(settle=0), StoreAuditBook(store)
        summer, pace = source.summer(store.clock), Pace(1, lambda: 0.0)
        audit = Audit(summer, StoreSums(path), book, store.clock, windows, pace, round_us=0)
        comparator = Comparator(store, source.reader(store.clock), NoPools(), windows)
        it = Rig(store, source, comparator, audit)
        mine = len(await summer.ours(range(E, E + 8)))
        assert 0 < mine < 8
        found = await it.round()
        assert (found.equal, found.different, found.read, await it.due()) == (mine, 0, 0, [])


async def test_a_chain_that_grew_after_it_was_summed_is_not_judged_by_those_sums(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed stored a row between the sums and the transaction that was to record the match."""
    path = tmp_path / "chain.db"
    await filled(pg, path, 2)
    async with rig(pg, path) as it:
        real = StoreAuditBook.save

        async def late(self: StoreAuditBook, *args: Any) -> Any:
            await pg.insert([event_row(E, 4, prev=3)])
            (log,) = await it.source.reader(it.store.clock).read([E])
            await it.store.populate_from_log(E, log.events or (), read=log.read)
            return await real(self, *args)

        monkeypatch.setattr(StoreAuditBook, "save", late)
        report = await it.audit.step()
        assert [judged.judgement.execution_id for judged in report.judged] == [E + 1]
        assert (await it.verdicts())[E] is None


async def test_a_verdict_on_an_older_log_read_does_not_answer_what_was_handed_over(
    pg: Database, tmp_path: Path
) -> None:
    path = tmp_path / "chain.db"
    await filled(pg, path, 1)
    async with rig(pg, path) as it:
        await it.round()
        older = await it.source.reader(it.store.clock).read([E])
        await pg.execute("UPDATE noetl.event SET status = 'x' WHERE execution_id = $1 AND event_id = 2", E)
        assert (await it.round()).read == 1
        report = TickReport()
        await it.comparator.judge_logs(older, report)
        assert [judged.judgement.verdict.value for judged in report.judged] == ["match"]
        assert await it.due() == [E], "a match on a log read before the difference"
        await it.comparator.tick()
        assert (await it.verdicts())[E] == "divergent"


@pytest.mark.parametrize(
    "meddling",
    [
        "DELETE FROM partition WHERE execution_id = ?",
        "UPDATE partition SET cov_root = NULL, cov_total = NULL WHERE execution_id = ?",
    ],
    ids=["no record", "no coverage"],
)
async def test_equal_rows_that_would_not_be_served_are_read_not_asked_for_ever(
    pg: Database, tmp_path: Path, meddling: str
) -> None:
    path = tmp_path / "chain.db"
    await filled(pg, path, 2)
    with writing(path) as file:
        file.execute(meddling, (E,))
    async with rig(pg, path) as it:
        await it.round()
        assert await it.due() == [E]
        await it.comparator.tick()
        assert (await it.verdicts()) == {E: "match", E + 1: "match"}
        assert await it.due() == []
        assert (await it.store.chain_if_authoritative(E)).events is not None
        found = await it.round()
        assert (found.equal, found.different, found.read) == (2, 0, 0)
