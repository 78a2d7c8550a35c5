"""Complete reads of the log: whole executions, each by one statement.

A read that reaches the limit is not known to be complete and says so; a read that failed raises
and says nothing.  Each statement carries its epoch and tree.  A statement that shows another
tree than the one before it may have read an old list of partitions: it is discarded and run
again, and what the next one lacks is not known to be gone (`LogRead.whole`); nor is it while a
partition is being detached.  The anchor is read after the statement, in a transaction of its own.

Two forms of one read: by a list of ids (LATERAL, one index probe each), and by a range of ids
when most of the range is wanted.  What belongs together is decided by `scan`.
Source: spec 1.7, 1.8, 2.13, 4.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sidecar.core.event import Event
from sidecar.core.horizon import Facts, widened_anchor
from sidecar.core.populate import LogRead
from sidecar.core.ports import Clock, ExecutionLog
from sidecar.errors import SourceUnavailable, broken
from sidecar.source.body import body_sql
from sidecar.source.connection import Session, fetch_alone
from sidecar.source.facts import ANCHOR_SQL, FACTS_BODY, Guard, facts_cte, standby
from sidecar.source.options import Shard
from sidecar.source.pieces import PieceSize, weight
from sidecar.source.table import EventTable

READ_BYTES: Final = 32 * 2**20
"""A read of several executions whose bodies exceed this is stopped."""

_TREE_TRIES: Final = 5


class TooManyBytes(Exception):
    """A signal to `scan`, not a failure: the read was stopped at its byte bound, nothing of it was kept."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many rows the log has of an execution, and the exact sum of their event ids."""

    execution_id: int
    rows: int
    id_sum: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts in ascending execution_id, from one statement.  `began_at`: the store's clock."""

    facts: Facts
    began_at: int
    counts: tuple[Count, ...]


