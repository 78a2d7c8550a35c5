"""The two sides of the line as feed and comparator see them: the log and the chain store.

Descriptions.  `source` and `store` implement them; `app` puts them together.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sidecar.core.audit import Round, Standing
from sidecar.core.authority import GuardedRead, Partition, StoredEvent
from sidecar.core.due import Asked, Due
from sidecar.core.event import Event
from sidecar.core.evidence import Finding
from sidecar.core.horizon import Cursor, TailRow
from sidecar.core.populate import InSync, LogRead, Outcome
from sidecar.core.rejoin import NOTHING_KEPT, ChainOrder, Join, Kept
from sidecar.core.sums import StoredSums, Sums

T = TypeVar("T")
Key = tuple[int, int]
"""(execution_id, event_id)"""


@dataclass(frozen=True, slots=True)
class ExecutionLog:
    """One execution's log, read completely by one statement.

    `events` in no particular order; None: the read returned `limit` rows or more, so it is
    not known to be complete (`log_truncated`).  `newest_at`: the greatest created_at in
    microseconds since 1970 UTC, None when unknown or infinite.
    """

    execution_id: int
    events: tuple[Event, ...] | None
    read: LogRead
    newest_at: int | None = None

    @property
    def tells(self) -> bool:
        """Whether it can be populated from: not cut, and not empty for want of a partition."""
        return self.events is not None and (self.read.whole or bool(self.events))

    def absent(self, stored: Iterable[StoredEvent]) -> tuple[StoredEvent, ...]:
        """The stored rows that this read lacks (the entry of spec 3.4); none where it was cut."""
        if self.events is None:
            return ()
        ids = {event.event_id for event in self.events}
        return tuple(row for row in stored if row.event.event_id not in ids)

    def untold(self, stored: Iterable[StoredEvent]) -> bool:
        """Whether rows are absent, or all, of which this read does not say that they are gone.

        A partition that is detached takes its rows out of sight: the read failed, then, and when
        the tree stands still it is taken again.
        """
        if self.read.whole or self.events is None:
            return False
        return not self.events or bool(self.absent(stored))


@dataclass(frozen=True, slots=True)
class Batch:
    """What a lane hands to the feed: one store transaction.

    `lane` is the lane's key in the store (`live`, `late`, `wal`, `sweep:<inhrelid>:<xmin>`).
    `rows`: as the lane saw them; those of the lane `wal` in the order of their commits, each with
    its `commit_lsn`.  `logs`: whole executions, from a lane that had no horizon.
    `gone`: executions with stored rows that the log no longer has at all or in this number.
    `cursor`: the lane's new cursor; None while more batches of the same snapshot follow.
    `dropped_lanes`: keys of lanes whose partition left the tree.
    `server_now`: Postgres's clock, microseconds since 1970 UTC.
    `read_at`: the store's clock before the statement was sent that told `epoch`; None where only
    rows and logs say when they were read.  `began_at`: the same of a live poll, None where the
    poll may have left out rows that are stored.
    """

    lane: str
    epoch: str
    anchor: int | None
    server_now: int
    rows: tuple[TailRow, ...] = ()
    logs: tuple[ExecutionLog, ...] = ()
    gone: tuple[int, ...] = ()
    cursor: Cursor | None = None
    dropped_lanes: tuple[str, ...] = ()
    read_at: int | None = None
    began_at: int | None = None

    @property
    def more(self) -> bool:
        """Whether other batches of the same snapshot follow."""
        return self.cursor is None


class Clock(Protocol):
    def now(self) -> int:
        """Microseconds since 1970, strictly greater than every earlier answer and every
        time in the store, however the wall clock is set."""
        ...


class LogReader(Protocol):
    """Complete reads of the log on the primary."""

    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        """Read each execution completely, in one statement; one answer an id, in order.

        An execution without rows has empty events.  The anchor is read after the statement.

        Raises:
            SourceError: the read failed; it says nothing about the log.
        """
        ...


class BoundedReader(LogReader, Protocol):
    """Complete reads whose size nobody knows beforehand."""

    async def read_some(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        """Read the first of `execution_ids`, as `read` does: as many as a bounded read holds.

        At least one is answered, in order; the rest is for the next call.
        """
        ...


class StoredKeys(Protocol):
    """What a lane without horizon asks the store, so that it fetches only what is new."""

    async def missing(self, keys: Sequence[Key]) -> list[Key]:
        """Those of `keys` that are not stored, in their order."""
        ...

    async def sums(self, low: int, high: int) -> Mapping[int, tuple[int, int]]:
        """Per execution with low <= execution_id <= high: (rows, exact sum of event ids)."""
        ...


@dataclass(frozen=True, slots=True)
class EpochSpan:
    """When an epoch of the server was first and last polled; the store's clock."""

    epoch: str
    first_seen_at: int
    last_seen_at: int


