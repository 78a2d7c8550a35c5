"""Tail batch -> chain store: one transaction with the lane's cursor.

A batch's rows, their coverage, the held work and the lane's horizon commit together, so a
crash anywhere re-reads, never loses and never invents authority.  What a row comes to is
decided in `core.settle`; this file brings the pieces together.  Source: spec 2.12.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice

from sidecar.certified import Certified
from sidecar.core import pulse
from sidecar.core.authority import Partition, StoredEvent
from sidecar.core.due import Due, News, Windows, noted, updated
from sidecar.core.horizon import TailRow
from sidecar.core.populate import Diverged, InSync, StaleLog, Unreadable
from sidecar.core.ports import Batch, BoundedReader, ExecutionLog, Key, Populated, Store, Unit, save_due
from sidecar.core.settle import Arrival, Limits, Settled, settle
from sidecar.errors import PartitionUnreadable
from sidecar.feed.pool import HeldBack, Version, still_in_log, version
from sidecar.feed.report import FeedReport

FIRST_SIGHTS_MAX = 256
"""Executions whose whole log one transaction may read: bounds memory, not correctness."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one transaction takes of a batch."""

    rows: Mapping[int, tuple[TailRow, ...]]
    logs: tuple[ExecutionLog, ...]


class Feed:
    """Stores batches, one at a time.

    Args:
        store: The chain store.
        reader: Complete log reads, for executions seen for the first time.
        comparing: A comparator works off the due list.  Without one the feed reads the logs
            of flagged executions itself and keeps entries only for what is not stored.
        certified: Observes what is stored; None: nobody does.
    """

    def __init__(
        self,
        store: Store,
        reader: BoundedReader,
        *,
        windows: Windows,
        limits: Limits,
        comparing: bool,
        certified: Certified | None = None,
    ) -> None:
        self.certified = certified or Certified(store.clock, on=False)
        self._store = store
        self._reader = reader
        self.windows = windows
        self.limits = limits
        self.comparing = comparing
        self._held_back = HeldBack()
        self._asked: dict[int, int] = {}
        self._one_batch = asyncio.Lock()

    async def take(self, batch: Batch, tell: Callable[[FeedReport], None] = lambda _: None) -> FeedReport:
        """Store a batch; when this returns, the batch and its cursor are durable.

        Args:
            tell: Called with what each transaction came to: what is stored is known when the batch
                comes again and counts no more, so it is told also when the rest fails.

        Raises:
            SourceError: a first log read failed; what was stored before it stands, and the
                cursor has not moved.
            StoreError: as `Store.transact`; the cursor has not moved.
        """
        async with self._turn():
            began = self._store.clock.now()
            report = FeedReport(_lane_label(batch.lane))
            parts = list(self._parts(batch))

            def stored(step: FeedReport) -> None:
                waited = (self._store.clock.now() - began) / 1e6
                step.lags = [lag + waited for lag in step.lags]
                report.add(step)
                tell(step)

            for number, part in enumerate(parts, start=1):
                await self._take_part(batch, part, stored, last=number == len(parts))
            return report

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        # However long it takes: who has the turn is watched himself.
        with pulse.waiting(math.inf):
            await self._one_batch.acquire()
        try:
            yield
        finally:
            self._one_batch.release()

    async def _take_part(
        self, batch: Batch, part: _Part, stored: Callable[[FeedReport], None], *, last: bool
    ) -> None:
        """Store a part; in several transactions where its log reads are too large for one."""
        wanted = await self._unread(part)
        waiting = set(wanted)
        rows = {i: group for i, group in part.rows.items() if i not in waiting}
        delivered = part.logs
        while True:
            read = await self._reader.read_some(wanted) if wanted else []
            wanted = wanted[len(read) :]
            rows |= {log.execution_id: part.rows.get(log.execution_id, ()) for log in read}
            logs = {log.execution_id: log for log in (*delivered, *read)}
            now = self._store.clock.now()
            step = _Part({i: group for i, group in rows.items() if group}, delivered)
            write = _Write(self, batch, step, logs, last and not wanted, now)
            stored(await self._written(write))
            if not wanted:
                return
            rows, delivered = {}, ()

    async def _written(self, write: _Write) -> FeedReport:
        """Write a part; executions whose stored rows cannot be read are left to the comparator."""
        try:
            return await self._store.transact(write)
        except PartitionUnreadable:
            executions = (*write.part.rows, *(i for i in write.logs if i not in write.part.rows))
            unreadable = [i for i in executions if not await self._is_readable(i)]
            if not unreadable:
                raise
            return await self._store.transact(write.without(unreadable))

    async def _is_readable(self, execution_id: int) -> bool:
        try:
            await self._store.transact(lambda unit: unit.chain(execution_id))
        except PartitionUnreadable:
            return False
        return True

    def _parts(self, batch: Batch) -> Iterator[_Part]:
        groups: dict[int, list[TailRow]] = {}
        for row in batch.rows:
            if not self._held_back.knows(row):
                groups.setdefault(row.event.execution_id, []).append(row)
        executions = iter(groups)
        yield _Part(_some(groups, islice(executions, FIRST_SIGHTS_MAX)), batch.logs)
        while rows := _some(groups, islice(executions, FIRST_SIGHTS_MAX)):
            yield _Part(rows, ())

    async def _unread(self, part: _Part) -> list[int]:
        """Log reads that must be taken before the transaction opens (spec 2.12 steps 5, 6)."""
        have = {log.execution_id for log in part.logs}

        async def ask(unit: Unit) -> list[int]:
            partitions = await unit.partitions(part.rows.keys())
            wanted = [i for i, rows in part.rows.items() if self._worth_reading(partitions.get(i), i, rows)]
            if not self.comparing:
                wanted += await self._flagged(unit, part, wanted)
            return wanted

        return [i for i in await self._store.transact(ask) if i not in have]

    async def _flagged(self, unit: Unit, part: _Part, wanted: Sequence[int]) -> list[int]:
        """Without a comparator: flagged executions, each asked for at most once a settle time."""
        now = self._store.clock.now()
        dues = await unit.due(part.rows.keys())
        flagged = [i for i, due in dues.items() if due.reread is not None]
        flagged += await self._store.due_now(now, FIRST_SIGHTS_MAX)
        pause = self.windows.settle
        again = [i for i in dict.fromkeys(flagged) if now - self._asked.get(i, now - pause) >= pause]
        self._asked |= dict.fromkeys(again, now)
        self._asked = {i: at for i, at in self._asked.items() if now - at < pause}
        return [i for i in again if i not in wanted]

    def _worth_reading(self, partition: Partition | None, execution_id: int, rows: Sequence[TailRow]) -> bool:
        if partition is None:
            return True
        if partition.head_seq > 0 or partition.label is not None or partition.revoked_at is not None:
            return False
        named = {row.event.prev_event_id for row in self._held_back.of(execution_id).values()}
        return any(row.event.prev_event_id is None or row.event.event_id in named for row in rows)

    async def settle(
        self,
        unit: Unit,
        rows: Mapping[int, tuple[TailRow, ...]],
        logs: Mapping[int, ExecutionLog],
        populated: Mapping[int, Populated],
        *,
        epoch: str | None,
        now: int,
        lane: str = "comparator",
    ) -> dict[int, Settled]:
        """Steps 1 to 4 of spec 2.12 for every execution with rows or a populate in this unit.

        Appends what extends and saves the partitions; due entries are the caller's.  The
        pools change when the unit commits.

        Args:
            logs: The log reads behind `populated`, and truncated ones.
            epoch: Of the poll or log read at hand; None: nothing can be extended.
            lane: Whose batch it is.
        """
        executions = [*rows, *(i for i in logs if i not in rows)]
        partitions = await unit.partitions(executions)
        pools = {i: still_in_log(self._held_back.of(i), logs.get(i)) for i in executions}
        stored = await self._stored(unit, executions, rows, pools)
        active = [i for i in executions if i in rows or pools[i]]
        counts = await unit.row_counts(active) if active else {}
        dues = await unit.due(active) if active else {}
        room = self.limits.pool_total - self._held_back.rows
        settled: dict[int, Settled] = {}
        refused: dict[Key, Version] = {}
        for i in executions:
            stored_rows, max_seq = counts.get(i, (0, 0))
            arrival = Arrival(
                partition=partitions.get(i) or Partition(i),
                rows=rows.get(i, ()),
                pool=pools[i],
                stored=stored.get(i, {}),
                stored_rows=stored_rows,
                max_seq=max_seq,
                reread=_still_reread(dues.get(i), logs.get(i), populated.get(i)),
                room=room,
                populated=populated.get(i),
                log_rows=_length(logs[i], self.limits) if i in logs else 0,
                log_began_at=logs[i].read.began_at if i in logs else None,
            )
            result = settle(arrival, epoch=epoch, now=now, limits=self.limits)
            room -= len(result.pool) - len(pools[i])
            placed = _placed(arrival.partition, result.run)
            self.certified.append(unit, result.partition, placed, lane=lane)
            unit.put_partition(result.partition)
            settled[i] = result
            refused |= _without_place(arrival, result)
        left = {i: result.pool for i, result in settled.items()}
        unit.on_commit(lambda: self._held_back.keep(left, refused))
        return settled

    async def _stored(
        self,
        unit: Unit,
        executions: Iterable[int],
        rows: Mapping[int, tuple[TailRow, ...]],
        pools: Mapping[int, Mapping[int, TailRow]],
    ) -> dict[int, dict[int, StoredEvent]]:
        keys: set[Key] = set()
        for i in executions:
            for row in (*rows.get(i, ()), *pools[i].values()):
                keys.add((i, row.event.event_id))
                if row.event.prev_event_id is not None:
                    keys.add((i, row.event.prev_event_id))
        found: dict[int, dict[int, StoredEvent]] = {}
        for (i, event_id), event in (await unit.find(keys)).items() if keys else ():
            found.setdefault(i, {})[event_id] = event
        return found

    def drop_pool(self, unit: Unit, execution_id: int) -> None:
        """Forget the pooled rows of one execution when `unit` commits; `held` is the caller's."""
        dropped = self._held_back.of(execution_id)
        refused = {(execution_id, event_id): version(row) for event_id, row in dropped.items()}
        unit.on_commit(lambda: self._held_back.keep({execution_id: {}}, refused))

    def pool(self, execution_id: int) -> Mapping[int, TailRow]:
        """The delivered, unstored rows of one execution by event id; valid inside a unit."""
        return self._held_back.of(execution_id)


