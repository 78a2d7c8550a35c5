"""The chain store: the one writer, its lock, and the calls of the Python surface.

Opening decides in this order: where (a local, writable folder), which layout (the marker), who
(the file lock).  Only then is anything created or read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sidecar.core.authority import StoredEvent, check_whole, revoked
from sidecar.core.event import Event
from sidecar.core.populate import LogRead, Outcome
from sidecar.core.ports import ExecutionLog
from sidecar.errors import ConfigError, Invalid
from sidecar.store import cursors, departure, events, rebuild, sequence
from sidecar.store.checked import check_event, check_id, check_sequence, check_text
from sidecar.store.clock import StoreClock
from sidecar.store.connection import Connection, Synchronous
from sidecar.store.engine import BUSY_TIMEOUT_MS, Engine, sqlite_engine
from sidecar.store.findings import EVIDENCE_MAX_BYTES
from sidecar.store.format import Marker, gate, gate_all, initialise
from sidecar.store.location import check_folder, check_one_name, distinct, sqlite_path
from sidecar.store.lock import StoreLock, take
from sidecar.store.opening import Opening
from sidecar.store.postgres.opening import postgres_engine, prepared, taken
from sidecar.store.postgres.url import is_postgres, place_of
from sidecar.store.reader import StoreReader, open_readonly
from sidecar.store.rebuild import Rebuilt
from sidecar.store.sequence import Committed, News, Numbered
from sidecar.store.sqlite import open_writer
from sidecar.store.unit import StoreUnit

T = TypeVar("T")
HIGHS: Final = "SELECT dataset, high FROM sequence"
FLAG_HELD: Final = (
    "UPDATE due SET reread = ?1, due_at = min(due_at, ?1) WHERE reread IS NULL"
    " AND execution_id IN (SELECT execution_id FROM partition WHERE held > 0)"
)


class ChainStore(StoreReader):
    """core.ports.Store.  One instance a file, in one process; see `open`."""

    def __init__(
        self,
        writer: Connection,
        engine: Engine,
        clock: StoreClock,
        committed: Committed,
        closing: AsyncExitStack,
        evidence_max_bytes: int,
    ) -> None:
        super().__init__(engine, closing)
        self._evidence_max_bytes = evidence_max_bytes
        self._writer = writer
        self._clock = clock
        self.committed = committed
        """The engine's sequence, as far as it is committed."""

    @staticmethod
    def open(
        url: str,
        *,
        synchronous: Synchronous = "normal",
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
        replicas: Sequence[str] = (),
        evidence_max_bytes: int = EVIDENCE_MAX_BYTES,
        max_bytes: int = 0,
        rejoining: bool = False,
        not_on: str | None = None,
        look_s: float = 0.0,
    ) -> Opening[ChainStore]:
        """Open the store, making file and layout if there are none.

        Args:
            url: `sqlite:////abs/path`, `sqlite:///rel/path`, a path, or
                `postgresql://…?schema=noetl_chain`, for which synchronous, busy_timeout_ms and
                max_bytes say nothing and which has no replicas.
            synchronous: `normal` re-reads the last polls after a power cut, `full` does not.
            busy_timeout_ms: How long to wait for somebody else's lock on the database.
            replicas: Stores that will follow this one.  They are not opened here, but their
                markers are read before anything is written anywhere.
            evidence_max_bytes: Of all findings; beyond it the oldest evidence goes.
            max_bytes: What the database file may grow to, its write-ahead log left aside; a
                write beyond it raises StoreFull.  0: as large as the disk is.
            rejoining: Keep what arriving roots prove, and let joins order a chain.
            not_on: The system identifier of the server that is compared: a store in PostgreSQL
                must stand on another one.
            look_s: How long to look, before a store in PostgreSQL is taken over, whether somebody
                writes to it.

        Returns:
            To be awaited, or used in `async with`.

        Raises (when awaited):
            ConfigError: the URL names no store.
            StoreLocked: another sidecar holds the store.  One in PostgreSQL to which nobody wrote
                meanwhile is taken over: what its holder wants to write then raises StoreFenced.
            StoreFormatError: another layout, of the store or of a replica; no file is changed.
            StoreError: the folder or the file cannot be used; nothing was made elsewhere.
        """
        if is_postgres(url):
            return Opening(
                partial(_taken, url, tuple(replicas), evidence_max_bytes, not_on, look_s, rejoining)
            )
        return Opening(
            partial(
                _opened,
                url,
                synchronous,
                busy_timeout_ms,
                tuple(replicas),
                evidence_max_bytes,
                max_bytes,
                rejoining,
            )
        )

    open_readonly = staticmethod(open_readonly)

    @property
    def clock(self) -> StoreClock:
        return self._clock

    async def transact(self, work: Callable[[StoreUnit], Awaitable[T]]) -> T:
        """Run `work` in one write transaction, alone, to its end even if the caller is cancelled.

        Raises:
            StoreFull, StoreBusy: rolled back, nothing lost; try again.
            StoreError: rolled back.  Whatever `work` raised: rolled back.
            CancelledError: the transaction ran to its end first; whether it committed is
                what a later read says.
        """
        unit = StoreUnit(
            self._writer,
            self._clock,
            evidence_max_bytes=self._evidence_max_bytes,
            rejoining=self.rejoining,
        )

        def committed() -> None:
            self.committed.reach(unit.gseq, unit.departed, marked=unit.marked)
            unit.committed()

        return await self._writer.hold(partial(unit.perform, work), committed)

    async def prepare_following(self) -> str:
        """Let others follow the engine's sequence; the name under which its numbers count."""
        return await self.transact(sequence.prepare)

    async def events_after(self, gseq: int, limit: int) -> list[Numbered]:
        """At most `limit` stored events with a greater number, in the order they were stored.

        After `prepare_following` this is one search.  A row that somebody else wrote has no
        number.  Source: spec 6.1, 6.2.
        """
        return await self._scan(lambda: sequence.after(self._scans, gseq, limit))

    async def news_after(self, gseq: int, departed: int, limit: int) -> News:
        """What a follower lacks, after `prepare_following`; see `sequence.news`."""
        return await self._scan(lambda: sequence.news(self._scans, gseq, departed, limit))

    async def event_up_to(self, gseq: int) -> StoredEvent | None:
        """The event with the greatest number that is not above `gseq`."""
        return await self._scan(lambda: sequence.up_to(self._scans, gseq))

    async def flag_held(self) -> None:
        """Mark what waited in a pool that did not survive: its log has to be read again.

        Called once, before anything is fed.  Source: spec 2.12 step 2.
        """

        async def work(unit: StoreUnit) -> None:
            await unit.rows(FLAG_HELD, (unit.now(),))

        await self.transact(work)

    async def populate_from_log(
        self, execution_id: int, events: Iterable[Event], *, read: LogRead | None = None
    ) -> Outcome:
        """Bring the partition up to one complete log read.

        Args:
            events: Every row of a successful read, in any order; never an empty list for a
                read that failed.
            read: When and against what it ran; None: began now, epoch and anchor unknown.

        Raises:
            Invalid: an id, a text or an execution is not usable; nothing was written.
            PartitionUnreadable: the record is torn; nothing was written.

        Source: spec 2.8.
        """
        log, _ = self._complete(execution_id, events, read)

        async def work(unit: StoreUnit) -> Outcome:
            done = (await unit.populate((log,)))[execution_id]
            check_whole(done.partition)
            return done.outcome

        return await self.transact(work)

    async def rebuild(
        self, execution_id: int, events: Iterable[Event], *, read: LogRead | None = None
    ) -> Rebuilt:
        """Populate the partition anew from one complete log read; what stood there is evidence.

        Args:
            events, read: As for `populate_from_log`.

        Returns:
            What it came to; unless that is InSync, nothing was changed.

        Raises:
            Invalid: the store holds nothing of the execution, an event is not usable, or the
                read is older than the label or the revocation; nothing was written.

        Source: spec 3.4 step 3.
        """
        log, rows = self._complete(execution_id, events, read)
        return await self.transact(lambda unit: rebuild.rebuild(unit, log, rows, self._clock.now()))

    def _complete(
        self, execution_id: int, events: Iterable[Event], read: LogRead | None
    ) -> tuple[ExecutionLog, tuple[Event, ...]]:
        rows = tuple(events)
        check_id(execution_id, "execution_id")
        for event in rows:
            check_event(event)
            if event.execution_id != execution_id:
                raise Invalid(f"event {event.event_id} belongs to execution {event.execution_id}")
        return ExecutionLog(execution_id, rows, read or LogRead(self._clock.now())), rows

    async def append(self, event: Event) -> int:
        """Append behind the head; watermark and coverage are not touched.

        Returns:
            The event's exec_seq.

        Raises:
            NotHead: the predecessor is not the head; the head has not moved.
            Invalid: the event is not usable, or its id or place is taken; nothing was written.

        Source: spec 2.3.
        """
        check_event(event)
        return await self.transact(lambda unit: events.append(unit, event, self._clock.now()))

    async def populate(self, event: Event) -> int:
        """Append one event and mark the partition; no coverage is written, so it is not served.

        Returns:
            The event's exec_seq.

        Raises:
            NotHead, Invalid: refused.  A partition that claimed nothing still does; one that
                did now claims one event more than it holds, which refuses its guarded read.
                A bad argument wrote nothing.
            StoreError: nothing was written.

        Source: spec 2.4.
        """
        check_event(event)
        return _accepted(await self.transact(lambda unit: events.populate(unit, event, self._clock.now())))

    async def populate_replicated(self, event: Event, exec_seq: int) -> int:
        """As `populate`, for an event whose place is given; the marker takes it in.

        Raises:
            Forked, Invalid: refused, as for `populate`.
        """
        check_event(event)
        check_sequence(exec_seq, "exec_seq", least=1)
        answer = await self.transact(
            lambda unit: events.populate_replicated(unit, event, exec_seq, self._clock.now())
        )
        return _accepted(answer)

    async def apply_replicated(self, event: Event, exec_seq: int) -> None:
        """Put an event at its place, whatever the head is; the same one again changes nothing.

        Not interchangeable with `append`: nothing here asks whether the predecessor is stored.

        Raises:
            Forked: another event has its key or its place; nothing was written.
            Invalid: the event or the place is not usable; nothing was written.

        Source: spec 2.3.
        """
        check_event(event)
        check_sequence(exec_seq, "exec_seq", least=1)

        async def work(unit: StoreUnit) -> None:
            now = self._clock.now()
            for clash in await events.apply(unit, (StoredEvent(exec_seq, event, "replicated", now),), now):
                raise clash.error

        await self.transact(work)

    async def load_apply_cursor(self, shard: int) -> int:
        """How far `shard` was applied, in the store's append sequence; 0 when never.

        Raises:
            StoreCorrupt, StoreError: it cannot be read; it is not taken for 0.

        Source: spec 6.1.
        """
        check_sequence(shard, "shard", least=0)
        return cursors.sequence_of(await self.query(cursors.LOAD, (shard,)))

    async def advance_apply_cursor(self, shard: int, seq: int) -> int:
        """Move the cursor forward; a sequence that is not ahead of it writes nothing.

        Returns:
            Where it stands afterwards.

        Raises:
            StoreCorrupt, StoreError: it cannot be read; nothing was written.
        """
        check_sequence(shard, "shard", least=0)
        check_sequence(seq, "seq", least=0)
        return await self.transact(lambda unit: cursors.advance(unit, shard, seq))

    async def revoke(self, execution_id: int, reason: str) -> bool:
        """Withdraw coverage; events and watermark stay as evidence.

        Returns:
            False when the store has no record of the execution; nothing was written then.

        Source: spec 2.9.
        """
        check_id(execution_id, "execution_id")
        check_text(reason, "reason")

        async def work(unit: StoreUnit) -> bool:
            partition = (await unit.partitions((execution_id,))).get(execution_id)
            if partition is not None:
                unit.put_partition(revoked(partition, reason, self._clock.now()))
            return partition is not None

        return await self.transact(work)


