"""From table to verdict, on a real Postgres and a real store file."""

from __future__ import annotations

from pathlib import Path

from tests.support.databases import Database
from tests.support.rows import event_row
from tests.support.service import service

E = 7001


async def test_a_running_execution_is_extended_and_matches(pg: Database, tmp_path: Path) -> None:
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await pg.insert([event_row(E, 1), event_row(E, 2, prev=1)])
        await sidecar.verdict(E, "match")
        await pg.insert([event_row(E, 3, prev=2)])
        await sidecar.stored(E, 3)
        read = await sidecar.read(E)
        assert [event.event_id for event in read.events or ()] == [1, 2, 3]
        await sidecar.idle()
        assert sidecar.value("feed_total", way="extend") == 1
        assert sidecar.value("shadow_divergence_total", kind="payload") == 0


async def test_a_late_committer_is_stored_and_matches(pg: Database, tmp_path: Path) -> None:
    """Transaction A takes a lower id and holds; B commits a row that names it; then A commits."""
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await pg.insert([event_row(E, 1)])
        await sidecar.verdict(E, "match")
        a = await pg.connect()
        transaction = a.transaction()
        await transaction.start()
        from tests.support.rows import insert_rows

        await insert_rows(a, [event_row(E, 2, prev=1)])
        await pg.insert([event_row(E, 3, prev=2)])

        async def held() -> bool:
            partition = await sidecar.store.partition(E)
            return partition is not None and partition.held == 1

        await sidecar.until(held)
        assert (await sidecar.read(E)).reason == "rows_held_back"
        await transaction.commit()
        await sidecar.stored(E, 3)
        await sidecar.idle()
        await sidecar.verdict(E, "match")
