"""One shot over the log: every execution compared once, with a temporary store or a given one.

Temporary: each execution is populated, read back guarded and compared, through the very hold
that the live comparator uses, with windows of zero.  Given: the store is only read, over the
union of both sides.  Where the sums of both sides agree nothing more has to be read; elsewhere
the raw chain is compared with the log by the rows of spec 2.8 without writing, and what the
store lacks is `behind`.

What is not good at first sight is read once more after the settle time, so that a live server
is not reported for what the next moment heals.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol

from sidecar.comparator.findings import GOOD
from sidecar.comparator.hold import UNTOLD, by_execution
from sidecar.comparator.loop import Comparator
from sidecar.comparator.nopools import NoPools
from sidecar.comparator.report import TickReport
from sidecar.comparator.slices import Pair, SliceSize, pairs, slices
from sidecar.core.authority import StoredEvent, is_contiguous
from sidecar.core.compare import compare
from sidecar.core.due import Windows
from sidecar.core.exclusion import NOBODY, Exclusion
from sidecar.core.judge import judge_absent, judge_read_only
from sidecar.core.populate import LogRead, plan
from sidecar.core.ports import (
    BoundedReader,
    EpochSpan,
    ExecutionLog,
    LogReader,
    LogSummer,
    Store,
    StoredSummer,
)
from sidecar.core.rejoin import InOrder, Join, Joined, Joins, chain_order, is_withdrawn, parted
from sidecar.core.resolve import Explained, resolve
from sidecar.core.sums import agree
from sidecar.core.verdict import Judgement, Verdict
from sidecar.errors import PartitionUnreadable, SourceUnavailable

ONE_SHOT = Windows(tick=1, settle=0, dangling=0, lookback=0, stale_max_ticks=1)
"""Nothing is pending in a one-shot verification after its settle time."""

Judge = Callable[[Sequence[ExecutionLog]], Awaitable[list[Judgement]]]

Logs = AsyncGenerator[Sequence[ExecutionLog], None]

READ_MAX: Final = 64
"""Executions of one read row by row."""
SLICE_ROWS: Final = 20_000
"""Rows of both sides that one step of a comparison by sums takes."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some executions: judged already, or read and to be judged."""

    judged: Sequence[Judgement] = ()
    logs: Sequence[ExecutionLog] = ()


Parts = AsyncGenerator[Part, None]


async def verify(
    parts: Parts,
    judge: Judge,
    reader: BoundedReader,
    record: Callable[[Sequence[Judgement]], None],
    *,
    settle_s: float,
) -> None:
    """Judge every execution of `parts`; what is not good is read and judged again after `settle_s`.

    Args:
        record: Takes final judgements as they come.

    Raises:
        SourceError: the log could not be read to its end; what was recorded stands.
    """
    loop = asyncio.get_running_loop()
    later: list[int] = []
    open_since = loop.time()
    async with aclosing(parts):
        async for part in parts:
            record(part.judged)
            judgements = await judge(part.logs) if part.logs else []
            if settle_s:
                later += [j.execution_id for j in judgements if j.verdict not in GOOD]
                judgements = [j for j in judgements if j.verdict in GOOD]
                open_since = loop.time()
            record(judgements)
    if later:
        await asyncio.sleep(max(0.0, open_since + settle_s - loop.time()))
    async with aclosing(_read(reader, later)) as batches:
        async for logs in batches:
            record(await judge(logs))


async def _read(reader: BoundedReader, execution_ids: Sequence[int]) -> Logs:
    """Some executions, row by row, as many at once as a bounded read holds."""
    rest = list(execution_ids)
    while rest:
        logs = await reader.read_some(rest[:READ_MAX])
        del rest[: len(logs)]
        yield logs


async def read_whole(logs: Logs) -> Parts:
    """Every execution of `logs` row by row."""
    async with aclosing(logs):
        async for batch in logs:
            yield Part(logs=batch)


def against_temporary(store: Store, reader: LogReader, exclusion: Exclusion = NOBODY) -> Judge:
    """Judge by populating `store`, which must be nobody else's."""
    comparator = Comparator(store, reader, NoPools(), ONE_SHOT, exclusion=exclusion)

    async def judge(logs: Sequence[ExecutionLog]) -> list[Judgement]:
        report = TickReport()
        await comparator.judge_logs(logs, report)
        return [judged.judgement for judged in report.judged]

    return judge


class RawStore(Protocol):
    """A store that is only read."""

    async def chains(self, execution_ids: Sequence[int]) -> Mapping[int, tuple[StoredEvent, ...]]:
        """The raw rows of those executions that have any."""
        ...

    async def epochs(self) -> tuple[EpochSpan, ...]: ...

    @property
    def rejoining(self) -> bool:
        """Whether its joins order a chain."""
        ...

    async def joins_of(self, execution_ids: Sequence[int]) -> Mapping[int, tuple[Join, ...]]:
        """What it keeps of those executions, with the proof of each."""
        ...


