"""Which executions a one-shot command reads: some, or those with an event since a time.

Both walk in batches with bounded memory, as `scan` does for all of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Final

from sidecar.core.event import ID_MIN
from sidecar.core.ports import ExecutionLog
from sidecar.source.log import PostgresLog

EXECUTIONS_AT_ONCE: Final = 64


async def read_each(
    log: PostgresLog, execution_ids: Sequence[int]
) -> AsyncGenerator[list[ExecutionLog], None]:
    """Read some executions, a few at a time, each once.

    Raises:
        SourceError: a read failed; what was yielded stands.
    """
    unique = list(dict.fromkeys(execution_ids))
    for start in range(0, len(unique), EXECUTIONS_AT_ONCE):
        yield await log.read(unique[start : start + EXECUTIONS_AT_ONCE])


async def read_since(log: PostgresLog, since: datetime) -> AsyncGenerator[list[ExecutionLog], None]:
    """Read every execution with an event created since `since`, ascending by id.

    Args:
        since: An aware time; the column holds naive UTC.

    Raises:
        SourceError: a read failed; what was yielded stands.
    """
    sql = (
        f"select distinct execution_id from {log.table.name} where created_at >= $1 and execution_id >= $2"
        f"{log.shard.filter_sql('execution_id')} order by execution_id limit {EXECUTIONS_AT_ONCE}"
    )
    naive = since.astimezone(UTC).replace(tzinfo=None)
    at = ID_MIN
    while True:
        found = [row[0] for row in await log.fetch(sql, (naive, at))]
        if found:
            yield await log.read(found)
        if len(found) < EXECUTIONS_AT_ONCE:
            return
        at = found[-1] + 1


async def estimated_rows(log: PostgresLog) -> int | None:
    """How many rows fall to the log's shard by the table's statistics; None before the first ANALYZE."""
    sql = (
        "select sum(c.reltuples)::bigint from pg_partition_tree($1::bigint::oid::regclass) t"
        " join pg_class c on c.oid = t.relid where c.relkind = 'r' and c.reltuples >= 0"
    )
    rows: int | None = (await log.fetch(sql, (log.table.relid,)))[0][0]
    return None if rows is None else rows // log.shard.count
