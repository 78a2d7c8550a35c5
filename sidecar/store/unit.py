"""One write transaction: bulk reads, buffered writes, populate.

Records that were put are answered from the buffer; event rows are flushed before anything
that reads event rows, and everything at the end.  Each flush is one `executemany`: the driver
then costs no more than SQLite itself.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain, count
from typing import Final, TypeVar

from sidecar.core.authority import GuardedRead, Partition, StoredEvent, guarded_read
from sidecar.core.due import Due
from sidecar.core.event import Event
from sidecar.core.evidence import Finding
from sidecar.core.horizon import Cursor
from sidecar.core.lsn import lsn_of, lsn_text
from sidecar.core.ports import EpochSpan, ExecutionLog, Key, Populated
from sidecar.core.rejoin import Join, predecessors
from sidecar.errors import broken, invariant
from sidecar.store import findings, joins, reads, states
from sidecar.store.clock import StoreClock
from sidecar.store.connection import REFUSALS, Connection, Row
from sidecar.store.populate import Settled, settle
from sidecar.store.rows import (
    COMMITS,
    INSERT_EVENT,
    PUT_COMMIT,
    PUT_CURSOR,
    PUT_DUE,
    PUT_PARTITION,
    cursor_row,
    due_row,
    due_times,
    event_row,
    partition_row,
    partition_times,
)

T = TypeVar("T")

HIGH: Final = "SELECT high FROM sequence WHERE dataset = ?"
PUT_HIGH: Final = (
    "INSERT INTO sequence (dataset, high) VALUES (?, ?)"
    " ON CONFLICT (dataset) DO UPDATE SET high = max(sequence.high, excluded.high)"
)
DROP_DUE: Final = "DELETE FROM due WHERE execution_id = ?"
DROP_CURSOR: Final = "DELETE FROM tail_cursor WHERE lane = ?"
SEE_EPOCH: Final = (
    "INSERT INTO server_epoch (epoch, system_identifier, timeline, started_at, stats_reset,"
    " first_seen_at, last_seen_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)"
    " ON CONFLICT (epoch) DO UPDATE SET"
    " first_seen_at = min(server_epoch.first_seen_at, excluded.first_seen_at),"
    " last_seen_at = max(server_epoch.last_seen_at, excluded.last_seen_at)"
)
_EPOCH_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring new events of one execution and the place of the first."""

    events: Sequence[Event]
    exec_seq: int
    gseq: int
    origin: str | None
    seen_at: int | None

    def rows(self) -> Iterator[Row]:
        # Made one by one while the driver binds them: a list of them all costs as much as
        # putting them in order did.
        seq, gseq = count(self.exec_seq), count(self.gseq)
        for event in self.events:
            yield event_row(next(seq), event, next(gseq), self.origin, self.seen_at)


