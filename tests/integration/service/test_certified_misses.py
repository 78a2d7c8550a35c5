"""What the live lane should have shown and did not: a miss ends all skips, nothing else does.

Feed, comparator and store are the real ones; the log and the lanes are the test's.  Source: spec 4.5.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.core.certificate import Decision
from sidecar.core.settle import Limits
from tests.support.certified import BEFORE_TEXT, Line, ask, cached, decided, lines, step, steps
from tests.support.changing import replace
from tests.unit.core.build import E


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    async with lines(tmp_path) as start:
        yield start


async def test_r19_a_row_withheld_from_the_live_lane_is_a_miss_at_its_next_poll(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    withheld = here.commit(*steps(3, after=2))
    await here.deliver(*withheld, lane="late")
    assert here.certified.take().divergences == 0
    await here.deliver()
    assert here.certified.take().divergences == 1
    assert await decided(here) is Decision.DIVERGENCE_DETECTED


async def test_a_row_that_the_comparator_found_first_is_ticked_off_by_the_next_live_poll(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    found = here.commit(*steps(3, after=2))
    await here.judge(E)
    await here.deliver(*found)
    await here.deliver()
    assert here.certified.take().divergences == 0
    assert (await ask(here)).state is not None


async def test_a_live_poll_that_was_under_way_proves_nothing(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    under_way = here.batch()
    found = here.commit(*steps(3, after=2))
    await here.judge(E)
    await here.feed.take(under_way)
    assert here.certified.take().divergences == 0
    await here.deliver(*found)
    await here.deliver()
    assert here.certified.take().divergences == 0


async def test_a_row_that_waits_through_the_live_lane_is_not_watched(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    here.commit(*steps(3, after=2))
    await here.write(*steps(4, after=3))  # waits; another lane had it before or not
    await here.judge(E)
    assert len((await here.guarded(E)).events or ()) == 4
    await here.deliver(*[here.log[E][3]])
    await here.deliver()
    assert here.certified.take().divergences == 0


async def test_a_row_delivered_live_behind_another_lane_is_not_watched(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    gap = here.commit(*steps(3, after=2))
    waiting = here.commit(*steps(4, after=3))
    await here.deliver(*waiting, lane="late")
    await here.deliver(*waiting)  # the same version: known, and yet the live lane has shown it
    await here.judge(E)
    await here.deliver(*gap)
    await here.deliver()
    assert here.certified.take().divergences == 0


async def test_a_row_that_the_process_before_may_have_been_shown_is_not_watched(line: Line) -> None:
    """What waited was known to that process alone; the live lane goes on behind it."""
    here = await line()
    await cached(here, *steps(1, 2))
    await here.restart()
    await here.deliver(*here.commit(step(3, 2, at=BEFORE_TEXT)), lane="late")
    assert await here.stored(E) == [1, 2, 3]
    await here.deliver()
    assert here.certified.take().divergences == 0
    # What is created from then on is awaited.
    await here.deliver(*here.commit(*steps(4, after=3)), lane="late")
    await here.deliver()
    assert here.certified.take().divergences == 1


async def test_a_poll_that_shows_another_tree_may_have_passed_rows_by(line: Line) -> None:
    """A partition was detached and attached again: its rows come one poll later, or by the sweep."""
    here = await line()
    await cached(here, *steps(1, 2))
    await here.deliver(*here.commit(*steps(3, after=2)), lane="late")
    moved = here.batch()
    assert moved.cursor is not None
    await here.feed.take(replace(moved, cursor=replace(moved.cursor, tree="another tree")))
    assert here.certified.take().divergences == 0
    for _ in range(2):  # back on the first tree, which is another one again
        await here.deliver()
    await here.deliver(*here.commit(*steps(4, after=3)), lane="late")
    await here.deliver()
    assert here.certified.take().divergences == 1, "it asks again"


async def test_a_row_deleted_before_the_live_poll_cannot_be_told_from_a_missed_one(line: Line) -> None:
    """So it ends all skips: that costs folds, and nothing unseen is skipped over."""
    here = await line()
    await cached(here, *steps(1, 2))
    here.commit(*steps(3, after=2))
    await here.judge(E)
    assert await here.stored(E) == [1, 2, 3]
    del here.log[E][3]
    await here.deliver()
    assert here.certified.take().divergences == 1
    assert await decided(here) is Decision.DIVERGENCE_DETECTED


async def test_a_row_that_found_no_place_is_not_watched(line: Line) -> None:
    here = await line(limits=Limits(pool=1))
    await cached(here, *steps(1, 2))
    here.commit(*steps(3, after=2))
    await here.write(*steps(4, 5, after=3))  # one waits, one overflows: the log is to be read again
    await here.judge(E)
    assert len((await here.guarded(E)).events or ()) == 5
    await here.deliver()
    assert here.certified.take().divergences == 0


async def test_a_row_outside_the_live_range_is_no_miss(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    old = here.commit(step(3, 2, at="2023-11-14T22:00:00"))
    await here.deliver(*old, lane="late")
    await here.deliver()
    assert here.certified.take().divergences == 0


async def test_a_late_start_is_no_miss(line: Line) -> None:
    here = await line()
    here.commit(*steps(1, 2))
    await here.sweep(E)
    await here.deliver()
    assert here.certified.take().divergences == 0
    assert await decided(here) is Decision.UNCALIBRATED
