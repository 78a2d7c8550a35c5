"""A read that runs on a standby is in the way of what the primary did, and is cancelled for it.

As after a failover behind one name to a standby that still streams.  A cancelled read has failed:
it is tried again, nothing is stored, and it is never taken for an empty log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import StartServer
from tests.support.captured import captured
from tests.support.databases import Database
from tests.support.proxy import proxy
from tests.support.rows import chain_rows, event_row
from tests.support.service import service
from tests.support.standby import replayed, streaming

E, LONG, GONE = 8100, 8101, 8102
MANY: Final = 20_000
CANCELLED: Final = (
    "cannot serve us now (SQLSTATE 40001)",
    "connection to Postgres broke",
    "cannot serve us now (SQLSTATE 08",
)
"""In a statement; or between two pieces of one, where the server ends the connection."""

FILL: Final = (
    "INSERT INTO noetl.event (execution_id, catalog_id, event_id, prev_event_id, event_type, error)"
    f" SELECT {LONG}, 1, n, n + 1000000, 'step.exit', repeat('x', 200)"
    f" FROM generate_series(1000, {1000 + MANY}) n"
)
RUNS: Final = (
    "SELECT count(*) AS found FROM pg_stat_activity WHERE application_name = 'noetl-chain'"
    " AND query LIKE '%unnest($1::bigint[])%' AND state IN ('active', 'idle in transaction')"
)
CONFLICTS: Final = (
    "SELECT confl_snapshot, confl_lock FROM pg_stat_database_conflicts WHERE datname = current_database()"
)


def _of_the_read(lines: list[Any]) -> int:
    return sum(
        line.get("verdict") == "log_read_failed" and any(word in (line["detail"] or "") for word in CANCELLED)
        for line in lines
    )


@pytest.mark.torture
@pytest.mark.timeout(180)
async def test_a_read_cancelled_by_a_recovery_conflict_has_failed_and_is_made_again(
    pg_server: StartServer, tmp_path: Path
) -> None:
    primary = await pg_server({"autovacuum": "off"})
    standby = await streaming(primary, pg_server)
    pg, behind = Database(primary.dsn(), "postgres"), Database(standby.dsn(), "postgres")
    log, lines = captured()
    settings: dict[str, Any] = {"dangling_s": 600, "read_limit": 1_000_000, "log": log}
    async with (
        proxy(primary.dsn()) as name,
        service(name.dsn, tmp_path / "chain.db", **settings) as sidecar,
    ):
        await pg.insert(chain_rows(E, [1, 2, 3]))
        # What dangles is asked for again and again.
        await pg.insert([event_row(LONG, 1), event_row(LONG, 3, prev=2)])
        await sidecar.verdict(E, "match")
        await sidecar.verdict(LONG, "pending_visibility")
        await sidecar.caught_up()
        stored, held = await sidecar.store.chain(E), await sidecar.store.chain(LONG)
        before = sidecar.verdicts()

        name.lead_to(standby.dsn())
        name.cut()
        await pg.execute(FILL)  # so that a read takes its time; nobody who may judge ever sees them
        await replayed(pg, behind)
        watch, act = await behind.connect(), await pg.connect()
        for kind, provoke in (("confl_snapshot", _vacuumed), ("confl_lock", _dropped)):
            goal = _of_the_read(lines) + 1
            async with asyncio.timeout(60):
                # A conflict of the other kind may still come first, and proves nothing of this one.
                while _of_the_read(lines) < goal or (await watch.fetchrow(CONFLICTS))[kind] == 0:
                    if (await watch.fetchrow(RUNS))["found"]:
                        await provoke(act.execute)
                    await asyncio.sleep(0.01)
        assert (await sidecar.store.chain(E), await sidecar.store.chain(LONG)) == (stored, held)
        assert (await sidecar.read(E)).events == stored
        new = {v: n - before.get(v, 0) for v, n in sidecar.verdicts().items() if n != before.get(v, 0)}
        assert new.keys() <= {"log_read_failed", "pending_visibility"}
        assert "source unavailable" in sidecar.health.reasons()

        await pg.execute(f"DELETE FROM noetl.event WHERE execution_id = {LONG} AND event_id >= 1000")
        await replayed(pg, behind)
        for conn in (watch, act):
            await conn.close()
        primary.halt()
        await behind.execute("SELECT pg_promote(true, 60)")
        await behind.insert([event_row(E, 4, prev=3), event_row(LONG, 2, prev=1)])
        for execution, rows in ((E, 4), (LONG, 3)):

            async def good(execution: int = execution, rows: int = rows) -> bool:
                partition = await sidecar.store.partition(execution)
                chain = await sidecar.store.chain(execution)
                return partition is not None and partition.verdict == "match" and len(chain) == rows

            await sidecar.until(good, patience_s=60)
        assert sidecar.divergences() == {}
        assert await sidecar.store.query(f"SELECT count(*) FROM partition WHERE execution_id = {GONE}") == [
            (0,)
        ]


Execute = Callable[[str], Awaitable[Any]]


async def _vacuumed(execute: Execute) -> None:
    """Row versions go that a statement begun before may still want."""
    await execute(
        "INSERT INTO noetl.event_default (execution_id, catalog_id, event_id, event_type)"
        f" VALUES ({GONE}, 1, 1, 'step.exit')"
    )
    await execute(f"DELETE FROM noetl.event_default WHERE execution_id = {GONE}")
    await execute("VACUUM (INDEX_CLEANUP off, TRUNCATE off) noetl.event_default")


async def _dropped(execute: Execute) -> None:
    """A partition goes; its parent is locked against everybody."""
    await execute(
        "CREATE TABLE noetl.event_gone PARTITION OF noetl.event"
        " FOR VALUES FROM (-4611686018427387904) TO (-4611686018427387903)"
    )
    await execute("DROP TABLE noetl.event_gone")
