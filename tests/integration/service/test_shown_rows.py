"""What a log read has shown, a flag has asked or a newer version has brought is never forgotten.

Each test puts an older read against something that came meanwhile.  Source: spec 1.8, 2.12.
"""

from __future__ import annotations

import sqlite3

import pytest

from sidecar.core.due import SECOND, Windows
from sidecar.core.settle import Limits
from sidecar.core.verdict import Verdict
from sidecar.store import ChainStore
from sidecar.store.overview import coverage
from tests.integration.service.test_feed_rules import Line, line, matched
from tests.unit.core.build import E, chain, ev

__all__ = ["line"]


async def test_a_row_that_only_the_sweep_has_shown_outlives_an_older_match(line: Line) -> None:
    """H may pass a row only when stored or in due."""
    here = await line()
    await matched(here, 1)

    async def meanwhile() -> None:
        here.commit(ev(3, 2))  # visible after the comparator's read
        await here.sweep(E)  # the sweep's whole read shows it; its cursor moves in this batch
        assert (await here.partition(E)).held == 1
        assert await here.due(E) is not None

    here.after_read = meanwhile
    await here.judge(E)
    assert await here.due(E) is not None, "row 3: neither stored nor in due"
    assert (await here.guarded(E)).events is None


async def test_a_divergence_that_the_sweep_met_outlives_an_older_match(line: Line) -> None:
    here = await line()
    await matched(here, 1, 2)

    async def meanwhile() -> None:
        here.commit(ev(2, 1, note="changed"), ev(3, 2))
        await here.sweep(E)
        assert (await here.guarded(E)).events is None
        assert (await here.partition(E)).coverage is None

    here.after_read = meanwhile
    await here.judge(E)
    assert (await here.guarded(E)).events is None
    assert await here.due(E) is not None


async def test_an_execution_that_is_gone_outlives_an_older_match(line: Line) -> None:
    here = await line()
    await matched(here, 1, 2)

    async def meanwhile() -> None:
        here.log.clear()
        await here.sweep(gone=(E,))

    here.after_read = meanwhile
    await here.judge(E)
    assert await here.due(E) is not None, "the log no longer has it, and nobody will ask"


async def test_a_cut_read_of_the_sweep_outlives_an_older_match(line: Line) -> None:
    here = await line(limits=Limits(read=3))
    await matched(here, 1, 2)

    async def meanwhile() -> None:
        here.commit(ev(3, 2))
        await here.sweep(E)
        assert (await here.partition(E)).held == 1

    here.after_read = meanwhile
    await here.judge(E)
    assert await here.due(E) is not None
    assert (await here.guarded(E)).events is None