def _accepted(answer: int | events.Refusal) -> int:
    if isinstance(answer, int):
        return answer
    raise answer


async def _opened(
    url: str,
    synchronous: Synchronous,
    busy_timeout_ms: int,
    replicas: tuple[str, ...],
    evidence_max_bytes: int,
    max_bytes: int,
    rejoining: bool,
) -> ChainStore:
    # One file, one lock, however it is called: SQLite's own files go by the name, too.
    path = await asyncio.to_thread(sqlite_path(url).resolve)
    lock = await asyncio.to_thread(_prepared, path, distinct(path, replicas))
    async with AsyncExitStack() as opened:
        opened.callback(lock.release)
        writer = await open_writer(
            path, synchronous=synchronous, busy_timeout_ms=busy_timeout_ms, max_bytes=max_bytes
        )
        opened.push_async_callback(writer.close)
        engine = await sqlite_engine(path, opened, rejoining=rejoining)
        high = dict[str, int](await writer.rows(HIGHS))
        clock = StoreClock(high.get("clock", 0))
        committed = Committed(high.get("event", 0), await departure.high(writer))
        if replicas:
            # Now, not when the first one follows: on a big store it takes a while, and nothing
            # can be stored meanwhile.
            await writer.hold(lambda: writer.rows(sequence.INDEX))
            await writer.hold(lambda: writer.rows(departure.TABLE))
        return ChainStore(writer, engine, clock, committed, opened.pop_all(), evidence_max_bytes)


