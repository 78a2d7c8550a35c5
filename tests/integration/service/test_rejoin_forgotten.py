"""What a process has forgotten proves nothing later: an UPDATE makes a root look younger than it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sidecar.readings import Reading
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row, insert_rows
from tests.support.service import service

E = 7500
ON: dict[str, Any] = {"rejoin": Reading.ON}


async def test_a_root_that_was_refused_and_is_changed_after_a_restart_stays_refused(
    pg: Database, tmp_path: Path
) -> None:
    early, path = await pg.connect(), tmp_path / "chain.db"
    async with service(pg.dsn, path, **ON) as sidecar:
        await sidecar.followed()
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.verdict(E, "match")
        await sidecar.idle()
        async with early.transaction():
            await insert_rows(early, [event_row(E, 9)])
            await pg.insert([event_row(E, 3, prev=2)])
            await sidecar.stored(E, 3)
        await sidecar.verdict(E, "refused_multiple_roots")
        await sidecar.idle()
        assert await sidecar.store.joins(E) == ()
    await pg.execute("UPDATE noetl.event SET worker_id = 'w' WHERE execution_id = $1 AND event_id = 9", E)
    async with service(pg.dsn, path, **ON) as sidecar:
        await sidecar.caught_up()
        await sidecar.idle()
        assert (await sidecar.partition(E)).verdict == "refused_multiple_roots"
        assert await sidecar.store.joins(E) == (), "9 was inserted before 3 was visible"
        assert (await sidecar.read(E)).events is None
