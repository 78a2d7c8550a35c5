"""How many roots every execution of the last hours has, counted in Postgres.

An execution belongs to the sample when a row of it was created in the window; its roots are counted
over all its rows, for its first one may be older.  One statement on a connection of its own: the
window by the index on created_at where there is one, the roots by the primary key, no second
worker, a deadline.  Source: spec 3.8.
"""

from __future__ import annotations

from typing import Final

from sidecar.core.roots import WORST_MAX, Roots
from sidecar.source.connection import Session
from sidecar.source.options import Shard
from sidecar.source.table import EventTable

DEADLINE_MIN_S: Final = 60.0
"""The whole window is read once; a query's ordinary deadline may be too short for that."""


def roots_sql(table: EventTable, shard: Shard) -> str:
    """One row: the counts, and the worst offenders side by side.  $1: hours."""
    no_prev = f"{table.column('e', 'prev_event_id')} is null"
    return (
        f"with recent as materialized (select distinct r.execution_id from {table.name} r"
        " where r.created_at >= (now() at time zone 'UTC') - $1::float8 * interval '1 hour'"
        f"{shard.filter_sql('r.execution_id')}),"
        " counted as materialized (select r.execution_id, (select count(*)"
        f" from {table.name} e where e.execution_id = r.execution_id and {no_prev}) as roots from recent r),"
        " worst as (select execution_id, roots from counted where roots <> 1"
        f" order by roots desc, execution_id limit {WORST_MAX})"
        " select count(*) filter (where roots = 1) as one_root,"
        " count(*) filter (where roots > 1) as multi_root,"
        " count(*) filter (where roots = 0) as no_root,"
        " (select array_agg(execution_id order by roots desc, execution_id) from worst) as ids,"
        " (select array_agg(roots order by roots desc, execution_id) from worst) as numbers"
        " from counted"
    )


class RootsReader:
    """Counts on its own connection.

    Args:
        window_h: Hours; within 1 and 9600.
        timeout_s: Deadline of the statement, on the server too.
    """

    def __init__(
        self, session: Session, table: EventTable, shard: Shard, *, window_h: float, timeout_s: float
    ) -> None:
        self._session = session
        self.table = table
        self._sql = roots_sql(table, shard)
        self._timeout_s = max(timeout_s, DEADLINE_MIN_S)
        self.window_h = window_h

    async def read(self) -> Roots:
        """One sample.

        Raises:
            SourceError: there is none; a later try opens a new connection.
        """
        async with self._session.transaction(self._timeout_s) as transaction:
            await transaction.fetch("SET LOCAL max_parallel_workers_per_gather = 0")
            (row,) = await transaction.fetch(self._sql, self.window_h)
        worst = zip(row["ids"] or (), row["numbers"] or (), strict=True)
        return Roots(row["one_root"], row["multi_root"], row["no_root"], tuple(worst))