class PostgresLog:
    """`LogReader` over one session of its own.  Concurrent callers take turns.

    Args:
        session: Used by nobody else.
        clock: The store's clock, for `began_at`.
        read_limit: Rows; an execution with so many is answered as truncated.
        scan_timeout_s: Deadline of one count, which may pass over millions of index entries;
            None: the session's.
    """

    def __init__(
        self,
        session: Session,
        table: EventTable,
        clock: Clock,
        *,
        read_limit: int = 10_000,
        shard: Shard | None = None,
        scan_timeout_s: float | None = None,
    ) -> None:
        self.table = table
        self.shard = shard or Shard()
        self.read_limit = read_limit
        self._session = session
        self._clock = clock
        self._scan_timeout_s = scan_timeout_s
        self._guard = Guard(table.relid)
        self._tree = table.tree
        self._lock = asyncio.Lock()
        self._by_ids = _by_ids_sql(table)
        self._by_range = _by_range_sql(table, self.shard)
        self._counting = _counting_sql(table, self.shard)

    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        """See `core.ports.LogReader`."""
        return await self.read_ids(execution_ids)

    async def read_some(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        """See `core.ports.BoundedReader`."""
        count = len(execution_ids)
        while True:
            try:
                return await self.read_ids(execution_ids[:count], max_bytes=READ_BYTES)
            except TooManyBytes:
                count //= 2  # a single one is not bounded

    async def read_ids(
        self, execution_ids: Sequence[int], *, max_bytes: int | None = None
    ) -> list[ExecutionLog]:
        """Read executions by a list of ids, one answer each, in order.

        Args:
            max_bytes: Stop a read of more than one execution whose bodies exceed this.

        Raises:
            TooManyBytes: it did; read fewer.
            SourceError: the read failed.
        """
        if not execution_ids:
            return []
        unique = list(dict.fromkeys(execution_ids))
        bound = max_bytes if len(unique) > 1 else None
        found = await self._logs(self._by_ids, (unique, self.read_limit), unique, bound)
        return [found[execution_id] for execution_id in execution_ids]

    async def read_range(
        self, low: int, high: int, execution_ids: Sequence[int], *, max_bytes: int | None = None
    ) -> list[ExecutionLog]:
        """Read low <= execution_id <= high; `execution_ids` says whose answers are wanted.

        The caller knows from counts that the range holds about as many rows as it wants.

        Raises:
            TooManyBytes, SourceError: as `read_ids`.
        """
        bound = max_bytes if len(execution_ids) > 1 else None
        found = await self._logs(self._by_range, (low, high), execution_ids, bound)
        return [found[execution_id] for execution_id in execution_ids]

    async def count(self, low: int, high: int, limit: int) -> Counted:
        """Count the first `limit` executions with low <= execution_id <= high.

        Raises:
            SourceError: the read failed.
        """
        async with self._lock:
            began_at, facts, rows, _ = await self._settled(
                self._counting, (low, high, limit), None, self._scan_timeout_s
            )
        return Counted(facts, began_at, tuple(Count(row[0], row[1], int(row[5])) for row in rows))

    async def ours(self, execution_ids: Sequence[int]) -> list[int]:
        """Those of `execution_ids` that fall to this shard, in order.

        Raises:
            SourceError: the statement failed.
        """
        if self.shard.count == 1 or not execution_ids:
            return list(execution_ids)
        sql = f"select i.id from unnest($1::bigint[]) as i(id) where true{self.shard.filter_sql('i.id')}"
        rows = await self.fetch(sql, (list(execution_ids),))
        mine = {row[0] for row in rows}
        return [execution_id for execution_id in execution_ids if execution_id in mine]

    async def settled(self, sql: str, args: Sequence[object]) -> list[Any]:
        """Rows of one statement in the shape of an event, read from a tree that stood still.

        Raises:
            SourceError: the statement failed.
        """
        async with self._lock:
            _, _, rows, _ = await self._settled(f"{_facts_first(self.table)} {sql}", tuple(args), None)
        return rows

    async def fetch(self, sql: str, args: Sequence[object] = ()) -> list[Any]:
        """Rows of one statement of this package, in a transaction of its own.

        Raises:
            SourceError: the statement failed.
        """
        async with self._lock:
            return await fetch_alone(self._session, sql, args)

    async def _logs(
        self, sql: str, args: tuple[object, ...], execution_ids: Iterable[int], max_bytes: int | None
    ) -> dict[int, ExecutionLog]:
        async with self._lock:
            began_at, facts, rows, moved = await self._settled(sql, args, max_bytes)
            anchor = await read_anchor(self._session, facts)
        read = LogRead(began_at, facts.epoch, anchor, whole=not moved and not facts.leaving)
        return _grouped(execution_ids, rows, read, self.read_limit)

    async def _settled(
        self, sql: str, args: tuple[object, ...], max_bytes: int | None, timeout_s: float | None = None
    ) -> tuple[int, Facts, list[Any], bool]:
        """When it began, its facts and rows, and whether the tree moved before it stood still."""
        for tried in range(_TREE_TRIES):
            began_at, facts, rows = await self._statement(sql, args, max_bytes, timeout_s)
            known, self._tree = self._tree, facts.tree
            if known == facts.tree:
                return began_at, facts, rows, tried > 0
        raise SourceUnavailable("the partition tree changes without end", hint="it is tried again")

    async def _statement(
        self, sql: str, args: tuple[object, ...], max_bytes: int | None, timeout_s: float | None
    ) -> tuple[int, Facts, list[Any]]:
        rows: list[Any] = []
        total, piece_size = 0, PieceSize()
        async with self._session.transaction(timeout_s) as transaction:
            # Only now: to connect takes long while a server restarts, and what was seen before
            # its epoch would count as a row of the one that ended.
            began_at = self._clock.now()
            portal = await transaction.cursor(sql, *args)
            ended = False
            while not ended:
                wanted = piece_size.rows
                piece = await portal.fetch(wanted)
                rows += piece
                ended = len(piece) < wanted
                size = weight(piece)
                piece_size.learn(len(piece), size)
                total += size
                if max_bytes is not None and total > max_bytes:
                    raise TooManyBytes
        return began_at, *split_facts(self._guard, rows)


def split_facts(guard: Guard, rows: list[Any]) -> tuple[Facts, list[Any]]:
    """Take the facts row off the front."""
    if not rows or rows[0]["execution_id"] is not None:
        broken("a statement over the log begins with its facts")
    return guard.facts(rows[0]["body"]), rows[1:]


async def read_anchor(session: Session, facts: Facts) -> int:
    """The anchor of a statement that has just ended.  Source: spec 2.13.

    Raises:
        SourceContractError: a standby answers, as behind a name or a pooler that takes turns.
    """
    next_xid, recovery = (await fetch_alone(session, ANCHOR_SQL))[0]
    if recovery:
        raise standby()
    return widened_anchor(next_xid, facts.xmax)


def event_of(row: Any) -> Event:
    """The first six columns of a row; NULL links are None."""
    return Event(*row[:6])


def event_columns(table: EventTable, alias: str, body: str) -> str:
    """The six columns of an event, in the order of its fields."""
    return (
        f"{alias}.execution_id, {alias}.event_id, {table.column(alias, 'prev_event_id')} as prev_event_id,"
        f" {table.column(alias, 'parent_execution_id')} as parent_execution_id,"
        f" coalesce({alias}.event_type, '')::text as event_type, {body} as body"
    )


FACTS_EVENT_COLUMNS: Final = (
    "null::bigint as execution_id, null::bigint as event_id, null::bigint as prev_event_id,"
    f" null::bigint as parent_execution_id, null::text as event_type, {FACTS_BODY} as body"
)
"""The facts row in the shape of an event."""


def microseconds_sql(value: str) -> str:
    """A timestamp as microseconds since 1970; NULL for infinity and for what no clock shows.

    Drivers decode `infinity` and year 10000 to wrong or failing values, so none is asked to.
    """
    return (
        f"case when {value} >= '0001-01-01' and {value} < '10000-01-01'"
        f" then round(date_part('epoch', {value}) * 1000000)::bigint end"
    )


def _columns(table: EventTable) -> str:
    return (
        f"{event_columns(table, 'l', body_sql(table.types, 'l'))},"
        f" {microseconds_sql('l.created_at')} as created_us"
    )


def _facts_first(table: EventTable) -> str:
    return (
        f"with {facts_cte(table.regclass)}"
        f" select {FACTS_EVENT_COLUMNS}, null::bigint as created_us from b union all"
    )


def _by_ids_sql(table: EventTable) -> str:
    return (
        f"{_facts_first(table)} select e.* from unnest($1::bigint[]) as i(id) cross join lateral"
        f" (select {_columns(table)} from {table.name} l where l.execution_id = i.id"
        " order by l.event_id limit $2) e"
    )


def _by_range_sql(table: EventTable, shard: Shard) -> str:
    # No order: rows are grouped here, and a sort would spill the bodies to disk.
    return (
        f"{_facts_first(table)} select {_columns(table)} from {table.name} l"
        f" where l.execution_id between $1 and $2{shard.filter_sql('l.execution_id')}"
    )


def _counting_sql(table: EventTable, shard: Shard) -> str:
    # In the shape of an event: a count stands where the event id does, the sum in the body.
    return (
        f"{_facts_first(table)} (select l.execution_id, count(*), null::bigint, null::bigint, null::text,"
        f" sum(l.event_id)::text, null::bigint from {table.name} l"
        f" where l.execution_id between $1 and $2{shard.filter_sql('l.execution_id')}"
        " group by l.execution_id order by l.execution_id limit $3)"
    )


def _grouped(
    execution_ids: Iterable[int], rows: Sequence[Any], read: LogRead, limit: int
) -> dict[int, ExecutionLog]:
    found: dict[int, list[Event]] = {execution_id: [] for execution_id in execution_ids}
    newest: dict[int, int] = {}
    unknown: list[Event] = []
    for row in rows:
        event = event_of(row)
        found.get(event.execution_id, unknown).append(event)
        created, at = row["created_us"], newest.get(event.execution_id)
        if created is not None and (at is None or created > at):
            newest[event.execution_id] = created
    return {
        execution_id: ExecutionLog(
            execution_id, tuple(events) if len(events) < limit else None, read, newest.get(execution_id)
        )
        for execution_id, events in found.items()
    }
