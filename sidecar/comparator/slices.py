"""Walk the union of log and store in slices of bounded work.

First the numbers of rows, from an index on each side, a page of executions at a time; they say
where a slice ends, so that no statement reads more rows than it should, also where one side has
much and the other nothing (a dropped partition).  A slice holds one execution at least.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.abandoned import abandoned
from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.ports import LogSummer, StoredSummer
from sidecar.core.sums import NOTHING, StoredSums, Sums

PAGE_EXECUTIONS: Final = 1000
Counts = Sequence[tuple[int, int]]


@dataclass(slots=True)
class SliceSize:
    """How many rows of both sides together the next slice may have."""

    rows: int

    def halve(self, rows: int) -> None:
        """A slice of `rows` rows was too large."""
        self.rows = max(1, min(self.rows, rows) // 2)


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of execution ids, both ends included, with what the counts said of it.

    `executions`: those that either side knows.  `truncated`: those with as many rows in the
    log as a read may return; they are not summed.
    """

    low: int
    high: int
    executions: tuple[int, ...]
    truncated: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides of one execution; `log` None: truncated, so not summed."""

    execution_id: int
    log: Sums | None
    stored: StoredSums


async def slices(
    log: LogSummer, store: StoredSummer, size: SliceSize, low: int = ID_MIN, high: int = ID_MAX
) -> AsyncGenerator[Slice, None]:
    """The slices of a range, ascending, without a hole from `low` to `high`.

    Raises:
        SourceError, StoreError: a count failed; what was yielded stands.
    """
    at = low
    while at <= high:
        logged = await log.counts(at, high, PAGE_EXECUTIONS)
        stored = await store.counts(at, high, PAGE_EXECUTIONS)
        end = min(_end(logged, high), _end(stored, high))
        # A store may hold what falls to another shard; of the log's side only ours is counted.
        ours = {*await log.ours([execution_id for execution_id, _ in stored])}
        stored = [count for count in stored if count[0] in ours]
        for cut in _cut(logged, stored, at, end, size, log.read_limit):
            yield cut
        at = end + 1


def _end(counts: Counts, high: int) -> int:
    """Up to where a page of counts is the whole truth."""
    return counts[-1][0] if len(counts) == PAGE_EXECUTIONS else high


def _cut(logged: Counts, stored: Counts, low: int, high: int, size: SliceSize, limit: int) -> Iterator[Slice]:
    in_log = {execution_id: rows for execution_id, rows in logged if execution_id <= high}
    in_store = {execution_id: rows for execution_id, rows in stored if execution_id <= high}
    truncated = {execution_id for execution_id, rows in in_log.items() if rows >= limit}
    taken: list[int] = []
    weight = 0
    for execution_id in sorted(in_log.keys() | in_store.keys()):
        read = 0 if execution_id in truncated else in_log.get(execution_id, 0)
        rows = read + in_store.get(execution_id, 0)
        if taken and weight + rows > size.rows:
            yield _slice(low, execution_id - 1, taken, truncated, weight)
            low, taken, weight = execution_id, [], 0
        taken.append(execution_id)
        weight += rows
    yield _slice(low, high, taken, truncated, weight)


def _slice(low: int, high: int, taken: Sequence[int], truncated: Collection[int], rows: int) -> Slice:
    return Slice(low, high, tuple(taken), tuple(i for i in taken if i in truncated), rows)


async def pairs(log: LogSummer, store: StoredSummer, cut: Slice) -> list[Pair]:
    """Both sides of every execution of a slice, ascending.

    They are summed at the same time: Postgres and SQLite then work side by side.  What is being
    written meanwhile may differ and has to be looked at again.

    Raises:
        SourceError, StoreError: a side could not be summed; it says nothing about the other.
    """
    storing = asyncio.ensure_future(store.between(cut.low, cut.high))
    try:
        logged = await log.between(cut.low, cut.high, cut.truncated)
    except BaseException:
        await abandoned(storing)
        raise
    stored = await storing
    unheard = [i for i in stored if i not in logged and i not in cut.executions]
    ours = {*cut.executions, *logged, *await log.ours(unheard)}
    truncated = {*cut.truncated, *(i for i, sums in logged.items() if sums.rows >= log.read_limit)}
    return [
        Pair(i, None if i in truncated else logged.get(i, NOTHING), stored.get(i, StoredSums()))
        for i in sorted(ours)
    ]
