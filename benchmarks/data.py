"""Generated executions: linked events, written the way a server with many running ones writes.

Every execution is one clean chain of `events` rows.  The rows of GROUP executions lie mixed in
the table, because they ran at the same time.  Bodies have about the wanted size; their text
repeats little, so that neither side gains from compression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from sidecar.demo.ddl import event_table
from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.source.body import body_sql
from sidecar.source.connection import Session, fetch_alone
from sidecar.source.table import inspect

GROUP: Final = 200
"""Executions that run at the same time."""

BASE_ID: Final = 365_000_000_000_000_000
"""Execution ids as of the fourth quarter of 2026: they lie in one partition."""

_PLAIN_BYTES: Final = 560
"""A body without any padding, near enough."""

_FILL: Final = """
insert into noetl.event (execution_id, catalog_id, event_id, parent_event_id, prev_event_id, created_at,
  event_type, node_id, node_name, node_type, status, context, result, meta, worker_id)
select e, 600000000000000001, e + n, case when n > 1 then e + 1 end, case when n > 1 then e + n - 1 end,
  now() at time zone 'UTC' - interval '2 days' + (i * $3::int + n) * interval '1 millisecond',
  case n when 1 then 'playbook.initialized' when $3::int then 'playbook.completed' else 'step.exit' end,
  'node_' || n, 'step_' || n, 'task', 'COMPLETED',
  jsonb_build_object('step', n, 'attempt', 1, 'pad', left($5::text, $4::int)),
  jsonb_build_object('status', 'ok', 'context',
    jsonb_build_object('rows', n * 17, 'key', md5(i || '/' || n))),
  jsonb_build_object('trace', md5('t' || i), 'span', md5(n || 's' || i)), 'worker-' || i % 7
from generate_series($1::int, $2::int) i, generate_series(1, $3::int) n,
  lateral (select $6::bigint + i * 4194304::bigint as e) z
order by i / $7::int, n, i
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A filled event table.  `body_bytes`: the measured mean of a canonical body."""

    dsn: str
    executions: int
    events: int
    body_bytes: int

    @property
    def rows(self) -> int:
        return self.executions * self.events


async def filled(server: EmbeddedPostgres, name: str, *, rows: int, events: int, body_bytes: int) -> Table:
    """A new database `name` with about `rows` rows in executions of `events`."""
    admin = await asyncpg.connect(server.dsn())
    await admin.execute(f'CREATE DATABASE "{name}"')
    await admin.close()
    dsn, executions = server.dsn(name), max(1, rows // events)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(event_table())
        await _fill(connection, executions, events, max(0, body_bytes - _PLAIN_BYTES))
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()
    return Table(dsn, executions, events, await _mean_body(dsn))


async def _mean_body(dsn: str) -> int:
    session = Session(dsn, query_timeout_s=60)
    table = await inspect(session)
    sql = f"select avg(length({body_sql(table.types, 'l')}))::int from {table.name} l"
    mean: int = (await fetch_alone(session, sql))[0][0]
    await session.close()
    return mean


async def _fill(connection: Any, executions: int, events: int, pad: int) -> None:
    text = await connection.fetchval(
        "select string_agg(md5(n::text), '') from generate_series(1, $1::int) n", pad // 32 + 1
    )
    await connection.execute(_FILL, 0, executions - 1, events, pad, text, BASE_ID, GROUP)
