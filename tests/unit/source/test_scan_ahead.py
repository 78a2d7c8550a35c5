"""One batch is read while the one before it is stored: not two, and none is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, cast

import pytest

from sidecar.core.event import Event
from sidecar.core.horizon import Facts
from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog
from sidecar.errors import SourceUnavailable
from sidecar.source.log import Count, Counted, PostgresLog, TooManyBytes
from sidecar.source.scan import BatchSize, read_counted

ROWS = 600
COUNTED = Counted(
    Facts(1, 1, "epoch", "tree", 1), 1, tuple(Count(execution_id, ROWS, 0) for execution_id in range(1, 5))
)


class FakeLog:
    """Answers one execution a read, each of ROWS rows; notes what began and what ended."""

    read_limit = 10_000

    def __init__(self, *, fails_at: int | None = None, fits: int = 10) -> None:
        self.began: list[int] = []
        self.ended: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._fails_at = fails_at
        self._fits = fits

    async def read_range(self, low: int, high: int, ids: Sequence[int], **_: Any) -> list[ExecutionLog]:
        if len(ids) > self._fits:
            raise TooManyBytes
        self.began.append(low)
        await self.gate.wait()
        if low == self._fails_at:
            raise SourceUnavailable("gone")
        self.ended.append(low)
        return [ExecutionLog(i, (Event(i, 1, None, None, "", "x" * 20_000),) * ROWS, LogRead(1)) for i in ids]


def _batches(log: FakeLog) -> Any:
    return read_counted(cast("PostgresLog", log), COUNTED, COUNTED.counts, BatchSize())


async def _turn() -> None:
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_next_batch_is_read_while_the_consumer_works_and_only_that_one() -> None:
    log = FakeLog()
    async with aclosing(_batches(log)) as batches:
        seen = [each.execution_id async for logs in batches for each in await _worked(logs, log)]
    assert seen == [1, 2, 3, 4]
    assert log.ended == [1, 2, 3, 4]


async def _worked(logs: list[ExecutionLog], log: FakeLog) -> list[ExecutionLog]:
    await _turn()
    (mine,) = (each.execution_id for each in logs)
    assert log.began == list(range(1, min(mine + 1, 4) + 1))
    return logs


async def test_a_consumer_that_goes_away_leaves_no_read_behind() -> None:
    log = FakeLog()
    batches = _batches(log)
    await anext(batches)
    log.gate.clear()
    await _turn()
    assert log.began == [1, 2]
    await batches.aclose()
    assert log.ended == [1]
    assert len(asyncio.all_tasks()) == 1


async def test_a_read_that_fails_is_told_when_its_turn_comes() -> None:
    log = FakeLog(fails_at=2)
    batches = _batches(log)
    assert [each.execution_id for each in await anext(batches)] == [1]
    await _turn()  # it has failed by now, and the batch before it stands
    with pytest.raises(SourceUnavailable):
        await anext(batches)


async def test_a_failure_that_nobody_asks_for_is_no_warning() -> None:
    log = FakeLog(fails_at=2)
    batches = _batches(log)
    await anext(batches)
    await _turn()
    await batches.aclose()
    assert len(asyncio.all_tasks()) == 1


async def test_a_read_that_grows_too_large_is_halved_until_it_fits() -> None:
    log = FakeLog(fits=1)
    size = BatchSize()
    size.rows = 4 * ROWS
    reads = read_counted(cast("PostgresLog", log), COUNTED, COUNTED.counts, size)
    assert [each.execution_id for logs in [logs async for logs in reads] for each in logs] == [1, 2, 3, 4]
