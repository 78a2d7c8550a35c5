"""A sidecar that stands still between a read and its transaction: an epoch lived while it was read.

Rows seen shortly before the server's end are lost with it, however long this process slept since.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.core.due import SECOND
from sidecar.core.resolve import CRASH_LOSS
from sidecar.core.verdict import Verdict
from sidecar.store.clock import StoreClock
from tests.support.scripted import Scripted
from tests.unit.core.build import E, chain, ev

OTHER = E + 1


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Scripted]:
    scripted = await Scripted.open(tmp_path)
    yield scripted
    await scripted.store.close()


async def _sleep(line: Scripted) -> None:
    """The process is stopped, and goes on when what a server may lose is long past."""
    clock = line.store.clock
    assert isinstance(clock, StoreClock)
    clock._offset += CRASH_LOSS + SECOND


async def _verdict_after_a_crash(line: Scripted) -> Verdict:
    line.epoch = "epoch-2"
    del line.log[E][3]
    return (await line.judge(E)).judged[-1].judgement.verdict


async def test_between_a_poll_and_its_transaction(line: Scripted) -> None:
    await line.write(*chain(1, 2, 3), ev(1, execution_id=OTHER))
    reads = len(line.reads)
    batch = line.batch(*line.commit(ev(2, 1, execution_id=OTHER)))
    await _sleep(line)
    await line.feed.take(batch)
    assert len(line.reads) == reads, "no later read said that the epoch lived"
    assert await _verdict_after_a_crash(line) is Verdict.LOG_LOST


async def test_between_a_poll_without_rows_and_its_transaction(line: Scripted) -> None:
    await line.write(*chain(1, 2, 3))
    batch = line.batch()
    await _sleep(line)
    await line.feed.take(batch)
    assert await _verdict_after_a_crash(line) is Verdict.LOG_LOST


async def test_between_a_comparison_s_read_and_its_transaction(line: Scripted) -> None:
    await line.write(*chain(1, 2, 3))
    await line.write(ev(1, execution_id=OTHER))

    slept: list[int] = []

    async def sleep() -> None:
        slept.append(len(line.reads))
        await _sleep(line)

    line.after_read = sleep
    await line.judge(OTHER)
    assert slept == [len(line.reads)], "it stood still after the last read"
    assert await _verdict_after_a_crash(line) is Verdict.LOG_LOST


async def test_a_poll_that_came_later_says_that_the_epoch_lived(line: Scripted) -> None:
    """Then the row was on the disk long since, and no end took it along."""
    await line.write(*chain(1, 2, 3))
    await _sleep(line)
    await line.feed.take(line.batch())
    assert await _verdict_after_a_crash(line) is Verdict.SECOND_WRITER
