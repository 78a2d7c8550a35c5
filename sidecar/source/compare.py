"""Log against store by (count, exact sum of event ids) of each execution.

Which executions differ is computed from an index on one side and the store's own sums on the
other; only those are read.  A changed body under the same ids does not show here: that is the
audit's.  What the store has and the log lacks is looked up again before it is named: a row may
have been committed, and stored by another lane, between the two counts.
Source: spec 1.8 ("For the sweep that restart is a comparison").
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from sidecar.core.horizon import Facts
from sidecar.core.ports import ExecutionLog, StoredKeys
from sidecar.source.log import Counted, PostgresLog
from sidecar.source.options import Shard
from sidecar.source.scan import BatchSize, chunks, read_counted

_LACKING_AT_ONCE: Final = 1000

Sums = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A range of execution ids, both ends included, of one log and one store."""

    log: PostgresLog
    store: StoredKeys
    shard: Shard
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a comparison.  `facts`: of the counting statement it belongs to.

    `logs`: executions that differ, whole.  `gone`: executions of which the store has more rows
    than the log, or all.
    """

    facts: Facts
    logs: tuple[ExecutionLog, ...] = ()
    gone: tuple[int, ...] = ()


async def compared(over: Comparison) -> AsyncGenerator[Step, None]:
    """Compare; every chunk of counts gives at least one step, an empty one where both agree.

    Raises:
        SourceError: a read failed; the steps yielded so far stand.
    """
    size = BatchSize()
    async with aclosing(chunks(over.log, over.low, over.high)) as counting:
        async for counted, (low, high) in counting:
            yield Step(counted.facts)
            stored = await over.store.sums(low, high)
            differing = [c for c in counted.counts if stored.get(c.execution_id) != (c.rows, c.id_sum)]
            async with aclosing(read_counted(over.log, counted, differing, size)) as reads:
                async for logs in reads:
                    yield Step(counted.facts, tuple(logs), _short(logs, stored))
            async with aclosing(_lacking(over, counted, stored)) as steps:
                async for step in steps:
                    yield step


async def _lacking(over: Comparison, counted: Counted, stored: Sums) -> AsyncGenerator[Step, None]:
    """The executions of which the log has no row."""
    present = {count.execution_id for count in counted.counts}
    lacking = sorted(stored.keys() - present)
    for start in range(0, len(lacking), _LACKING_AT_ONCE):
        ids = await over.log.ours(lacking[start : start + _LACKING_AT_ONCE])
        logs = await over.log.read(ids)
        back = tuple(log for log in logs if log.events is None or log.events)
        yield Step(counted.facts, back, _short(logs, stored))


def _short(logs: Sequence[ExecutionLog], stored: Sums) -> tuple[int, ...]:
    return tuple(log.execution_id for log in logs if _is_short(log, stored))


def _is_short(log: ExecutionLog, stored: Sums) -> bool:
    rows, _ = stored.get(log.execution_id, (0, 0))
    return log.events is not None and len(log.events) < rows