async def by_sums(
    log: LogSummer, store: StoredSummer, reader: BoundedReader, exclusion: Exclusion = NOBODY
) -> Parts:
    """The union of log and store; only executions whose sums do not agree are read.

    Equal sums and a stored chain that is whole by its own links say that the log is that one
    chain, so nothing that 2.7 refuses is passed: a store that holds such rows holds no whole chain.
    """
    size = SliceSize(SLICE_ROWS)
    async with aclosing(slices(log, store, size)) as cuts:
        async for cut in cuts:
            try:
                found = await pairs(log, store, cut)
            except SourceUnavailable:
                # Too much for its deadline; if it was the server, the next read says so.
                size.halve(cut.rows)
                differing: Sequence[int] = cut.executions
            else:
                equal = [pair for pair in found if pair.stored.sums.rows and agree(pair.log, pair.stored)]
                passed = {pair.execution_id for pair in equal}
                left_out = await _left_out(store, passed, exclusion)
                yield Part(judged=[_matched(pair) for pair in equal if pair.execution_id not in left_out])
                differing = [pair.execution_id for pair in found if pair.execution_id not in passed]
            yield Part(logs=[ExecutionLog(i, None, LogRead(0)) for i in cut.truncated])
            readable = [i for i in differing if i not in cut.truncated]
            async with aclosing(_read(reader, readable)) as batches:
                async for logs in batches:
                    yield Part(logs=logs)


async def _left_out(store: StoredSummer, execution_ids: set[int], exclusion: Exclusion) -> set[int]:
    if not exclusion:
        return set()
    starts = await store.starts(execution_ids)
    return {i for i, start in starts.items() if exclusion.covers((start,))}


def _matched(pair: Pair) -> Judgement:
    rows = pair.stored.sums.rows
    return Judgement(pair.execution_id, pair.stored.verdict, log_rows=rows, stored_rows=rows)


def against_store(store: RawStore, reader: LogReader, exclusion: Exclusion = NOBODY) -> Judge:
    """Judge the raw chains of `store`; nothing is written.

    The chains are read after the log, so a store that is being fed is not called behind for
    what came in between; what it has more is asked for once again.
    """

    async def judge(logs: Sequence[ExecutionLog]) -> list[Judgement]:
        logs = [log for log in logs if not exclusion.covers(log.events)]
        chains, failed = await _chains(store, [log.execution_id for log in logs])
        logs = [log for log in logs if log.execution_id not in failed]
        absent = {log.execution_id: log.absent(chains.get(log.execution_id, ())) for log in logs}
        asked = [i for i, rows in absent.items() if rows]
        again = by_execution(await reader.read(asked)) if asked else {}
        epochs = await store.epochs()
        joins = await store.joins_of([log.execution_id for log in logs]) if store.rejoining else {}
        unreadable = [Judgement(i, Verdict.ERROR, detail=why) for i, why in failed.items()]
        return unreadable + [
            _raw(chains.get(i, ()), again.get(i, log), absent[i], epochs, joins.get(i, ()))
            for i, log in by_execution(logs).items()
        ]

    return judge


async def _chains(
    store: RawStore, execution_ids: Sequence[int]
) -> tuple[Mapping[int, tuple[StoredEvent, ...]], dict[int, str]]:
    """The chains, and why a chain cannot be read by the executions of which that is so."""
    try:
        return await store.chains(execution_ids), {}
    except PartitionUnreadable as error:
        if len(execution_ids) == 1:
            return {}, {execution_ids[0]: str(error)}
    chains: dict[int, tuple[StoredEvent, ...]] = {}
    failed: dict[int, str] = {}
    for execution_id in execution_ids:
        chain, why = await _chains(store, (execution_id,))
        chains |= chain
        failed |= why
    return chains, failed


def _raw(
    stored: Sequence[StoredEvent],
    log: ExecutionLog,
    absent: Sequence[StoredEvent],
    epochs: Sequence[EpochSpan],
    joins: Joins,
) -> Judgement:
    """One verdict from a raw chain and a log read that began after it was read."""
    if log.events is None:
        return Judgement(log.execution_id, Verdict.LOG_TRUNCATED, stored_rows=len(stored))
    if log.untold(stored):
        return Judgement(log.execution_id, Verdict.LOG_READ_FAILED, stored_rows=len(stored), detail=UNTOLD)
    if absent:
        fresh = {event.event_id for event in log.events}
        root = stored[0].event.event_id
        answer = resolve(absent, fresh, root=root, epochs=epochs, read_epoch=log.read.epoch)
        if not isinstance(answer, Explained):
            return judge_absent(log.execution_id, answer, log_rows=len(log.events), stored_rows=len(stored))
    chain = tuple(row.event for row in stored)
    order = chain_order(log.events, joins)
    gap = not is_contiguous(stored)
    outcome = plan(chain, order, gap=gap)
    comparison = compare(chain, order.events[: len(chain)]) if isinstance(order, InOrder) else None
    return judge_read_only(
        log.execution_id,
        outcome,
        comparison,
        log_rows=len(log.events),
        stored_rows=len(stored),
        rejoined=isinstance(order, Joined),
        gap=gap,
        withdrawn=is_withdrawn(log.events, order, parted(joins, {event.event_id for event in chain})),
    ).judgement
