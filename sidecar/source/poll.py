"""One poll of one range: the rows that became visible since the lane's H, from one snapshot.

With an H the filter is `age(xmin) between lo and hi`, both bounds computed once from the
statement's own snapshot.  Without one there is no predicate at all: a frozen row keeps its raw
xmin and any predicate could lose it.

Rows are streamed piece by piece, so a poll of millions needs no memory of ours; keys alone can
be streamed, and the bodies fetched of those that are wanted.  What a poll decides about the
lane's cursor is `core.horizon`; this module reports the facts.
Source: spec 1.8, 2.13; evidence 2b.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.core.event import Event
from sidecar.core.horizon import Facts, TailRow, horizon_parameter, xid_of
from sidecar.core.ports import Clock, Key
from sidecar.source.body import body_sql
from sidecar.source.connection import Session, Transaction
from sidecar.source.facts import Guard, facts_cte
from sidecar.source.log import (
    FACTS_EVENT_COLUMNS,
    event_columns,
    event_of,
    microseconds_sql,
    read_anchor,
    split_facts,
)
from sidecar.source.options import Shard
from sidecar.source.pieces import PieceSize, weight
from sidecar.source.table import EventTable

PIECE_ROWS: Final = 5000
PIECE_BYTES: Final = 8 * 2**20
_FETCH_KEYS: Final = 5000

SEEN_MAX: Final = 200_000
"""How many rows a lane remembers; what lies beyond is emitted again, and known to the store."""

Seen = Mapping[Key, int]
"""What a lane emitted at or above its H: key to raw xmin."""

Unknown = Callable[[Sequence[Key]], Awaitable[Sequence[Key]]]
"""Those of some keys whose bodies are wanted, in their order."""


@dataclass(frozen=True, slots=True)
class Window:
    """Rows created since min(now, `polled_at`) - `seconds`."""

    seconds: float

    @property
    def predicate(self) -> str:
        """The lane's range as its scope names it."""
        return f"created_at:{self.seconds!r}"

    def where(self, alias: str) -> str:
        # created_at is naive UTC; now() alone would be compared in the session's zone.
        last = "timestamp '1970-01-01' + $1::bigint * interval '1 microsecond'"
        return (
            f"{alias}.created_at >= least(now() at time zone 'UTC', {last})"
            f" - interval '{self.seconds:f} seconds'"
        )

    def args(self, polled_at: int | None) -> tuple[object, ...]:
        return (polled_at,)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Rows whose execution_id lies in one of some ranges, both ends included."""

    ranges: tuple[tuple[int, int], ...]

    @property
    def predicate(self) -> str:
        return "execution_id:" + ",".join(f"{low}..{high}" for low, high in self.ranges)

    def where(self, alias: str) -> str:
        # Constants, so that the planner reads the one partition they belong to.
        return (
            "("
            + " or ".join(
                f"{alias}.execution_id between '{low}'::bigint and '{high}'::bigint"
                for low, high in self.ranges
            )
            + ")"
        )

    def args(self, polled_at: int | None) -> tuple[object, ...]:
        return ()


Range = Window | Intervals


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a poll.  `last`: nothing follows, and `seen` is what to remember.

    `anchor`: None for all pieces but the last.  `began_at`: the store's clock before the
    statement was sent.
    """

    facts: Facts
    anchor: int | None
    rows: tuple[TailRow, ...]
    began_at: int
    last: bool
    seen: Seen = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What to poll.

    `horizon` None: without predicate.  `unknown` not None: stream keys, ask it, and fetch
    the bodies of its answer, of versions that are not those of `seen`, and of what an xid from
    `newer` on wrote: a key that the store holds may stand there with other bytes.
    """

    range: Range
    polled_at: int | None
    horizon: int | None
    seen: Seen
    unknown: Unknown | None
    timeout_s: float | None = None
    newer: int | None = None


class Poller:
    """Runs polls over one session of its own."""

    def __init__(self, session: Session, table: EventTable, clock: Clock, shard: Shard) -> None:
        self._session = session
        self._table = table
        self._clock = clock
        self._shard = shard
        self._guard = Guard(table.relid)
        self._bodies = bodies_sql(table)

    async def run(self, request: Request, accept: Callable[[Facts], bool]) -> AsyncGenerator[Piece, None]:
        """Poll, unless `accept` refuses the poll's facts; then nothing is yielded.

        The rows of a piece are to be stored before the next is asked for.  The transaction
        stays open between pieces and has ended when the last one is yielded.  Only then is
        the anchor read, over the same connection: to wait for a second one while holding a
        first is a deadlock behind a small pooler.  So the earlier pieces have none.

        Raises:
            SourceError: the poll failed; the pieces yielded so far stand.
        """
        taken, size = _Taken(request), PieceSize()
        async with self._session.transaction(request.timeout_s) as transaction:
            # Only now: to connect takes long while a server restarts.
            began_at = self._clock.now()
            portal = await transaction.cursor(*self._statement(request))
            count = _FETCH_KEYS if request.unknown is not None else size.rows
            fetched = await portal.fetch(count)
            facts, rows = split_facts(self._guard, fetched)
            if not accept(facts):
                return
            while True:
                fresh = taken.fresh(rows, facts)
                versions = {(row[0], row[1]): row[6] for row in fresh}
                wanted = await _wanted(request, fresh, facts)
                while wanted:
                    found, wanted = await self._bodied(transaction, request, wanted, size)
                    taken.add(found, versions, facts, self._clock.now())
                    if taken.full:
                        yield Piece(facts, None, taken.cut(facts, None), began_at, last=False)
                if len(fetched) < count:
                    break
                count = _FETCH_KEYS if request.unknown is not None else size.rows
                fetched = rows = await portal.fetch(count)
        anchor = await read_anchor(self._session, facts)
        yield Piece(facts, anchor, taken.cut(facts, anchor), began_at, last=True, seen=taken.seen)

    def _statement(self, request: Request) -> tuple[Any, ...]:
        sql = poll_sql(
            self._table,
            request.range,
            self._shard,
            filtered=request.horizon is not None,
            bodies=request.unknown is None,
        )
        args = request.range.args(request.polled_at)
        if request.horizon is not None:
            args += (horizon_parameter(request.horizon),)
        return (sql, *args)

    async def _bodied(
        self, transaction: Transaction, request: Request, wanted: Sequence[Any], size: PieceSize
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Some rows with bodies, and what is left of `wanted`: rows, or keys to look up."""
        found, left = wanted, wanted[:0]
        if request.unknown is not None:
            keys, left = wanted[: size.rows], wanted[size.rows :]
            found = await transaction.fetch(self._bodies, [key[0] for key in keys], [key[1] for key in keys])
        size.learn(len(found), weight(found))
        return found, left


