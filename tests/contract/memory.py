"""The model behind the calls of the store: one shelf a place, one call at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from sidecar.core.authority import (
    Authoritative,
    Authority,
    Coverage,
    GuardedRead,
    NotPopulated,
    Partition,
    StoredEvent,
    Torn,
    Watermark,
)
from sidecar.core.due import Due
from sidecar.core.event import ID_MAX, ID_MIN, Event, is_id
from sidecar.core.evidence import Finding
from sidecar.core.horizon import Cursor
from sidecar.core.populate import LogRead, Outcome
from sidecar.core.ports import EpochSpan, ExecutionLog, Key, Populated
from sidecar.core.rejoin import Join
from sidecar.errors import Forked, GapAt, Invalid, NotHead, broken, invariant
from sidecar.store.findings import Kept
from sidecar.store.opening import Opening
from tests.contract.model import Shelf, spans

T = TypeVar("T")


class Ticks:
    """Strictly increasing microseconds, above everything on the shelf."""

    def __init__(self, shelf: Shelf) -> None:
        times: list[int | None] = [0]
        for p in shelf.partitions.values():
            times += [p.labelled_at, p.revoked_at, p.verdict_at, p.first_seen_at, p.last_change_at]
        times += [row.seen_at for rows in shelf.rows.values() for row in rows.values()]
        times += [last for _, last in shelf.epochs.values()]
        self.last = max(at for at in times if at is not None)

    def now(self) -> int:
        self.last = max(self.last + 1, time.time_ns() // 1000)
        return self.last


class MemoryUnit:
    """core.ports.Unit over a copy of the shelf."""

    def __init__(self, shelf: Shelf, *, rejoining: bool = False) -> None:
        self.shelf = shelf
        self.rejoining = rejoining
        self.then: list[Callable[[], None]] = []
        self.ended = False

    @property
    def gseq(self) -> int:
        return self.shelf.gseq

    def _check(self) -> Shelf:
        if self.ended:
            broken("a unit of work was used after its transaction")
        return self.shelf

    async def partitions(self, execution_ids: Collection[int]) -> dict[int, Partition]:
        shelf = self._check()
        return {e: p for e in execution_ids if (p := shelf.any_record(e)) is not None}

    async def find(self, keys: Iterable[Key]) -> dict[Key, StoredEvent]:
        shelf = self._check()
        return {key: row for key in keys if (row := shelf.find(*key)) is not None}

    async def row_counts(self, execution_ids: Collection[int]) -> dict[int, tuple[int, int]]:
        rows = self._check().rows
        return {e: (len(rows.get(e, ())), max(rows.get(e, ()), default=0)) for e in execution_ids}

    async def chain(self, execution_id: int) -> tuple[StoredEvent, ...]:
        return self._check().chain(execution_id)

    async def populate(self, logs: Sequence[ExecutionLog]) -> dict[int, Populated]:
        whole = [log for log in logs if log.events is not None]
        invariant(len({log.execution_id for log in whole}) == len(whole), "an execution stands twice")
        for log in whole:
            ids = {event.execution_id for event in log.events or ()}
            invariant(ids <= {log.execution_id}, "a log holds another execution's event")
        return {log.execution_id: self._check().populate(log) for log in whole}

    async def guarded_read(self, execution_id: int, *, ignore_held: bool = False) -> GuardedRead:
        return self._check().guarded(execution_id, ignore_held=ignore_held)

    def append(self, rows: Sequence[StoredEvent]) -> None:
        shelf = self._check()
        for row in rows:
            place = shelf.rows.setdefault(row.event.execution_id, {})
            if row.exec_seq in place or shelf.find(row.event.execution_id, row.event.event_id):
                raise Invalid("the key is taken: events are write-once")
            place[row.exec_seq] = row
            shelf.gseq += 1

    def put_commits(self, commits: Mapping[Key, int]) -> None:
        shelf = self._check()
        for key, lsn in commits.items():
            if shelf.find(*key) is not None:
                shelf.commits.setdefault(key, lsn)

    async def commits(self, execution_id: int) -> dict[int, int]:
        return {event_id: at for (e, event_id), at in self._check().commits.items() if e == execution_id}

    def put_partition(self, partition: Partition) -> None:
        self._check().partitions[partition.execution_id] = partition

    async def due(self, execution_ids: Collection[int]) -> dict[int, Due]:
        shelf = self._check()
        return {e: shelf.due[e] for e in execution_ids if e in shelf.due}

    def put_due(self, due: Due) -> None:
        self._check().due[due.execution_id] = due

    def drop_due(self, execution_id: int) -> None:
        self._check().due.pop(execution_id, None)

    def put_cursor(self, cursor: Cursor) -> None:
        self._check().cursors[cursor.lane] = cursor

    def drop_cursor(self, lane: str) -> None:
        self._check().cursors.pop(lane, None)

    async def joins(self, execution_ids: Collection[int]) -> dict[int, tuple[Join, ...]]:
        shelf = self._check()
        return {e: kept for e in execution_ids if self.rejoining and (kept := shelf.joins_of(e))}

    async def keep_joins(self, joins: Sequence[Join]) -> None:
        for each in joins if self.rejoining else ():
            self._check().joins.setdefault((each.execution_id, each.root_event_id), each)

    async def withdraw_joins(self, joins: Sequence[Join], now: int) -> None:
        kept = self._check().joins
        for each in joins if self.rejoining else ():
            key = (each.execution_id, each.root_event_id)
            if kept[key].withdrawn_at is None:
                kept[key] = replace(kept[key], withdrawn_at=now)

    def on_commit(self, then: Callable[[], None]) -> None:
        self._check()
        self.then.append(then)

    async def see_epoch(self, epoch: str, now: int) -> None:
        first, last = self._check().epochs.get(epoch, (now, now))
        self.shelf.epochs[epoch] = (min(first, now), max(last, now))

    async def epochs(self) -> tuple[EpochSpan, ...]:
        return spans(self._check())

    async def note_findings(self, found: Sequence[Finding], matched: Collection[int]) -> int:
        shelf, now = self._check(), time.time_ns() // 1000
        for e in matched:
            shelf.resolve(e, now)
        for each in found:
            shelf.note(each, now)
        return 0

    async def record_state(self, execution_id: int, status: str, data: str) -> int:
        states = self._check().states
        number = 1 + max((number for number, _, _ in states.values()), default=0)
        states[execution_id] = (number, status, data)
        return number


class MemoryReader:
    """The reading half."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    @property
    def shelf(self) -> Shelf:
        return self._backend.shelf

    async def close(self) -> None:
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def chain(self, execution_id: int) -> tuple[Event, ...]:
        return tuple(row.event for row in self.shelf.chain(execution_id))

    async def stored_chain(self, execution_id: int) -> tuple[StoredEvent, ...]:
        return self.shelf.chain(execution_id)

    async def partition(self, execution_id: int) -> Partition | None:
        return self.shelf.any_record(execution_id)

    async def partitions(self, execution_ids: Collection[int]) -> dict[int, Partition]:
        return {e: p for e in execution_ids if (p := self.shelf.any_record(e)) is not None}

    async def authority(self, execution_id: int) -> Authority:
        p = self.shelf.record(execution_id)
        if p is None or p.watermark is None:
            return NotPopulated()
        return Authoritative(p.watermark.first, p.watermark.through)

    async def chain_if_authoritative(self, execution_id: int) -> GuardedRead:
        return self.shelf.guarded(execution_id)

    async def get(self, execution_id: int, event_id: int) -> StoredEvent | None:
        return self.shelf.find(execution_id, event_id)

    async def parent_of(self, event: Event) -> StoredEvent | None:
        if event.prev_event_id is None:
            return None
        row = self.shelf.find(event.execution_id, event.prev_event_id)
        if row is None:
            raise GapAt(event.execution_id, event.prev_event_id)
        return row

    async def parent_execution_of(self, execution_id: int) -> int | None:
        chain = self.shelf.chain(execution_id)
        return chain[0].event.parent_execution_id if chain else None

    async def walk_from_head(self, execution_id: int) -> tuple[StoredEvent, ...]:
        return self.shelf.walk(execution_id)

    async def chain_is_complete(self, execution_id: int) -> bool:
        return self.shelf.is_complete(execution_id)

    async def due(self, execution_ids: Collection[int]) -> dict[int, Due]:
        return {e: self.shelf.due[e] for e in execution_ids if e in self.shelf.due}

    async def findings(self, execution_id: int) -> list[Kept]:
        return [each for each in self.shelf.findings if each.execution_id == execution_id]

    async def cursors(self) -> dict[str, Cursor]:
        return dict(self.shelf.cursors)

    async def epochs(self) -> tuple[EpochSpan, ...]:
        return spans(self.shelf)

    async def due_now(self, now: int, limit: int) -> list[int]:
        ready = [due for due in self.shelf.due.values() if due.due_at <= now]
        return [due.execution_id for due in sorted(ready, key=lambda d: (d.due_at, d.execution_id))][:limit]

    async def missing(self, keys: Sequence[Key]) -> list[Key]:
        return [key for key in keys if self.shelf.find(*key) is None]

    async def sums(self, low: int, high: int) -> Mapping[int, tuple[int, int]]:
        return {
            e: (len(rows), sum(row.event.event_id for row in rows.values()))
            for e, rows in self.shelf.rows.items()
            if low <= e <= high and rows
        }

    async def executions(self, low: int = ID_MIN, high: int = ID_MAX, *, page: int = 1) -> AsyncIterator[int]:
        for e in sorted({*self.shelf.partitions, *(e for e, rows in self.shelf.rows.items() if rows)}):
            if low <= e <= high:
                yield e

    async def load_apply_cursor(self, shard: int) -> int:
        count(shard, 0)
        return self.shelf.shards.get(shard, 0)