@dataclass(frozen=True, slots=True)
class _Write:
    """The transaction of one part of a batch; `last`: the batch's cursor goes with it.

    `unreadable`: executions of it that only get an entry in the work list.
    """

    feed: Feed
    batch: Batch
    part: _Part
    logs: Mapping[int, ExecutionLog]
    last: bool
    now: int
    unreadable: tuple[int, ...] = ()

    def without(self, unreadable: Sequence[int]) -> _Write:
        """The same write, with nothing read or written of those executions."""
        rows = {i: rows for i, rows in self.part.rows.items() if i not in unreadable}
        logs = {i: log for i, log in self.logs.items() if i not in unreadable}
        return replace(self, part=_Part(rows, self.part.logs), logs=logs, unreadable=tuple(unreadable))

    async def __call__(self, unit: Unit) -> FeedReport:
        feed, lane = self.feed, self.batch.lane
        logs = [log for log in self.logs.values() if log.tells]
        await self._first_seen(unit)
        populated = await feed.certified.populate(unit, logs, lane=lane)
        settled = await feed.settle(
            unit, self.part.rows, self.logs, populated, epoch=self.batch.epoch, now=self.now, lane=lane
        )
        await self._note(unit, settled, populated)
        await unit.see_epoch(self.batch.epoch, self._first_seen_at())
        await unit.see_epoch(self.batch.epoch, self.now)
        if self.last:
            if self.batch.cursor is not None:
                unit.put_cursor(self.batch.cursor)
            for dropped in self.batch.dropped_lanes:
                unit.drop_cursor(dropped)
            feed.certified.emitted(unit, self.batch, lambda i, event_id: event_id in feed.pool(i))
        return self._report(settled, populated)

    async def _first_seen(self, unit: Unit) -> None:
        """What a lane handed over was there, even if the log read found it gone again.

        Without this mark an execution that was pruned in between is an empty one (row 2b of 2.8).
        """
        handed = self.part.rows.keys() | {log.execution_id for log in self.part.logs}
        emptied = [i for i, log in self.logs.items() if i in handed and log.events == ()]
        known = await unit.partitions(emptied) if emptied else {}
        for i in emptied:
            partition = known.get(i) or Partition(i)
            if partition.first_seen_at is None:
                unit.put_partition(replace(partition, first_seen_at=self.now))

    def _first_seen_at(self) -> int:
        """When the first of what is stored here was seen: its epoch had begun by then."""
        rows = (row.seen_at for rows in self.part.rows.values() for row in rows)
        return min((self.now, *rows, *(log.read.began_at for log in self.logs.values())))

    async def _note(
        self, unit: Unit, settled: Mapping[int, Settled], populated: Mapping[int, Populated]
    ) -> None:
        """Write the durable work list: every execution with something new or not stored."""
        gone = set(self.batch.gone) if self.last else set()
        await self._ask_for(unit, self.unreadable)
        dues = await unit.due([*settled, *(gone - settled.keys())])
        for i in (*settled, *(gone - settled.keys())):
            result, done = settled.get(i), populated.get(i)
            after = updated(
                dues.get(i),
                i,
                self._news(i, result, done, gone=i in gone),
                now=self.now,
                verdict_at=None if result is None else result.partition.verdict_at,
                windows=self.feed.windows,
                asked=None if done is None else done.asked(self.logs[i].read),
            )
            if after is not None and not self.feed.comparing:
                after = self._without_comparator(i, after, result)
            save_due(unit, i, dues.get(i), after)

    async def _ask_for(self, unit: Unit, executions: Sequence[int]) -> None:
        """Their rows are stored nowhere: their logs have to be read again."""
        dues = await unit.due(executions) if executions else {}
        news, windows = News(rows=1, reread=True), self.feed.windows
        for i in executions:
            unit.put_due(noted(dues.get(i), i, news, now=self.now, verdict_at=None, windows=windows))

    def _news(
        self, execution_id: int, result: Settled | None, populated: Populated | None, *, gone: bool
    ) -> News:
        """What an older verdict must not take away: rows shown, questions open.

        A chain that grew by a piece of a poll is asked for again: a later piece of the snapshot may
        hold a second root or a changed body, and what is served between them the log never was.
        Rows that a log read has shown are delivered like rows of a lane.  Other bytes and a
        read that was cut are flags; a log that has fewer rows counts as one.
        """
        news = News() if result is None else result.news
        news = replace(
            news,
            rows=news.rows + (0 if result is None else result.shown),
            question=gone or self._open_question(execution_id, populated),
            listed=self._catch_up_needs_entry(execution_id, populated),
        )
        if result is not None and result.run and execution_id in self.part.rows and self.batch.more:
            news = replace(news, reread=True)
        if populated is not None and isinstance(populated.outcome, Diverged):
            return replace(news, changed=True)
        if populated is None and execution_id in self.logs:
            return replace(news, reread=True)
        stale = populated is not None and isinstance(populated.outcome, StaleLog)
        return replace(news, rows=max(1, news.rows)) if gone or stale else news

    def _without_comparator(self, execution_id: int, due: Due, result: Settled | None) -> Due | None:
        """The entry if something is not stored; behind the others once its log was read."""
        if not _unstored(due, result):
            return None
        asked = execution_id in self.logs
        return replace(due, due_at=self.now + self.feed.windows.settle) if asked else due

    def _open_question(self, execution_id: int, populated: Populated | None) -> bool:
        """Whether only the comparator can say what this populate came to."""
        if populated is not None:
            return isinstance(populated.outcome, Diverged | StaleLog | Unreadable)
        return execution_id in self.logs  # truncated

    def _catch_up_needs_entry(self, execution_id: int, populated: Populated | None) -> bool:
        """A lane's log read: what was stored and is older than lookback is the audit's."""
        log = self.logs.get(execution_id)
        if log is None:
            return False
        if populated is None or not populated.synced:
            return True
        young = log.newest_at is None or log.newest_at >= self.batch.server_now - self.feed.windows.lookback
        return young and isinstance(populated.outcome, InSync) and populated.outcome.appended > 0

    def _report(self, settled: Mapping[int, Settled], populated: Mapping[int, Populated]) -> FeedReport:
        report = FeedReport(_lane_label(self.batch.lane))
        for i, result in settled.items():
            done = populated.get(i)
            if done is not None:
                report.outcomes[done.outcome.label] += 1
                report.ways["populate"] += 1
            if result.run:
                report.outcomes["extended"] += 1
                report.ways["extend"] += 1
            if result.news.labelled and result.partition.label is not None and done is None:
                report.outcomes[result.partition.label] += 1
            appended = done.outcome.appended if done is not None and isinstance(done.outcome, InSync) else 0
            report.rows += max(appended, len(result.fresh) + result.shown)
            report.lags += [
                (self.batch.server_now - row.ingested_at) / 1e6
                for row in result.fresh
                if row.ingested_at is not None and row.event.event_id not in result.pool
            ]
        return report