async def _wanted(request: Request, fresh: list[Any], facts: Facts) -> Sequence[Any]:
    """The fresh rows themselves; of keys, the unknown ones and those that changed."""
    if request.unknown is None or not fresh:
        return fresh
    unknown = set(await request.unknown([(row[0], row[1]) for row in fresh]))
    return [
        key for row in fresh if (key := (row[0], row[1])) in unknown or _changed(request, key, row[6], facts)
    ]


def _changed(request: Request, key: Key, xmin: int, facts: Facts) -> bool:
    """Whether a fresh version must be another one than the last poll emitted, if it did."""
    xid = xid_of(xmin, facts.xmax)
    return key in request.seen or (request.newer is not None and xid is not None and xid >= request.newer)


class _Taken:
    """Rows taken from a poll and not yet handed on, and what the lane will remember."""

    def __init__(self, request: Request) -> None:
        self._before = request.seen
        self._filtered = request.horizon is not None
        self._rows: list[tuple[Event, int, int | None, int, int | None]] = []
        self._bytes = 0
        self.seen: dict[Key, int] = {}

    def fresh(self, rows: list[Any], facts: Facts) -> list[Any]:
        """The rows whose version was not emitted before."""
        fresh = []
        for row in rows:
            key, xmin = (row[0], row[1]), row[6]
            xid = xid_of(xmin, facts.xmax)
            if xid is not None and xid >= facts.horizon and len(self.seen) < SEEN_MAX:
                # It comes again with the next poll: remember it, new or not.
                self.seen[key] = xmin
            if self._before.get(key) != xmin:
                fresh.append(row)
        return fresh

    def add(self, rows: Sequence[Any], versions: Mapping[Key, int], facts: Facts, seen_at: int) -> None:
        """Take rows; `versions` says which version of each this poll's snapshot showed."""
        for row in rows:
            event = event_of(row)
            key, xmin = (event.execution_id, event.event_id), row[6]
            # A key emitted before in another version, or changed between its key and its
            # body, was not inserted by this xid.
            first = self._before.get(key, xmin) == xmin == versions[key]
            xid = xid_of(xmin, facts.xmax) if self._filtered and first else None
            self._rows.append((event, xmin, xid, seen_at, row[7]))
            self._bytes += len(event.body)

    @property
    def full(self) -> bool:
        return len(self._rows) >= PIECE_ROWS or self._bytes >= PIECE_BYTES

    def cut(self, facts: Facts, anchor: int | None) -> tuple[TailRow, ...]:
        """Hand on what was taken since the last cut."""
        rows, self._rows, self._bytes = self._rows, [], 0
        return tuple(
            TailRow(event, xmin, xid, facts.epoch, anchor, seen_at, ingested_at)
            for event, xmin, xid, seen_at, ingested_at in rows
        )


def poll_sql(table: EventTable, over: Range, shard: Shard, *, filtered: bool, bodies: bool) -> str:
    """The one-statement poll.

    Parameters: those of the range, then (filtered) H modulo 2^32 as text.
    """
    parameter = f"${len(over.args(None)) + 1}"
    age = " and age(l.xmin) between (select lo from b) and (select hi from b)" if filtered else ""
    return (
        f"with {facts_cte(table.regclass, parameter if filtered else None)}"
        f" select {FACTS_EVENT_COLUMNS}, null::bigint as xmin, null::bigint as ingested from b union all"
        f" select {_columns(table, body_sql(table.types, 'l') if bodies else 'null::text')}"
        f" from {table.name} l where {over.where('l')}{age}{shard.filter_sql('l.execution_id')}"
    )


def bodies_sql(table: EventTable) -> str:
    """The rows of some keys, each by one probe of the primary key."""
    return (
        "select e.* from unnest($1::bigint[], $2::bigint[]) as k(execution_id, event_id) cross join lateral"
        f" (select {_columns(table, body_sql(table.types, 'l'))} from {table.name} l"
        " where l.execution_id = k.execution_id and l.event_id = k.event_id limit 1) e"
    )


def _columns(table: EventTable, body: str) -> str:
    ingested = "null::bigint"
    if "ingest_time" in table.types:
        ingested = microseconds_sql("l.ingest_time")
    return f"{event_columns(table, 'l', body)}, l.xmin::text::bigint as xmin, {ingested} as ingested"
