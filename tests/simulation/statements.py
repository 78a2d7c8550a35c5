"""The statements that `sidecar.source` sends, answered by the small Postgres.

The seam is the session, so lanes, polls, counts and log reads are the program's own.  A
statement is known by its whole text, built by the program's own functions: one that changes is
refused here, and never answered by what it meant before.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sidecar.errors import SourceUnavailable
from sidecar.source import log as log_statements
from sidecar.source.facts import ANCHOR_SQL
from sidecar.source.options import Shard
from sidecar.source.partitions import listing_sql
from sidecar.source.poll import Intervals, Window, bodies_sql, poll_sql
from sidecar.source.table import EventTable
from tests.simulation.clockwork import microseconds
from tests.simulation.server import ROOT_RELID, XID_SPAN, Partition, Server, Snapshot, Version

TABLE = EventTable(
    schema="noetl",
    database="simulated",
    relid=ROOT_RELID,
    server_version=160000,
    types=dict.fromkeys(("execution_id", "event_id", "prev_event_id", "parent_execution_id"), "bigint")
    | {"event_type": "text", "created_at": "timestamp", "ingest_time": "timestamp"},
    missing=(),
    partitioned=True,
    tree="",
)

_INTERVAL = re.compile(r"between '(-?\d+)'::bigint and '(-?\d+)'::bigint")
_WINDOW = re.compile(r"- interval '([\d.]+) seconds'")
_NAMES = ("execution_id", "event_id", "prev_event_id", "parent_execution_id", "event_type", "body")
_POLLED = {name: n for n, name in enumerate((*_NAMES, "xmin", "ingested"))}
_READ = {name: n for n, name in enumerate((*_NAMES, "created_us"))}
_LISTED = {name: n for n, name in enumerate(("body", "relid", "attached", "leaving", "bound", "tree"))}
_PLAIN: dict[str, int] = {}

_Rows = list["Record"]


class Record(tuple[Any, ...]):
    """A row by place and by name, as the driver gives it."""

    names: dict[str, int]

    @classmethod
    def of(cls, names: dict[str, int], *values: object) -> Record:
        record = cls(values)
        record.names = names
        return record

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.names[key] if isinstance(key, str) else key)


@dataclass(slots=True)
class Weather:
    """How long things take and what breaks; the numbers are probabilities and seconds.

    `storm`: while it is True, `failing` of all calls fail.  `stalled`: while it is True, many calls
    take so long that polls are skipped.  `slow_answers` of the log reads take seconds.
    """

    chance: random.Random
    calm: float = 0.6
    slow_s: float = 0.02
    failing: float = 0.0
    storm: bool = False
    stalled: bool = False
    slow_answers: float = 0.0

    async def travel(self) -> None:
        """A complete log read comes back late, with what was true when it was asked."""
        if self.slow_answers and self.chance.random() < self.slow_answers:
            await asyncio.sleep(0.3 + self.chance.random() * 3)

    async def pass_by(self, *, may_fail: bool = True) -> None:
        if self.stalled and self.chance.random() < 0.2:
            await asyncio.sleep(self.chance.random() * 2)
        if self.storm and self.chance.random() < 0.3:
            await asyncio.sleep(self.chance.random() * 30 * self.slow_s)
        elif self.chance.random() > self.calm:
            await asyncio.sleep(self.chance.random() * self.slow_s)
        if may_fail and self.storm and self.chance.random() < self.failing:
            raise SourceUnavailable("the simulated network broke", hint="")


class Statements:
    """Every statement over one server, by its text."""

    def __init__(self, server: Server, shard: Shard | None = None) -> None:
        self.server = server
        self._shard = shard or Shard()
        self._known: dict[str, Callable[[_View, Sequence[Any]], _Rows]] = {
            log_statements._by_ids_sql(TABLE): _by_ids,
            log_statements._by_range_sql(TABLE, self._shard): _by_range,
            log_statements._counting_sql(TABLE, self._shard): _counts,
            listing_sql(TABLE): _listing,
            bodies_sql(TABLE): _bodies,
            ANCHOR_SQL: _anchor,
        }
        self.log_reads = {log_statements._by_ids_sql(TABLE), log_statements._by_range_sql(TABLE, self._shard)}
        self._polls: dict[str, tuple[Window | Intervals, bool, bool]] = {}

    def plan(self, sql: str) -> tuple[Partition, ...]:
        """What a backend plans over, before it takes its snapshot."""
        return self.server.tree

    def run(self, sql: str, args: Sequence[Any], planned: tuple[Partition, ...]) -> _Rows:
        """All rows of a statement, from one snapshot taken now."""
        server = self.server
        view = _View(server, server.snapshot(), planned, microseconds())
        if (known := self._known.get(sql)) is not None:
            return known(view, args)
        over, filtered, bodies = self._poll(sql)
        return _polled(view, args, over, filtered=filtered, bodies=bodies)

    def _poll(self, sql: str) -> tuple[Window | Intervals, bool, bool]:
        if sql not in self._polls:
            over: Window | Intervals
            if found := _WINDOW.search(sql):
                over = Window(float(found[1]))
            else:
                over = Intervals(tuple((int(low), int(high)) for low, high in _INTERVAL.findall(sql)))
            made = {
                poll_sql(TABLE, over, self._shard, filtered=filtered, bodies=bodies): (over, filtered, bodies)
                for filtered in (False, True)
                for bodies in (False, True)
            }
            if sql not in made:
                raise AssertionError(f"the simulated server does not know this statement: {sql}")
            self._polls |= made
        return self._polls[sql]


@dataclass(frozen=True, slots=True)
class _View:
    """What one statement sees."""

    server: Server
    snapshot: Snapshot
    planned: tuple[Partition, ...]
    now: int

    def rows(self) -> Iterable[Version]:
        return self.server.visible(self.planned)

    @property
    def facts(self) -> str:
        server = self.server
        return json.dumps(
            {
                "h": self.snapshot.xmin,
                "mx": self.snapshot.xmax,
                "t": self.now,
                "rec": False,
                "epoch": server.epoch,
                "tree": server.fingerprint,
                "relid": ROOT_RELID,
            }
        )

    def first(self, names: dict[str, int]) -> Record:
        return Record.of(names, *[None] * 5, self.facts, *[None] * (len(names) - 6))


def _columns(version: Version) -> tuple[object, ...]:
    event = version.row.event
    return (
        event.execution_id,
        event.event_id,
        event.prev_event_id,
        event.parent_execution_id,
        event.event_type,
        event.body,
    )


def _polled(
    view: _View, args: Sequence[Any], over: Window | Intervals, *, filtered: bool, bodies: bool
) -> _Rows:
    polled_at = args[0] if isinstance(over, Window) else None
    since = None
    if filtered:
        # The parameter is H modulo 2^32: how far it lies behind the snapshot says which one.
        since = view.snapshot.xmax - (view.snapshot.xmax - int(args[-1])) % XID_SPAN
    found = [view.first(_POLLED)]
    for version in view.rows():
        if since is not None and not since <= version.xid < view.snapshot.xmax:
            continue
        if isinstance(over, Window):
            begin = min(view.now, view.now if polled_at is None else polled_at) - over.seconds * 1e6
            if version.row.created_at < begin:
                continue
        elif not any(low <= version.row.event.execution_id <= high for low, high in over.ranges):
            continue
        columns = _columns(version)
        shown = columns if bodies else (*columns[:5], None)
        found.append(Record.of(_POLLED, *shown, version.xid % XID_SPAN, version.row.ingested_at))
    return found


def _bodies(view: _View, args: Sequence[Any]) -> _Rows:
    wanted = list(zip(args[0], args[1], strict=True))
    at = {(v.row.event.execution_id, v.row.event.event_id): v for v in view.rows()}
    return [
        Record.of(_POLLED, *_columns(at[key]), at[key].xid % XID_SPAN, at[key].row.ingested_at)
        for key in wanted
        if key in at
    ]


def _by_ids(view: _View, args: Sequence[Any]) -> _Rows:
    ids, limit = args
    found = [view.first(_READ)]
    for execution_id in ids:
        rows = [v for v in view.rows() if v.row.event.execution_id == execution_id]
        rows.sort(key=lambda v: v.row.event.event_id)
        found += [_read_row(version) for version in rows[:limit]]
    return found


def _by_range(view: _View, args: Sequence[Any]) -> _Rows:
    low, high = args
    rows = [v for v in view.rows() if low <= v.row.event.execution_id <= high]
    return [view.first(_READ), *map(_read_row, rows)]


def _read_row(version: Version) -> Record:
    return Record.of(_READ, *_columns(version), version.row.created_at)


def _counts(view: _View, args: Sequence[Any]) -> _Rows:
    low, high, limit = args
    ids: dict[int, list[int]] = {}
    for version in view.rows():
        event = version.row.event
        if low <= event.execution_id <= high:
            ids.setdefault(event.execution_id, []).append(event.event_id)
    rows = [
        Record.of(
            _READ, execution_id, len(ids[execution_id]), None, None, None, str(sum(ids[execution_id])), None
        )
        for execution_id in sorted(ids)[:limit]
    ]
    return [view.first(_READ), *rows]


def _listing(view: _View, args: Sequence[Any]) -> _Rows:
    facts = view.facts
    return [
        Record.of(
            _LISTED,
            facts,
            part.relid,
            str(part.attached),
            False,
            "DEFAULT"
            if part.bounds is None
            else f"FOR VALUES FROM ('{part.bounds[0]}') TO ('{part.bounds[1]}')",
            "-",
        )
        for part in view.server.tree
    ]


def _anchor(view: _View, args: Sequence[Any]) -> _Rows:
    return [Record.of(_PLAIN, view.server.next_xid % XID_SPAN, False)]


class SimulatedSession:
    """As `sidecar.source.connection.Session`."""

    def __init__(self, statements: Statements, weather: Weather) -> None:
        self._statements = statements
        self._weather = weather
        self._incarnation: int | None = None

    @asynccontextmanager
    async def transaction(self, timeout_s: float | None = None) -> AsyncIterator[SimulatedTransaction]:
        try:
            await self._weather.pass_by()
            server = self._statements.server
            if self._incarnation is None and server.up:
                self._incarnation = server.incarnation
            self.check()
            yield SimulatedTransaction(self)
            await self._weather.pass_by()
            self.check()
        except BaseException:
            self.drop()
            raise

    def check(self) -> None:
        server = self._statements.server
        if not server.up or self._incarnation != server.incarnation:
            raise SourceUnavailable("the simulated server is away", hint="")

    async def run(self, sql: str, args: Sequence[Any]) -> _Rows:
        await self._weather.pass_by()
        self.check()
        planned = self._statements.plan(sql)
        await self._weather.pass_by(may_fail=False)
        self.check()
        rows = self._statements.run(sql, args, planned)
        await self._weather.pass_by()
        if sql in self._statements.log_reads:
            await self._weather.travel()
        return rows

    async def piece(self) -> None:
        await self._weather.pass_by()
        self.check()

    def drop(self) -> None:
        self._incarnation = None

    async def close(self) -> None:
        self.drop()


class SimulatedTransaction:
    """As `sidecar.source.connection.Transaction`."""

    def __init__(self, session: SimulatedSession) -> None:
        self._session = session

    async def fetch(self, sql: str, *args: object) -> _Rows:
        return await self._session.run(sql, args)

    async def cursor(self, sql: str, *args: object) -> SimulatedPortal:
        return SimulatedPortal(self._session, await self._session.run(sql, args))


class SimulatedPortal:
    """As `sidecar.source.connection.Portal`; between pieces the connection may break."""

    def __init__(self, session: SimulatedSession, rows: _Rows) -> None:
        self._session = session
        self._rows = rows

    async def fetch(self, rows: int) -> _Rows:
        await self._session.piece()
        taken, self._rows = self._rows[:rows], self._rows[rows:]
        return taken
