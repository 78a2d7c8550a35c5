"""The sums of the log's chains, computed in Postgres over the canonical body.

Only three numbers an execution travel.  A statement is bounded by its caller, who knows from
counts how many rows a range has.  Source: design 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.core.sums import MODULUS, Sums
from sidecar.source.body import body_sql
from sidecar.source.log import PostgresLog
from sidecar.source.table import EventTable


class LogSums:
    """`core.ports.LogSummer` over a reader of the log, which may be shared."""

    def __init__(self, log: PostgresLog) -> None:
        self._log = log
        numbers = _numbers_sql(log.table)
        table, ours = log.table.name, log.shard.filter_sql("l.execution_id")
        self._between = (
            f"(select l.execution_id, {numbers} from {table} l where l.execution_id between $1 and $2"
            f" and l.execution_id <> all ($3::bigint[]){ours} group by l.execution_id)"
        )
        self._of = (
            "select i.id as execution_id, e.* from unnest($1::bigint[]) as i(id) cross join lateral"
            f" (select {numbers} from {table} l where l.execution_id = i.id) e"
        )

    @property
    def read_limit(self) -> int:
        """Rows; an execution with so many is truncated, and not summed."""
        return self._log.read_limit

    async def counts(self, low: int, high: int, limit: int) -> list[tuple[int, int]]:
        """(execution_id, rows) of the first `limit` executions of a range, ascending.

        Raises:
            SourceError: the read failed.
        """
        counted = await self._log.count(low, high, limit)
        return [(count.execution_id, count.rows) for count in counted.counts]

    async def between(self, low: int, high: int, without: Sequence[int]) -> dict[int, Sums]:
        """The sums of every execution with low <= execution_id <= high, but `without`.

        Raises:
            SourceError: the read failed.
        """
        return await self._summed(self._between, (low, high, list(without)))

    async def of(self, execution_ids: Sequence[int]) -> dict[int, Sums]:
        """The sums of some executions; one without rows has zeros.

        Raises:
            SourceError: the read failed.
        """
        return await self._summed(self._of, (list(execution_ids),)) if execution_ids else {}

    async def ours(self, execution_ids: Sequence[int]) -> list[int]:
        """Those that fall to this shard.

        Raises:
            SourceError: the statement failed.
        """
        return await self._log.ours(execution_ids)

    async def _summed(self, sql: str, args: Sequence[object]) -> dict[int, Sums]:
        return {
            row[0]: Sums(row[1], row[2], int(row[5] or 0) % MODULUS)
            for row in await self._log.settled(sql, args)
        }


def _numbers_sql(table: EventTable) -> str:
    """Five columns in the shape of an event behind its execution_id: the sum stands where the body does.

    The words are summed as signed numbers, exactly: modulo 2^64 that is the same.
    """
    hashed = f"sha256(convert_to({body_sql(table.types, 'l')}, 'UTF8'))"
    first_eight = f"('x' || encode(substr({hashed}, 1, 8), 'hex'))::bit(64)::bigint"
    root = f"{table.column('l', 'prev_event_id')} is null"
    return (
        f"count(*), count(*) filter (where {root}), null::bigint, null::text,"
        f" sum({first_eight})::text, null::bigint"
    )