async def test_a_shown_row_and_a_pooled_one_are_two(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    here.commit(ev(9, 8))
    logs = (here.whole(E),)  # the sweep's read: {1, 9}
    await here.write(ev(3, 2))  # the live lane: waits for 2
    await here.deliver(lane="sweep:1:1", logs=logs)
    await here.write(ev(2, 1))
    assert await here.stored(E) == [1, 2, 3]
    assert (await here.guarded(E)).events is None, "row 9 was shown and is not stored"


async def test_a_newer_version_in_the_pool_flags_what_an_older_read_has_stored(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    here.commit(ev(2, 1), ev(3, 2))

    async def meanwhile() -> None:
        await here.write(ev(3, 2, note="v2"))  # pooled: 2 was not delivered yet

    here.after_read = meanwhile
    await here.judge(E)
    await here.due(E)
    assert (await here.guarded(E)).events is None, "a delivered version differs from the stored one"


async def test_a_changed_row_stays_flagged_when_the_log_is_cut(line: Line) -> None:
    here = await line()
    await matched(here, 1, 2, 3)
    await here.restart(limits=Limits(read=3))
    await here.write(ev(2, 1, note="changed"))
    assert (await here.guarded(E)).reason == "rows_held_back"
    await here.tick()
    assert (await here.guarded(E)).events is None


async def test_coverage_counts_what_a_catch_up_refused(line: Line) -> None:
    here = await line()
    here.commit(*chain(1, 2))
    here.commit(ev(1, execution_id=E + 1), ev(2, execution_id=E + 1))
    here.commit(ev(1, execution_id=E + 2), ev(3, 2, execution_id=E + 2))
    await here.sweep(E, E + 1, E + 2)
    await here.tick()
    now = here.store.clock.now()
    found = await coverage(here.store, since=0, unjudged_before=now)
    assert found.eligible_executions == 2  # one match, one refused_multiple_roots


async def test_coverage_counts_what_was_too_long_to_read(line: Line) -> None:
    here = await line(limits=Limits(read=3))
    here.commit(*chain(1, 2, 3, 4))
    await here.sweep(E)
    await here.tick()
    found = await coverage(here.store, since=0, unjudged_before=here.store.clock.now())
    assert found.eligible_executions == 1


async def test_a_flagged_entry_backs_off_like_any_other(line: Line) -> None:
    here = await line(windows=Windows(tick=3600 * SECOND, settle=3600 * SECOND, dangling=3600 * SECOND))
    await here.write(ev(1), ev(3, 2))
    await here.restart()
    for _n in range(3):
        await here.tick()
    assert not await here.is_due(E), "judged by a read that began after the flag: back-off"


async def test_entries_that_linger_do_not_end_the_tick(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.comparator.loop.EXECUTIONS_MAX", 1)
    here = await line(windows=Windows(tick=1, settle=3600 * SECOND, dangling=3600 * SECOND))
    a, b = E, E + 1
    await here.write(ev(1, execution_id=b), ev(3, 2, execution_id=b))
    for _n in range(26):
        await here.judge(b)  # backs off: 1us << 25
    await here.write(ev(1, execution_id=a), ev(3, 2, execution_id=a))
    await here.restart()
    judged = [j.judgement.execution_id for j in (await here.tick()).judged]
    assert b in judged


async def test_a_refused_gap_does_not_open_its_window_again_with_every_row(line: Line) -> None:
    here = await line(windows=Windows(tick=1, settle=0, dangling=50_000))
    await here.write(ev(1), ev(3, 2))
    for _ in range(1000):
        report = await here.tick()
        if [j.judgement.verdict for j in report.judged] == [Verdict.REFUSED_DANGLING_PREV]:
            break
    assert (await here.partition(E)).verdict == Verdict.REFUSED_DANGLING_PREV
    await here.write(ev(4, 3))
    await here.tick()
    report = await here.judge(E)
    assert report.judged[0].judgement.verdict == Verdict.REFUSED_DANGLING_PREV


async def test_a_newer_version_takes_the_place_of_the_pooled_one_though_there_is_no_room(line: Line) -> None:
    here = await line(limits=Limits(pool_total=2))
    await matched(here, 1)
    await here.write(ev(1, execution_id=E + 1))
    await here.write(ev(3, 2))
    await here.write(ev(3, 2, execution_id=E + 1))
    await here.write(ev(3, 2, note="v2"))  # no room: ignored
    here.commit(ev(2, 1, execution_id=E + 1))
    await here.judge(E + 1)  # frees a place
    await here.write(ev(2, 1))
    await here.due(E)
    assert (await here.guarded(E)).events is None or "v2" in (await here.store.chain(E))[2].body


async def test_the_clock_stays_ahead_of_what_the_start_has_flagged(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    await here.write(ev(3, 2))
    await here.restart()
    due = await here.due(E)
    await here.store.close()
    con = sqlite3.connect(here.path)
    (high,) = con.execute("SELECT high FROM sequence WHERE dataset='clock'").fetchone()
    con.close()
    here.store = await ChainStore.open(str(here.path))
    assert due is not None
    assert due.reread is not None
    assert high >= due.reread


async def test_a_row_that_uses_a_refused_xid_again_after_a_crash_is_new(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    old = ev(2)
    await here.write(old)
    await here.tick()
    await here.tick()
    assert (await here.partition(E)).label == "multiple_roots"
    assert await here.due(E) is None
    here.epoch = "epoch-2"  # the crash took row 2 along; it is written again
    new = ev(2, 1)
    here.log[E][2] = new
    here._xmins[new] = here._xmins[old]
    await here.deliver(new)
    assert await here.due(E) is not None


async def test_rows_that_came_meanwhile_wait_for_settle_flag_or_not(line: Line) -> None:
    here = await line(windows=Windows(tick=1, settle=3600 * SECOND, dangling=0))
    await here.write(ev(1), ev(3, 2))
    await here.restart()

    async def meanwhile() -> None:
        await here.write(ev(4, 3))

    here.after_read = meanwhile
    await here.tick()
    assert not await here.is_due(E), "settle later"


async def test_an_older_read_of_the_sweep_does_not_unhold_a_newer_refusal(line: Line) -> None:
    """Other order: the sweep's read is the older one, the comparator's the newer."""
    here = await line()
    await matched(here, 1)
    older = (here.whole(E),)
    here.commit(ev(3, 2))  # no lane has delivered it
    await here.judge(E)
    assert (await here.guarded(E)).events is None
    await here.deliver(lane="sweep:1:1", logs=older)
    assert (await here.guarded(E)).events is None


async def test_a_pending_verdict_leaves_an_entry_though_there_was_none(line: Line) -> None:
    here = await line()
    await matched(here, 1)
    here.commit(ev(3, 2))
    await here.judge(E)  # `judge` without an entry: pending, kept by nobody
    assert await here.due(E) is not None