def _still_reread(due: Due | None, log: ExecutionLog | None, populated: Populated | None) -> bool:
    if due is None or due.reread is None:
        return False
    cleared = populated is not None and populated.synced and log is not None
    return not (cleared and log is not None and log.read.began_at > due.reread)


def _unstored(due: Due, result: Settled | None) -> bool:
    held = result is not None and result.partition.held > 0
    return held or due.reread is not None or due.changed is not None


def _length(log: ExecutionLog, limits: Limits) -> int:
    return limits.read if log.events is None else len(log.events)


def _without_place(arrival: Arrival, result: Settled) -> dict[Key, Version]:
    """Row versions that are neither stored nor pooled."""
    placed = {*result.pool, *arrival.stored, *(row.event.event_id for row in result.run)}
    return {
        (row.event.execution_id, row.event.event_id): version(row)
        for row in (*arrival.rows, *arrival.pool.values())
        if row.event.event_id not in placed
    }


def _some(groups: Mapping[int, list[TailRow]], executions: Iterable[int]) -> dict[int, tuple[TailRow, ...]]:
    return {i: tuple(groups[i]) for i in executions}


def _placed(partition: Partition, run: Sequence[TailRow]) -> list[StoredEvent]:
    return [
        StoredEvent(seq, row.event, origin="log", seen_at=row.seen_at)
        for seq, row in enumerate(run, start=partition.head_seq + 1)
    ]


def _lane_label(lane: str) -> str:
    return lane.partition(":")[0]
