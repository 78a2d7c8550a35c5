"""A small Postgres: transactions with ids, snapshots, a partition tree, epochs, crashes.

What is modelled is what spec 1.8 rests on.  A row is visible when its transaction has
committed, whatever its id and whenever it was inserted.  Ids are given at the first write, to
savepoints too; a snapshot's xmin is the oldest running one and its xmax the latest completed
plus one, so greater ids may be running.  A crash takes the last commits along that no later
synchronous commit flushed, and gives their ids again.  A partition can leave the tree and come back
with rows older than every horizon.

Times are microseconds since 1970 by the server's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sidecar.core.event import Event
from sidecar.core.ports import Key

XID_SPAN = 2**32
FIRST_NORMAL_XID = 3
ROOT_RELID = 16384


@dataclass(frozen=True, slots=True)
class Row:
    """One version of a row as its writer wrote it."""

    event: Event
    created_at: int
    ingested_at: int


@dataclass(frozen=True, slots=True)
class Version:
    """A row in the table.  `xid`: 64 bits, of the transaction or savepoint that wrote it."""

    row: Row
    xid: int
    relid: int


@dataclass(frozen=True, slots=True)
class Partition:
    """low <= execution_id < high; None: DEFAULT.  `attached`: the xid that attached it."""

    relid: int
    bounds: tuple[int, int] | None
    attached: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one statement sees of the transactions."""

    xmin: int
    xmax: int


@dataclass(slots=True)
class Transaction:
    """A running one; `xid` None until it writes."""

    xid: int | None = None
    latest: int = 0
    writes: list[tuple[Key, Row | None, int]] = field(default_factory=list)
    """Key, the new version or None for a deletion, xid."""


@dataclass(frozen=True, slots=True)
class _Committed:
    at: int
    flushed: bool
    latest_xid: int
    undo: tuple[tuple[Key, Version | None], ...]


class Down(Exception):
    """The server does not run."""