async def _taken(
    url: str,
    replicas: tuple[str, ...],
    evidence_max_bytes: int,
    not_on: str | None,
    look_s: float,
    rejoining: bool,
) -> ChainStore:
    """A store on PostgreSQL, ours from here on."""
    place = place_of(url)
    if replicas:
        raise ConfigError(
            "a store in PostgreSQL has no replicas", hint="use a standby of its server, or a store in a file"
        )
    layout = await prepared(place, writing=True, not_on=not_on)
    async with AsyncExitStack() as opened:
        writer = await taken(place, layout, opened, look_s)
        engine = await postgres_engine(place, layout, opened, rejoining=rejoining)
        high = dict[str, int](await writer.hold(lambda: writer.rows(HIGHS)))
        clock = StoreClock(high.get("clock", 0))
        committed = Committed(high.get("event", 0))
        return ChainStore(writer, engine, clock, committed, opened.pop_all(), evidence_max_bytes)


def _prepared(path: Path, replicas: Sequence[Path]) -> StoreLock:
    check_folder(path)
    check_one_name(path)
    gate_all(path, replicas)  # before the lock file: another build's store is left alone
    lock = take(path)
    try:
        if gate(path) is Marker.ABSENT:
            initialise(path)
    except BaseException:
        lock.release()
        raise
    return lock