class MemoryStore(MemoryReader):
    """The writing half: a lock, a copy, and the copy in place of the shelf."""

    rejoining = False

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend)
        self.clock = Ticks(backend.shelf)
        self._lock = asyncio.Lock()

    async def transact(self, work: Callable[[MemoryUnit], Awaitable[T]]) -> T:
        async with self._lock:
            unit = MemoryUnit(self.shelf.copy())
            try:
                await asyncio.sleep(0)  # others get their turn, as beside a database
                result = await work(unit)
            finally:
                unit.ended = True
            self._backend.shelf = unit.shelf
            for then in unit.then:
                then()
            return result

    async def _write(self, work: Callable[[Shelf, int], T]) -> T:
        async def turn(unit: MemoryUnit) -> T:
            return work(unit.shelf, self.clock.now())

        return await self.transact(turn)

    async def populate_from_log(
        self, execution_id: int, events: Iterable[Event], *, read: LogRead | None = None
    ) -> Outcome:
        rows = tuple(events)
        usable_id(execution_id, "execution_id")
        for event in rows:
            usable(event)
            if event.execution_id != execution_id:
                raise Invalid(f"event {event.event_id} belongs to execution {event.execution_id}")
        log = ExecutionLog(execution_id, rows, read or LogRead(self.clock.now()))

        async def work(unit: MemoryUnit) -> Outcome:
            done = await unit.populate([log])
            unit.shelf.record(execution_id)  # refuses a torn one
            return done[execution_id].outcome

        return await self.transact(work)

    async def append(self, event: Event) -> int:
        usable(event)
        return await self._write(lambda shelf, now: shelf.append(event, now))

    async def populate(self, event: Event) -> int:
        usable(event)
        e = event.execution_id

        def work(shelf: Shelf, now: int) -> int:
            p = shelf.record(e)
            expected = (p.head_seq if p else 0) + 1
            first = p.watermark.first if p and p.watermark and p.watermark.first else expected
            seq = shelf.append(event, now)
            shelf.mark(e, first, seq)
            return seq

        def claim(shelf: Shelf, now: int) -> None:
            p = shelf.record(e)
            if p is not None and p.watermark is not None:
                shelf.mark(e, p.watermark.first or p.head_seq + 1, p.head_seq + 1)

        return await self._or_else(work, claim)

    async def populate_replicated(self, event: Event, exec_seq: int) -> int:
        usable(event)
        count(exec_seq, 1)
        e = event.execution_id

        def claim(shelf: Shelf, now: int) -> None:
            p = shelf.record(e)
            if p is not None and p.watermark is not None:
                stretch(shelf, e, exec_seq)

        def work(shelf: Shelf, now: int) -> int:
            shelf.apply(event, exec_seq, now)
            stretch(shelf, e, exec_seq)
            return exec_seq

        return await self._or_else(work, claim)

    async def _or_else(self, work: Callable[[Shelf, int], int], claim: Callable[[Shelf, int], None]) -> int:
        """A refusal leaves what `claim` does."""
        try:
            return await self._write(work)
        except (NotHead, Invalid, Forked):
            await self._write(claim)
            raise

    async def apply_replicated(self, event: Event, exec_seq: int) -> None:
        usable(event)
        count(exec_seq, 1)
        await self._write(lambda shelf, now: shelf.apply(event, exec_seq, now))

    async def revoke(self, execution_id: int, reason: str) -> bool:
        usable_id(execution_id, "execution_id")

        def work(shelf: Shelf, now: int) -> bool:
            p = shelf.record(execution_id)
            if p is not None:
                shelf.partitions[execution_id] = replace(
                    p, coverage=None, revoked_reason=reason, revoked_at=now
                )
            return p is not None

        return await self._write(work)

    async def advance_apply_cursor(self, shard: int, seq: int) -> int:
        count(shard, 0)
        count(seq, 0)

        def work(shelf: Shelf, now: int) -> int:
            shelf.shards[shard] = max(seq, shelf.shards.get(shard, 0))
            return shelf.shards[shard]

        return await self._write(work)


