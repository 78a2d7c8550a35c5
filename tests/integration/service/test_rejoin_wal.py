"""A restart's second root by the WAL source: what one peek brings is ordered by its positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sidecar.readings import Reading
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row, insert_rows
from tests.support.service import service

E = 7350
ON: dict[str, Any] = {"rejoin": Reading.ON, "tail": "wal"}


async def test_pieces_that_came_while_nobody_looked_are_joined_where_their_positions_prove_it(
    pg_wal: Database, tmp_path: Path
) -> None:
    """The engine was restarted while the sidecar was away; of E + 1 the new server wrote too early."""
    path = tmp_path / "chain.db"
    async with service(pg_wal.dsn, path, **ON) as sidecar:
        await sidecar.caught_up()
        for execution in (E, E + 1):
            await pg_wal.insert(chain_rows(execution, [1, 2]))
            await sidecar.verdict(execution, "match")
        await sidecar.idle()
    early = await pg_wal.connect()
    async with early.transaction():
        await insert_rows(early, [event_row(E + 1, 9)])
        for execution in (E, E + 1):
            await pg_wal.insert([event_row(execution, 3, prev=2)])
    await pg_wal.insert(chain_rows(E, [9, 4]))

    async with service(pg_wal.dsn, path, **ON) as sidecar:
        await sidecar.verdict(E, "match_rejoined")
        await sidecar.verdict(E + 1, "refused_multiple_roots")
        await sidecar.idle()
        read = await sidecar.read(E)
        assert [event.event_id for event in read.events or ()] == [1, 2, 3, 9, 4]
        (join,) = await sidecar.store.joins(E)
        assert (join.tip_event_id, join.root_event_id, join.anchor) == (3, 9, None)
        assert join.root_lsn is not None
        assert join.root_lsn > (join.tip_lsn or 0) > 0
        assert await sidecar.store.joins(E + 1) == ()
        assert (await sidecar.read(E + 1)).events is None
        assert sidecar.value("shadow_verdict_total", verdict="rejoin_withdrawn") == 0
