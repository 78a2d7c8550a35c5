"""What else moves a store, or hides a row, beneath a live roller: no stale skip, no false miss.

Feed, comparator and store are the real ones; the log and the lanes are the test's.
Source: spec 4.4-4.7.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import sidecar.certified
from sidecar.core.certificate import MAX_CONSECUTIVE_SKIPS, TRACKED_MAX, Decision
from sidecar.core.settle import Limits
from sidecar.errors import StoreLocked
from sidecar.store import ChainStore
from sidecar.store.connection import Connection
from sidecar.store.retention import DAY_US, Retention
from tests.support.certified import NOW_TEXT, Line, ask, cached, decided, lines, step, steps
from tests.support.meddling import add_foreign_row, writing
from tests.support.scripted import Scripted
from tests.unit.core.build import E, ev


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    async with lines(tmp_path) as start:
        yield start


# -- no skip over a store that moved


async def test_a_partition_that_retention_let_go_of_has_no_state(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    await here.tick()
    with writing(here.path) as conn:
        conn.execute(
            "UPDATE partition SET verdict = 'log_pruned', verdict_rows = 0,"
            " verdict_at = 1, last_change_at = 1"
        )
        conn.execute("DELETE FROM due")
    assert (await Retention(here.store, DAY_US).step()).executions == 1
    answer = await ask(here)
    assert (answer.state, answer.reason, answer.certificate) == (None, "not_populated", None)
    assert here.certified.tracked == 0
    # Rows that come again begin a chain of their own.
    here.log.clear()
    await here.write(*steps(11, 12))
    assert (await ask(here)).state is not None
    assert here.certified.take().divergences == 0


async def test_a_record_that_counts_more_than_was_observed_is_no_longer_skipped_over(line: Line) -> None:
    """A wiring fault, or a second process: the next call folds, not the seventeenth."""
    here = await line()
    await cached(here, *steps(1, 2))
    await add_foreign_row(here.path, E, 3, move_head=True)
    answer = await ask(here)
    assert answer.decision is Decision.NO_CERTIFICATE
    assert here.certified.take().divergences == 1
    assert await decided(here) is Decision.DIVERGENCE_DETECTED


async def test_a_row_that_no_record_counts_is_met_by_the_next_fold(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    await add_foreign_row(here.path, E, 3, move_head=False)
    for _ in range(MAX_CONSECUTIVE_SKIPS - 1):
        assert await decided(here) is Decision.SKIPPED
    answer = await ask(here)
    assert (answer.decision, answer.state) == (Decision.REVALIDATION_DUE, None)
    assert here.certified.tracked == 0


async def test_a_rebuild_by_somebody_else_is_refused_while_it_runs(line: Line) -> None:
    """So no roller lives on over other bodies: after a rebuild every process is a new one."""
    here = await line()
    await cached(here, *steps(1, 2))
    changed = step(2, 1, at="2023-11-14T22:13:21")
    with pytest.raises(StoreLocked):
        await ChainStore.open(str(here.path))
    await here.store.close()
    async with ChainStore.open(str(here.path)) as offline:
        await offline.rebuild(E, (*steps(1), changed))
    here.commit(changed)
    await here.restart()
    assert await decided(here) is Decision.UNCALIBRATED
    answer = await ask(here)
    assert answer.decision is Decision.SKIPPED
    assert answer.state is not None
    assert here.certified.take().divergences == 0


@pytest.mark.parametrize("lane", ["late", "sweep:1:1"])
async def test_without_a_comparator_other_lanes_are_watched_too(line: Line, lane: str) -> None:
    here = await line(comparing=False)
    await cached(here, *steps(1, 2))
    found = here.commit(*steps(3, after=2))
    await here.deliver(*found, lane=lane)
    await here.deliver(*found)
    await here.deliver()
    assert (await decided(here), here.certified.take().divergences) == (Decision.CHAIN_ADVANCED, 0)
    await here.deliver(*here.commit(*steps(4, after=3)), lane=lane)
    await here.deliver()
    assert here.certified.take().divergences == 1


async def test_r22_a_skip_is_tried_first_and_reads_no_chain(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await line()
    await cached(here, *steps(*range(1, 40)))
    whole, sent = Connection.rows, list[str]()

    async def noting(connection: Connection, sql: str, *more: Any) -> Any:
        sent.append(sql)
        return await whole(connection, sql, *more)

    monkeypatch.setattr(Connection, "rows", noting)
    answer = await ask(here)
    assert answer.decision is Decision.SKIPPED
    assert not [sql for sql in sent if "FROM event" in sql]
    of_a_skip = list(sent)
    # However long the chain is, the same statements; a fold sends these and more.
    await here.write(*steps(*range(40, 80), after=39))
    sent.clear()
    assert await decided(here) is Decision.CHAIN_ADVANCED
    assert sent[: len(of_a_skip) - 1] == of_a_skip[:-1], "all but the commit"
    assert [sql for sql in sent if "FROM event" in sql]
    sent.clear()
    assert await decided(here) is Decision.SKIPPED
    assert sent == of_a_skip


# -- no false divergence


async def test_a_poll_that_keeps_stored_rows_to_itself_is_no_miss_for_the_next(line: Line) -> None:
    """A lane that remembers too much asks the store which keys are missing: it passes the others by."""
    here = await line()
    await cached(here, *steps(1, 2))
    here.commit(*steps(3, after=2))
    await here.judge(E)
    await here.deliver(began_at=None)
    await here.deliver()
    assert here.certified.take().divergences == 0
    assert await decided(here) is Decision.SKIPPED


async def test_what_a_live_batch_reads_by_itself_is_not_watched(line: Line) -> None:
    """A row without a place was delivered live; the lane does not bring it again."""
    here = await line(comparing=False, limits=Limits(pool=1))
    await cached(here, *steps(1, 2))
    here.commit(*steps(3, after=2))
    await here.write(*steps(4, 5, after=3))
    assert await here.stored(E) == [1, 2], "one waits, one has no place"
    await here.deliver()
    assert await here.stored(E) == [1, 2, 3, 4, 5]
    await here.deliver()
    assert here.certified.take().divergences == 0


async def test_what_was_shown_before_a_bar_ended_is_not_watched(line: Line) -> None:
    """The live lane brought it while the execution was barred; a restart forgets that it did."""
    here = await line()
    await cached(here, *steps(1, 2))
    right = here.log[E][1]
    await here.write(step(1, None, at="2023-11-14T22:13:21"))
    await here.judge(E)
    assert (await here.partition(E)).revoked_at is not None
    await here.write(*steps(3, after=2))
    await here.judge(E)
    await here.restart()
    here.commit(right)
    await here.judge(E)
    await here.judge(E)
    assert (await here.partition(E)).revoked_at is None
    assert await here.stored(E) == [1, 2, 3]
    await here.deliver()
    assert here.certified.take().divergences == 0


async def test_what_the_live_lane_brings_itself_is_not_looked_into(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await line()
    asked: list[str] = []
    whole = sidecar.certified.created_at

    def noting(body: str) -> int | None:
        asked.append(body)
        return whole(body)

    monkeypatch.setattr(sidecar.certified, "created_at", noting)
    await here.write(*steps(1, 2))
    await here.write(*steps(3, 4, after=2))
    assert asked == []
    await here.deliver(*here.commit(*steps(5, after=4)), lane="late")
    assert len(asked) == 1


# -- nothing is kept that should not be


async def test_i42_the_live_path_keeps_no_more_than_the_bound(line: Line) -> None:
    here = await line()
    executions = range(E, E + TRACKED_MAX + 30)
    await here.write(*(ev(1, execution_id=execution) for execution in executions))
    assert here.certified.tracked == TRACKED_MAX
    for execution in (executions[0], executions[-1]):
        assert (await here.certified.state(here.store, execution)).state is not None
    assert here.certified.tracked == TRACKED_MAX
    kept = here.certified._certificates
    assert kept.state(executions[0]) is not None
    assert kept.state(executions[31]) is None, "it made room"
    assert here.certified.take().divergences == 0


async def test_what_a_terminal_of_a_comparators_read_ends_is_not_kept(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    here.commit(step(3, 2, "playbook.completed"))
    await here.judge(E)
    assert here.certified.tracked == 0
    answer = await ask(here)
    assert answer.state is not None
    assert answer.certificate is None
    assert here.certified.tracked == 0


async def test_a_state_says_the_same_with_the_gate_on_and_off(line: Line, tmp_path: Path) -> None:
    """Every table of the store, not only the events, and what is served."""
    (tmp_path / "off").mkdir()
    on, off = await line(), await Scripted.open(tmp_path / "off", cert=False, projecting=True)
    try:
        for here in (on, off):
            await here.write(*steps(10, 30, 20))
            await here.write(step(5, None, at=NOW_TEXT))
            await here.judge(E)
            await ask(here)
        assert await everything(on) == await everything(off)
    finally:
        await off.store.close()


async def everything(here: Scripted) -> dict[str, list[Any]]:
    """All rows of all tables, without times."""
    tables = await here.store.query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
    found = {}
    for (table,) in tables:
        columns = [row[1] for row in await here.store.query(f"PRAGMA table_info({table})")]
        kept = [name for name in columns if not name.endswith(("_at", "reread", "high", "evidence"))]
        found[table] = sorted(await here.store.query(f"SELECT {', '.join(kept)} FROM {table}"), key=repr)
    return found
