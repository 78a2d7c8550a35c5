"""The log side put together: one inspected table, readers and lanes with sessions of their own.

Three connections, and one more for each reader, for the audit, the sampler of the roots and the
question who pins H: eight for a running sidecar.  Behind a pooler the pool should hold that many:
a lane may keep a transaction open while the rows of a big poll are being stored, and storing may
need a reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager, suppress

from sidecar.core.ports import Clock
from sidecar.core.shards import Shard
from sidecar.core.walgap import WAL_LANE
from sidecar.source.connection import Session
from sidecar.source.doubt import Doubt
from sidecar.source.log import PostgresLog
from sidecar.source.options import SourceOptions
from sidecar.source.poll import Poller
from sidecar.source.roots import RootsReader
from sidecar.source.slot import SlotReader, SlotUnfinished
from sidecar.source.sums import LogSums
from sidecar.source.sweep import SweepLane
from sidecar.source.table import EventTable, inspect
from sidecar.source.tail import LaneStore, WindowLane
from sidecar.source.wal import CHANGES_MAX, MESSAGE_BYTES, WalLane


class LogSource:
    """`noetl.event` behind one DSN.  Open it with `LogSource.open`.

    Every reader and lane has its own connection, so a slow one holds up no other; connections
    are opened at first use.
    """

    def __init__(self, options: SourceOptions, table: EventTable) -> None:
        self.options = options
        self.table = table
        self._sessions: list[Session] = []

    @classmethod
    async def open(cls, options: SourceOptions) -> LogSource:
        """Inspect the table.

        Raises:
            ConfigError: the DSN or the schema's name cannot be read.
            SourceError: the server cannot be reached, or will not let us read.
        """
        session = Session(options.dsn, query_timeout_s=options.query_timeout_s)
        try:
            return cls(options, await inspect(session, options.schema))
        finally:
            await session.close()

    async def check_tail(self) -> None:
        """Look whether the table can be followed as the options say; the lanes meet it later, too.

        Raises:
            ConfigError: the slot's name is none.
            SourceError: the server cannot be reached, or lacks what the WAL source needs.
        """
        if self.options.tail == "wal":
            slot = self._slot(self.session())
            async with slot.transaction() as transaction:
                with suppress(SlotUnfinished):  # it ends with the transactions that run: the lane waits
                    await slot.look(transaction)

    def reader(self, clock: Clock, *, shard: Shard | None = None) -> PostgresLog:
        """A reader of whole executions, with a connection of its own.

        Args:
            shard: Whose ranges it reads and counts; None: as the options say.
        """
        return self._log(self.session(), clock, shard)

    @asynccontextmanager
    async def lent_reader(self, clock: Clock) -> AsyncIterator[PostgresLog]:
        """A reader whose connection is closed at the end of the block."""
        session = self.session()
        try:
            yield self._log(session, clock)
        finally:
            await session.close()

    def summer(self, clock: Clock) -> LogSums:
        """A reader of sums with a connection of its own, whose every statement has the query's deadline."""
        options = self.options
        return LogSums(
            PostgresLog(self.session(), self.table, clock, read_limit=options.read_limit, shard=options.shard)
        )

    def _log(self, session: Session, clock: Clock, shard: Shard | None = None) -> PostgresLog:
        options = self.options
        return PostgresLog(
            session,
            self.table,
            clock,
            read_limit=options.read_limit,
            shard=shard or options.shard,
            scan_timeout_s=self._scan_timeout_s,
        )

    @property
    def _scan_timeout_s(self) -> float:
        """One statement may have to read a whole cold partition, or a great index."""
        return max(self.options.query_timeout_s, self.options.sweep_round_s)

    def roots(self, window_h: float) -> RootsReader:
        """Counts the roots of the executions of the last hours, with a connection of its own."""
        options = self.options
        return RootsReader(
            self.session(), self.table, options.shard, window_h=window_h, timeout_s=options.query_timeout_s
        )

    def followed(self, store: LaneStore, clock: Clock) -> tuple[WindowLane | SweepLane | WalLane, ...]:
        """The lanes of the source that the options name; the sweep is the last one."""
        return self.wal_lanes(store, clock) if self.options.tail == "wal" else self.lanes(store, clock)

    def wal_lanes(
        self,
        store: LaneStore,
        clock: Clock,
        *,
        changes_max: int = CHANGES_MAX,
        message_bytes: int = MESSAGE_BYTES,
    ) -> tuple[WalLane, SweepLane]:
        """The lanes wal and sweep; the bounds are those of `WalLane`."""
        options, doubt = self.options, Doubt()
        session = self.session()
        wal = WalLane(
            session,
            self._slot(session),
            self.table,
            store,
            clock,
            doubt,
            every_s=options.poll_ms / 1000,
            shard=options.shard,
            changes_max=changes_max,
            message_bytes=message_bytes,
        )
        return wal, self._sweep(store, clock, doubt)

    def _slot(self, session: Session) -> SlotReader:
        options = self.options
        return SlotReader(
            session,
            self.table,
            options.shard,
            slot=options.wal_slot,
            publication=options.wal_publication,
            timeout_s=self._scan_timeout_s,
        )

    def lanes(self, store: LaneStore, clock: Clock) -> tuple[WindowLane, WindowLane, SweepLane]:
        """The lanes live, late and sweep."""
        options = self.options
        live = self._window_lane("live", store, clock, options.live_window_s, options.poll_ms / 1000)
        late = self._window_lane("late", store, clock, options.late_window_s, options.late_poll_s)
        return live, late, self._sweep(store, clock, Doubt(), before=(WAL_LANE,))

    def _sweep(
        self, store: LaneStore, clock: Clock, doubt: Doubt, *, before: Collection[str] = ()
    ) -> SweepLane:
        options = self.options
        # The sweep lists, polls and compares one after the other: one connection.
        session = self.session()
        return SweepLane(
            session,
            self._poller(session, clock),
            self._log(session, clock),
            self.table,
            store,
            round_s=options.sweep_round_s,
            scan_timeout_s=self._scan_timeout_s,
            shard=options.shard,
            doubt=doubt,
            before=before,
        )

    def _window_lane(
        self, name: str, store: LaneStore, clock: Clock, window_s: float, every_s: float
    ) -> WindowLane:
        return WindowLane(
            name,
            self._poller(self.session(), clock),
            self.table,
            store,
            window_s=window_s,
            every_s=every_s,
            shard=self.options.shard,
        )

    def _poller(self, session: Session, clock: Clock) -> Poller:
        return Poller(session, self.table, clock, self.options.shard)

    def session(self) -> Session:
        """A connection of its own, closed with this source."""
        session = Session(self.options.dsn, query_timeout_s=self.options.query_timeout_s)
        self._sessions.append(session)
        return session

    async def close(self) -> None:
        """Close every connection, all at once: a server that does not answer is waited for once."""
        await asyncio.gather(*(session.close() for session in self._sessions))


def wal_lanes(lanes: Iterable[object]) -> list[WalLane]:
    """Those of some lanes that follow the WAL."""
    return [lane for lane in lanes if isinstance(lane, WalLane)]
