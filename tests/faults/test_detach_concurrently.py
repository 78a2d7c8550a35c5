"""A partition is detached concurrently while the tail polls: in two transactions, days apart maybe.

Between them its rows are gone from the parent and the partition still hangs on it.  Fewer rows
are no deletion: nobody is accused, the copy stays, and what comes back is followed again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.service import service
from tests.support.waiting import until

LOW, HIGH = 8200, 8300
LEAVES = range(LOW, LOW + 3)
STAYS = HIGH + 1
PENDING = "SELECT count(*) FROM pg_inherits WHERE inhdetachpending"


@pytest.mark.torture
async def test_a_partition_that_is_detached_concurrently_accuses_nobody(pg: Database, tmp_path: Path) -> None:
    # CONCURRENTLY is refused beside a DEFAULT; what is not in a range of the install needs one then.
    await pg.execute(
        "ALTER TABLE noetl.event DETACH PARTITION noetl.event_default;"
        f"CREATE TABLE noetl.event_side PARTITION OF noetl.event FOR VALUES FROM ({LOW}) TO ({HIGH});"
        f"CREATE TABLE noetl.event_rest PARTITION OF noetl.event FOR VALUES FROM ({HIGH}) TO ({HIGH + 100})"
    )
    for execution in LEAVES:
        await pg.insert(chain_rows(execution, [1, 2, 3]))
    await pg.insert(chain_rows(STAYS, [1]))
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        for execution in (*LEAVES, STAYS):
            await sidecar.verdict(execution, "match")
        await sidecar.caught_up()
        holder, leaver = await pg.connect(), await pg.connect()
        await holder.execute("BEGIN; SELECT count(*) FROM noetl.event")
        leaving = asyncio.create_task(
            leaver.execute("ALTER TABLE noetl.event DETACH PARTITION noetl.event_side CONCURRENTLY")
        )
        await until(lambda: pg.holds(PENDING))
        # Half detached: the rest lives on, and polls go round.
        for event_id in range(2, 8):
            await pg.insert([event_row(STAYS, event_id, prev=event_id - 1)])
        await sidecar.stored(STAYS, 7)
        await sidecar.polls(3)
        assert (await pg.fetch(PENDING))[0][0] == 1, "it was not pending meanwhile: the test proves nothing"
        for execution in LEAVES:  # a partition that leaves is no answer about its rows
            await sidecar.verdict(execution, "log_read_failed", patience_s=60)
        assert not leaving.done()
        await holder.execute("COMMIT")
        await leaving
        for execution in LEAVES:
            await sidecar.verdict(execution, "log_pruned", patience_s=60)
            assert len(await sidecar.store.chain(execution)) == 3, "the copy is the only one in reach"

        await pg.execute(
            f"ALTER TABLE noetl.event ATTACH PARTITION noetl.event_side FOR VALUES FROM ({LOW}) TO ({HIGH})"
        )
        for execution in LEAVES:
            await pg.insert([event_row(execution, 4, prev=3)])
            await sidecar.stored(execution, 4)
            await sidecar.verdict(execution, "match")
        await sidecar.idle()
        assert sidecar.divergences() == {}
        assert sidecar.verdicts().keys() <= {"match", "log_pruned", "log_read_failed", "pending_stale"}