class Server:
    """The committed table and what is under way.

    Args:
        partitions: Bounds (low, high) of the partitions; a DEFAULT takes the rest.
        next_xid: The first transaction id, 64 bits.
    """

    def __init__(self, partitions: list[tuple[int, int]], *, next_xid: int) -> None:
        self.up = True
        self.incarnation = 0
        self._next_xid = next_xid
        self._completed = self._first_xid = next_xid - 1
        self._running: dict[int, Transaction] = {}
        self._journal: list[_Committed] = []
        self._starts = self._resets = 1
        self.table: dict[Key, Version] = {}
        bounds: list[tuple[int, int] | None] = [*partitions, None]
        self.tree = tuple(Partition(ROOT_RELID + 1 + n, each, 700 + n) for n, each in enumerate(bounds))
        self._away: dict[int, Partition] = {}

    # What a statement sees

    @property
    def epoch(self) -> str:
        return f"7000000000000000000/00000001/{self._starts}/{self._resets}"

    @property
    def fingerprint(self) -> str:
        return ";".join(f"{part.relid},{part.attached}" for part in self.tree)

    @property
    def next_xid(self) -> int:
        """The next unassigned id, 64 bits."""
        return self._next_xid

    def snapshot(self) -> Snapshot:
        xmax = _next(self._completed)
        return Snapshot(min([xmax, *(xid for xid in self._running if xid < xmax)]), xmax)

    def visible(self, tree: tuple[Partition, ...] | None = None) -> Iterator[Version]:
        """The committed rows of a list of partitions; None: of the tree as it stands."""
        relids = {part.relid for part in (self.tree if tree is None else tree)}
        return (version for version in self.table.values() if version.relid in relids)

    def of(self, execution_id: int) -> dict[int, Event]:
        """One execution's visible rows by event id."""
        return {
            version.row.event.event_id: version.row.event
            for version in self.visible()
            if version.row.event.execution_id == execution_id
        }

    # Transactions

    def insert(self, transaction: Transaction, row: Row, *, savepoint: bool = False) -> None:
        self._write(transaction, (row.event.execution_id, row.event.event_id), row, savepoint)

    def delete(self, transaction: Transaction, key: Key) -> None:
        self._write(transaction, key, None, False)

    def _write(self, transaction: Transaction, key: Key, row: Row | None, savepoint: bool) -> None:
        if not self.up:
            raise Down
        if transaction.xid is None:
            transaction.xid = self._assign()
            self._running[transaction.xid] = transaction
        xid = self._assign() if savepoint else transaction.xid
        transaction.latest = max(transaction.latest, xid)
        transaction.writes.append((key, row, xid))

    def begin_writing(self, transaction: Transaction) -> None:
        """Take an id and write nothing: an idle session that pins the horizon."""
        if not self.up:
            raise Down
        transaction.xid = transaction.latest = self._assign()
        self._running[transaction.xid] = transaction

    def commit(self, transaction: Transaction, at: int, *, flushed: bool = True) -> bool:
        """False: a crash has ended the transaction before."""
        if not self._end(transaction):
            return False
        undo = []
        for key, row, xid in transaction.writes:
            undo.append((key, self.table.pop(key, None)))
            if row is not None:
                self.table[key] = Version(row, xid, self._home(key[0]))
        self._journal.append(_Committed(at, flushed, transaction.latest, tuple(undo)))
        return True

    def roll_back(self, transaction: Transaction) -> bool:
        return self._end(transaction)

    def _end(self, transaction: Transaction) -> bool:
        if transaction.xid is None or self._running.get(transaction.xid) is not transaction:
            return False
        del self._running[transaction.xid]
        self._completed = max(self._completed, transaction.latest)
        return True

    def _assign(self) -> int:
        xid = self._next_xid
        self._next_xid = _next(xid)
        return xid

    def _home(self, execution_id: int) -> int:
        rest = self.tree[-1]
        for part in self.tree:
            if part.bounds is not None and part.bounds[0] <= execution_id < part.bounds[1]:
                return part.relid
            rest = part if part.bounds is None else rest
        return rest.relid

    # The tree

    def detach(self, relid: int) -> None:
        """The partition leaves with its rows."""
        gone = next(part for part in self.tree if part.relid == relid)
        self._ddl()
        self._away[relid] = gone
        self.tree = tuple(part for part in self.tree if part.relid != relid)

    def attach(self, relid: int) -> None:
        """It comes back, attached by another transaction; its rows are as old as they were.

        Refused, as by Postgres, while DEFAULT holds rows that belong to it.
        """
        if relid not in self._away:
            return
        low, high = self._away[relid].bounds or (0, 0)
        if any(low <= version.row.event.execution_id < high for version in self.visible()):
            return
        back, xid = self._away.pop(relid), self._ddl()
        again = Partition(relid, back.bounds, xid)
        self.tree = tuple(sorted((*self.tree, again), key=lambda part: part.relid))

    def drop(self, relid: int) -> None:
        self.detach(relid)
        del self._away[relid]
        self.table = {key: version for key, version in self.table.items() if version.relid != relid}

    def _ddl(self) -> int:
        xid = self._assign()
        self._completed = max(self._completed, xid)
        self._journal.append(_Committed(0, True, xid, ()))
        return xid

    # Ends

    def crash(self, now: int, *, loses_s: float, postmaster: bool = True) -> dict[Key, Event]:
        """End every session; lose the last commits that nobody waited for.  The lost rows.

        Args:
            loses_s: At most the commits of so many last seconds.
            postmaster: False: it recovers from one backend's end and keeps its start time.
        """
        lost: dict[Key, Event] = {}
        while self._journal and not self._journal[-1].flushed and self._journal[-1].at > now - loses_s * 1e6:
            for key, before in reversed(self._journal.pop().undo):
                gone = self.table.pop(key, None)
                if before is not None:
                    self.table[key] = before
                elif gone is not None:
                    lost[key] = gone.row.event
        self._running.clear()
        durable = max((entry.latest_xid for entry in self._journal), default=self._first_xid)
        if loses_s:
            self._next_xid = _next(durable)
        self._completed = self._next_xid - 1
        self.incarnation += 1
        self._resets += 1
        self._starts += postmaster
        self.up = False
        return lost

    def start(self) -> None:
        self.up = True


def _next(xid: int) -> int:
    """The id after; raw values below 3 are never given."""
    after = xid + 1
    return after if after % XID_SPAN >= FIRST_NORMAL_XID else after - after % XID_SPAN + FIRST_NORMAL_XID