class MemoryBackend:
    """One shelf, which outlives the stores that are opened on it."""

    def __init__(self, folder: object = None) -> None:
        self.shelf = Shelf()

    def open(self) -> Opening[MemoryStore]:
        async def start() -> MemoryStore:
            return MemoryStore(self)

        return Opening(start)

    def open_readonly(self) -> Opening[MemoryReader]:
        async def start() -> MemoryReader:
            return MemoryReader(self)

        return Opening(start)

    def photograph(self) -> None:
        return  # the shelf holds only what was committed

    async def abandon(self, store: object) -> None:
        return

    def plant_watermark(self, execution_id: int, first: int | None, through: int | None) -> None:
        p = self.shelf.partitions.get(execution_id) or Partition(execution_id)
        if first is None and through is None:
            self.shelf.partitions[execution_id] = replace(p, watermark=None)
        elif first is None or through is None or first < 0:
            torn = Torn("watermark", (first, through, None, None))
            self.shelf.partitions[execution_id] = replace(p, watermark=None, coverage=None, torn=torn)
        else:
            self.shelf.partitions[execution_id] = replace(p, watermark=Watermark(first, through))

    def plant_coverage(self, execution_id: int, root: int | None, total: int | None) -> None:
        p = self.shelf.partitions.get(execution_id) or Partition(execution_id)
        if total is None or total < 0:
            torn = Torn("coverage", (None, None, root, total))
            self.shelf.partitions[execution_id] = replace(p, watermark=None, coverage=None, torn=torn)
        else:
            self.shelf.partitions[execution_id] = replace(p, coverage=Coverage(root, total))

    def plant_event(self, exec_seq: int, event: Event) -> None:
        self.shelf.rows.setdefault(event.execution_id, {})[exec_seq] = StoredEvent(exec_seq, event)

    def drop_event(self, execution_id: int, exec_seq: int) -> None:
        del self.shelf.rows[execution_id][exec_seq]

    def break_head(self) -> None:
        self.shelf.unreadable = True


def stretch(shelf: Shelf, e: int, seq: int) -> None:
    p = shelf.record(e)
    marks = [seq]
    if p is not None and p.watermark is not None and p.watermark.first:
        marks += [p.watermark.first, p.watermark.through]
    shelf.mark(e, min(marks), max(marks))


def usable(event: Event) -> None:
    usable_id(event.execution_id, "execution_id")
    usable_id(event.event_id, "event_id")
    for name in ("prev_event_id", "parent_execution_id"):
        value = getattr(event, name)
        if value is not None:
            usable_id(value, name)
    for name in ("event_type", "body"):
        try:
            getattr(event, name).encode()
        except UnicodeEncodeError:
            raise Invalid(f"{name} is no Unicode text") from None


def usable_id(value: object, name: str) -> None:
    if not is_id(value):
        raise Invalid(f"{name} is no 64-bit integer")


def count(value: object, least: int) -> None:
    if not is_id(value) or not isinstance(value, int) or value < least:
        raise Invalid("no such number")