@dataclass(frozen=True, slots=True)
class Populated:
    """What populating one execution came to.

    `partition`: the record afterwards.  `absent`: stored rows whose id the log read lacks, in
    exec_seq order (the entry of spec 3.4).  `written`: False when the read was too old to
    touch the partition, or the outcome writes nothing.  `cleared_bar`: a label or a
    revocation was cleared.  `unstored`: ids that the log read has shown and that are not
    stored afterwards.  `against`: what this read speaks against, still to be marked; `withdrawn`:
    joins in use are among it, or were contradicted before.
    """

    outcome: Outcome
    order: ChainOrder
    partition: Partition
    absent: tuple[StoredEvent, ...]
    written: bool
    cleared_bar: bool
    unstored: frozenset[int] = frozenset()
    against: Kept = NOTHING_KEPT
    withdrawn: bool = False

    @property
    def synced(self) -> bool:
        """Whether rows 2 or 6-8 of spec 2.8 were written."""
        return self.written and isinstance(self.outcome, InSync)

    def asked(self, read: LogRead) -> Asked:
        """What this populate, from `read`, means to the execution's entry."""
        return Asked(read.began_at, synced=self.synced, cleared_bar=self.cleared_bar)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a store holds of one execution at one instant.

    `guarded`: what a consumer is answered then.  `joins`: all that are kept of it, withdrawn ones
    too; `usable`: those that order the rows, none with the gate off.
    """

    execution_id: int
    partition: Partition | None
    due: Due | None
    rows: tuple[StoredEvent, ...]
    epochs: tuple[EpochSpan, ...]
    guarded: GuardedRead
    joins: tuple[Join, ...] = ()
    usable: tuple[Join, ...] = ()


class Unit(Protocol):
    """One write transaction of the chain store; everything in it commits, or nothing.

    Buffered writes (`put_*`, `drop_*`, `append`) are seen by later reads of the same unit.
    """

    async def partitions(self, execution_ids: Collection[int]) -> dict[int, Partition]:
        """The records that exist."""
        ...

    async def find(self, keys: Iterable[Key]) -> dict[Key, StoredEvent]:
        """The stored events among `keys`."""
        ...

    async def row_counts(self, execution_ids: Collection[int]) -> dict[int, tuple[int, int]]:
        """(event rows, greatest exec_seq) for each id, (0, 0) where none."""
        ...

    async def chain(self, execution_id: int) -> tuple[StoredEvent, ...]:
        """The stored rows in ascending exec_seq."""
        ...

    async def populate(self, logs: Sequence[ExecutionLog]) -> dict[int, Populated]:
        """populate_from_log for each log that is not truncated (spec 2.8)."""
        ...

    async def joins(self, execution_ids: Collection[int]) -> dict[int, tuple[Join, ...]]:
        """What is kept of those that have anything, withdrawn ones too; nothing with the gate off."""
        ...

    async def keep_joins(self, joins: Sequence[Join]) -> None:
        """Keep what was proven; a root of which something is kept is passed over."""
        ...

    async def withdraw_joins(self, joins: Sequence[Join], now: int) -> None:
        """Mark joins as contradicted; nothing else of them changes."""
        ...

    async def guarded_read(self, execution_id: int, *, ignore_held: bool = False) -> GuardedRead:
        """Spec 2.6.  `ignore_held`: the comparator's own read, for the log it just read."""
        ...

    def append(self, rows: Sequence[StoredEvent]) -> None:
        """Insert event rows; the caller has proved their place."""
        ...

    def put_commits(self, commits: Mapping[Key, int]) -> None:
        """Keep where stored events were committed; a position that is already known stays."""
        ...

    async def commits(self, execution_id: int) -> dict[int, int]:
        """By event id, the commit position of those stored events of which it is known.

        Positions of different timelines have no order.
        """
        ...

    def put_partition(self, partition: Partition) -> None: ...

    async def due(self, execution_ids: Collection[int]) -> dict[int, Due]: ...

    def put_due(self, due: Due) -> None: ...

    def drop_due(self, execution_id: int) -> None: ...

    def put_cursor(self, cursor: Cursor) -> None: ...

    def drop_cursor(self, lane: str) -> None: ...

    async def record_state(self, execution_id: int, status: str, data: str) -> int:
        """Record the latest verdict and folded state (D3, spec 6.3); its number over all."""
        ...

    async def note_findings(self, found: Sequence[Finding], matched: Collection[int]) -> int:
        """Keep `found` with their evidence, and resolve what stands of the executions `matched`.

        Returns:
            How many pieces of evidence had to go for it.
        """
        ...

    def on_commit(self, then: Callable[[], None]) -> None:
        """Call `then` right after COMMIT and before the next unit begins; not after a rollback."""
        ...

    async def see_epoch(self, epoch: str, now: int) -> None:
        """Remember that the server was in `epoch` at `now`."""
        ...

    async def epochs(self) -> tuple[EpochSpan, ...]:
        """All epochs seen, oldest first."""
        ...


