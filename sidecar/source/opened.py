"""The log side put together: one inspected table, readers and lanes with sessions of their own.

Three connections, and one more for each reader, for the audit, the sampler of the roots and the
question who pins H: eight for a running sidecar.  Behind a pooler the pool should hold that many:
a lane may keep a transaction open while the rows of a big poll are being stored, and storing may
need a reader.
"""

from __future__ import annotations

import asyncio

from sidecar.core.ports import Clock
from sidecar.source.connection import Session
from sidecar.source.log import PostgresLog
from sidecar.source.options import SourceOptions
from sidecar.source.poll import Poller
from sidecar.source.roots import RootsReader
from sidecar.source.sums import LogSums
from sidecar.source.sweep import SweepLane
from sidecar.source.table import EventTable, inspect
from sidecar.source.tail import LaneStore, WindowLane


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

    def reader(self, clock: Clock) -> PostgresLog:
        """A reader of whole executions, with a connection of its own."""
        return self._log(self.session(), clock)

    def summer(self, clock: Clock) -> LogSums:
        """A reader of sums with a connection of its own, whose every statement has the query's deadline."""
        options = self.options
        return LogSums(
            PostgresLog(self.session(), self.table, clock, read_limit=options.read_limit, shard=options.shard)
        )

    def _log(self, session: Session, clock: Clock) -> PostgresLog:
        options = self.options
        return PostgresLog(
            session,
            self.table,
            clock,
            read_limit=options.read_limit,
            shard=options.shard,
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

    def lanes(self, store: LaneStore, clock: Clock) -> tuple[WindowLane, WindowLane, SweepLane]:
        """The lanes live, late and sweep."""
        options = self.options
        live = self._window_lane("live", store, clock, options.live_window_s, options.poll_ms / 1000)
        late = self._window_lane("late", store, clock, options.late_window_s, options.late_poll_s)
        # The sweep lists, polls and compares one after the other: one connection.
        session = self.session()
        sweep = SweepLane(
            session,
            self._poller(session, clock),
            self._log(session, clock),
            self.table,
            store,
            round_s=options.sweep_round_s,
            scan_timeout_s=self._scan_timeout_s,
            shard=options.shard,
        )
        return live, late, sweep

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