class StoreUnit:
    """core.ports.Unit over one SQLite connection; usable only inside its own transaction."""

    def __init__(
        self,
        connection: Connection,
        clock: StoreClock,
        *,
        evidence_max_bytes: int = findings.EVIDENCE_MAX_BYTES,
        rejoining: bool = False,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._evidence_max_bytes = evidence_max_bytes
        self._rejoining = rejoining
        self._gseq = 0
        self._gseq_stored = 0
        self._latest = 0
        self._events: list[_Run] = []
        self._commits: dict[Key, int] = {}
        self._partitions: dict[int, Partition] = {}
        self._due: dict[int, Due | None] = {}
        self._cursors: dict[str, Cursor | None] = {}
        self._then: list[Callable[[], None]] = []
        self.departed = 0
        self.marked = False
        """The number of the latest departure of this unit; see `departure`."""
        self._ended = False

    async def perform(self, work: Callable[[StoreUnit], Awaitable[T]]) -> T:
        """Run `work` and flush what it left; the caller has begun and will commit."""
        try:
            high = await self._connection.rows(HIGH, ("event",))
            self._gseq = self._gseq_stored = high[0][0] if high else 0
            result = await work(self)
            await self._flush()
        finally:
            self._ended = True
        return result

    @property
    def gseq(self) -> int:
        """The latest number of the engine sequence, those of this unit included.  Source: spec 6.2."""
        return self._gseq

    def committed(self) -> None:
        for then in self._then:
            then()

    # Reads

    async def partitions(self, execution_ids: Collection[int]) -> dict[int, Partition]:
        self._check()
        pending = self._partitions
        found = await reads.partitions(self._connection, [e for e in execution_ids if e not in pending])
        found.update((e, pending[e]) for e in execution_ids if e in pending)
        return found

    async def due(self, execution_ids: Collection[int]) -> dict[int, Due]:
        self._check()
        pending = self._due
        found = await reads.due(self._connection, [e for e in execution_ids if e not in pending])
        found.update((e, due) for e in execution_ids if (due := pending.get(e)) is not None)
        return found

    async def find(self, keys: Iterable[Key]) -> dict[Key, StoredEvent]:
        await self._flush_events()
        return await reads.find(self._connection, keys)

    async def places(self, places: Iterable[Key]) -> dict[Key, StoredEvent]:
        """The stored events among (execution_id, exec_seq)."""
        await self._flush_events()
        return await reads.places(self._connection, places)

    async def row_counts(self, execution_ids: Collection[int]) -> dict[int, tuple[int, int]]:
        await self._flush_events()
        return await reads.row_counts(self._connection, execution_ids)

    async def chain(self, execution_id: int) -> tuple[StoredEvent, ...]:
        await self._flush_events()
        return (await reads.chains(self._connection, (execution_id,))).get(execution_id, ())

    async def guarded_read(self, execution_id: int, *, ignore_held: bool = False) -> GuardedRead:
        partition = (await self.partitions((execution_id,))).get(execution_id)
        due = None if ignore_held else (await self.due((execution_id,))).get(execution_id)
        stored = await self.chain(execution_id)
        held = not ignore_held and held_back(partition, due)
        several = any(row.event.prev_event_id is None for row in stored[1:])
        kept = await self.joins((execution_id,)) if several else {}
        joined = predecessors(kept.get(execution_id, ()))
        return guarded_read(partition, stored, held_back=held, joined=joined)

    async def joins(self, execution_ids: Collection[int]) -> dict[int, tuple[Join, ...]]:
        self._check()
        return await joins.among(self._connection, execution_ids) if self._rejoining else {}

    async def commits(self, execution_id: int) -> dict[int, int]:
        await self._flush_events()
        found = await self._connection.rows(COMMITS, (execution_id,))
        return {event_id: lsn_of(text) for event_id, text in found}

    async def epochs(self) -> tuple[EpochSpan, ...]:
        self._check()
        return await reads.epochs(self._connection)

    # Writes

    async def populate(self, logs: Sequence[ExecutionLog]) -> dict[int, Populated]:
        """populate_from_log for each log that is not truncated; each execution once.

        Source: spec 2.8.
        """
        whole = [(log, log.events) for log in logs if log.events is not None]
        ids = [log.execution_id for log, _ in whole]
        invariant(len(set(ids)) == len(ids), "an execution stands twice in one populate")
        partitions = await self.partitions(ids)
        await self._flush_events()
        chains = await reads.chains(self._connection, ids)
        kept = await self.joins([log.execution_id for log, events in whole if _has_several_roots(events)])
        results: dict[int, Populated] = {}
        for log, events in whole:
            e = log.execution_id
            partition = partitions.get(e) or Partition(e)
            settled = settle(log, events, partition, chains.get(e, ()), kept.get(e, ()))
            self._write(settled)
            results[e] = settled.result
        return results

    def _write(self, settled: Settled) -> None:
        if settled.new:
            self._extend(settled.new, settled.result.partition.head_seq, settled.read.began_at)
        if settled.changed:
            self.put_partition(settled.result.partition)

    def _extend(self, new: Sequence[Event], through: int, seen_at: int) -> None:
        seq, gseq = through - len(new) + 1, self._gseq + 1
        self._events.append(_Run(new, seq, gseq, "log", seen_at))
        self._gseq += len(new)

    def append(self, rows: Sequence[StoredEvent]) -> None:
        self._check()
        for row in rows:
            self._gseq += 1
            self._events.append(_Run((row.event,), row.exec_seq, self._gseq, row.origin, row.seen_at))
            self._note_time(row.seen_at)

    def put_commits(self, commits: Mapping[Key, int]) -> None:
        self._check()
        self._commits = {**commits, **self._commits}

    async def keep_joins(self, proven: Sequence[Join]) -> None:
        if self._rejoining and proven:
            await self._connection.many(joins.KEEP, [joins.row_of(each) for each in proven])
            self._note_time(*(each.joined_at for each in proven))

    async def withdraw_joins(self, contradicted: Sequence[Join], now: int) -> None:
        if self._rejoining and contradicted:
            rows = [(now, each.execution_id, each.root_event_id) for each in contradicted]
            await self._connection.many(joins.WITHDRAW, rows)
            self.marked = True
            self._note_time(now)

    def put_partition(self, partition: Partition) -> None:
        self._check()
        self._partitions[partition.execution_id] = partition

    def put_due(self, due: Due) -> None:
        self._check()
        self._due[due.execution_id] = due

    def drop_due(self, execution_id: int) -> None:
        self._check()
        self._due[execution_id] = None

    def put_cursor(self, cursor: Cursor) -> None:
        self._check()
        self._cursors[cursor.lane] = cursor

    def drop_cursor(self, lane: str) -> None:
        self._check()
        self._cursors[lane] = None

    def on_commit(self, then: Callable[[], None]) -> None:
        self._check()
        self._then.append(then)

    async def see_epoch(self, epoch: str, now: int) -> None:
        self._check()
        parts = epoch.split("/")
        known = parts if len(parts) == _EPOCH_PARTS else [None] * _EPOCH_PARTS
        await self._connection.rows(SEE_EPOCH, (epoch, *known, now))
        self._note_time(now)

    def now(self) -> int:
        """The store's clock, for a time that this unit writes by itself."""
        now = self._clock.now()
        self._note_time(now)
        return now

    async def record_state(self, execution_id: int, status: str, data: str) -> int:
        return await states.record_state(self.rows, execution_id, status, data)

    async def note_findings(self, found: Sequence[Finding], matched: Collection[int]) -> int:
        if not found and not matched:
            return 0
        return await findings.note(self.rows, found, matched, self.now(), self._evidence_max_bytes)

    async def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """One statement of this package over tables whose writes are not buffered here."""
        await self._flush_events()
        return await self._connection.rows(sql, parameters)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A part of the unit that may be refused: then it leaves nothing, and the rest stays.

        Raises:
            Invalid, NotHead, Forked: the part was taken back, the unit goes on.
            StoreError: the engine failed; the whole unit is lost.
        """
        await self._flush_events()
        kept = dict(self._partitions), dict(self._due), dict(self._cursors), self._gseq, self._latest
        try:
            async with self._connection.savepoint():
                yield
                await self._flush_events()
        except REFUSALS:
            self._partitions, self._due, self._cursors, self._gseq, self._latest = kept
            self._events, self._commits = [], {}
            raise

    # Flush

    async def _flush_events(self) -> None:
        self._check()
        if self._events:
            runs, self._events = self._events, []
            await self._connection.many(INSERT_EVENT, chain.from_iterable(map(_Run.rows, runs)))
        if self._commits:
            commits, self._commits = self._commits, {}
            await self._connection.many(PUT_COMMIT, [(lsn_text(at), *key) for key, at in commits.items()])

    async def _flush(self) -> None:
        await self._flush_events()
        dues, cursors = self._due, self._cursors
        await self._put(PUT_PARTITION, [partition_row(each) for each in self._partitions.values()])
        await self._put(DROP_DUE, [(key,) for key, due in dues.items() if due is None])
        await self._put(PUT_DUE, [due_row(due) for due in dues.values() if due is not None])
        await self._put(DROP_CURSOR, [(key,) for key, cursor in cursors.items() if cursor is None])
        await self._put(PUT_CURSOR, [cursor_row(cursor) for cursor in cursors.values() if cursor is not None])
        await self._put(PUT_HIGH, self._highs())

    async def _put(self, sql: str, rows: Sequence[Row]) -> None:
        if rows:
            await self._connection.many(sql, rows)

    def _highs(self) -> list[Row]:
        # The greatest time is kept in the store, so that the next start stays behind it
        # without reading every row.
        for partition in self._partitions.values():
            self._note_time(*partition_times(partition))
        for due in self._due.values():
            if due is not None:
                self._note_time(*due_times(due))
        written = self._latest or self._partitions or self._due or self._cursors
        highs: list[Row] = [("clock", max(self._latest, self._clock.last))] if written else []
        if self._gseq != self._gseq_stored:
            highs.append(("event", self._gseq))
        return highs

    def _note_time(self, *times: int | None) -> None:
        for time in times:
            if time is not None and time > self._latest:
                self._latest = time

    def _check(self) -> None:
        if self._ended:
            broken("a unit of work was used after its transaction")


def _has_several_roots(events: Iterable[Event]) -> bool:
    return sum(event.prev_event_id is None for event in events) > 1


def held_back(partition: Partition | None, due: Due | None) -> bool:
    """Whether newer events are known that are not stored.  Source: spec 2.12 step 2."""
    flagged = due is not None and (due.reread is not None or due.changed is not None)
    return flagged or (partition is not None and partition.held > 0)