def save_due(unit: Unit, execution_id: int, before: Due | None, after: Due | None) -> None:
    """Write what became of an entry, if anything did."""
    if after is None and before is not None:
        unit.drop_due(execution_id)
    elif after is not None and after != before:
        unit.put_due(after)


class Store(StoredKeys, Protocol):
    """The chain store as the live line uses it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def rejoining(self) -> bool:
        """The gate NOETL_CHAIN_REJOIN: proofs are kept, and joins order a chain."""
        ...

    async def transact(self, work: Callable[[Unit], Awaitable[T]]) -> T:
        """Run `work` in one write transaction, alone, to its end even if the caller is cancelled.

        Raises:
            StoreFull, StoreBusy: rolled back, nothing lost; try again.
            StoreError: rolled back.
        """
        ...

    async def cursors(self) -> dict[str, Cursor]:
        """Every lane's cursor by lane key."""
        ...

    async def due_now(self, now: int, limit: int) -> list[int]:
        """Executions whose entry is due at `now`, oldest first."""
        ...


class Lane(Protocol):
    """One lane that follows the table."""

    @property
    def name(self) -> str:
        """`live`, `late`, `sweep` or `wal`: the value of the metric label `lane`."""
        ...

    def batches(self) -> AsyncGenerator[Batch, None]:
        """Start from the store's cursors and follow the table without end.

        The caller stores a batch before it asks for the next one: asking says that the
        batch, cursor included, is durable.  After a failure the caller closes this iterator
        and asks for a new one, which starts from the store's cursors again.

        Raises:
            SourceError: the poll failed; nothing was moved.
        """
        ...


class LogSummer(Protocol):
    """The log's side of a comparison by sums; see `core.sums`."""

    @property
    def read_limit(self) -> int:
        """Rows; an execution with so many is truncated."""
        ...

    async def counts(self, low: int, high: int, limit: int) -> list[tuple[int, int]]:
        """(execution_id, rows) of the first `limit` executions of a range, ascending."""
        ...

    async def between(self, low: int, high: int, without: Sequence[int]) -> Mapping[int, Sums]:
        """The sums of every execution with rows and low <= execution_id <= high, but `without`.

        Raises:
            SourceError: the read failed; it says nothing about the log.
        """
        ...

    async def of(self, execution_ids: Sequence[int]) -> Mapping[int, Sums]:
        """The sums of some executions; one without rows has zeros."""
        ...

    async def ours(self, execution_ids: Sequence[int]) -> list[int]:
        """Those that fall to this shard, in their order."""
        ...


class StoredSummer(Protocol):
    """The store's side, recomputed from its event rows beside whoever writes them."""

    async def counts(self, low: int, high: int, limit: int) -> list[tuple[int, int]]:
        """(execution_id, rows) of the first `limit` executions of a range, ascending.

        Also of those of which only a record is left.
        """
        ...

    async def between(self, low: int, high: int) -> Mapping[int, StoredSums]:
        """The sums of every execution with rows and low <= execution_id <= high."""
        ...

    async def of(self, execution_ids: Collection[int]) -> Mapping[int, StoredSums]:
        """The same for those of some executions that have rows."""
        ...

    async def starts(self, execution_ids: Collection[int]) -> Mapping[int, Event]:
        """The event at the first place of those that have one."""
        ...


class AuditBook(Protocol):
    """What an audit has to remember, in the chain store."""

    async def latest(self) -> tuple[Round | None, int | None]:
        """The round that was begun last, and when one was last finished."""
        ...

    async def executions(self, up_to: int) -> int:
        """How many executions with an id up to this one the store knows."""
        ...

    async def standings(self, execution_ids: Collection[int]) -> Mapping[int, Standing]:
        """What is known of each beside its rows."""
        ...

    async def save(
        self,
        progress: Round,
        seen: Mapping[int, str],
        forgotten: Collection[int],
        work: Callable[[Unit], Awaitable[T]],
    ) -> T:
        """Run `work` in one write transaction, together with how far the round has come.

        Args:
            seen: Fingerprints of what `work` hands over.
            forgotten: Executions whose fingerprint is of no use any more.

        Raises:
            StoreError: rolled back.
        """
        ...
