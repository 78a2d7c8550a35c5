"""A wire to the log's server that breaks in the middle of whatever passes, or goes dead for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sidecar.store import ChainStore
from sidecar.telemetry.health import NotReady
from tests.support.databases import Database
from tests.support.load import Load
from tests.support.proxy import proxy
from tests.support.service import service
from tests.support.waiting import until
from tests.support.wire import PATIENCE_S, again_and_again

DEADLINE_S = 0.5


@pytest.mark.parametrize(
    "faults", [6, pytest.param(24, marks=[pytest.mark.torture, pytest.mark.timeout(600)])]
)
@pytest.mark.parametrize("tail", ["poll", "wal"])
async def test_a_wire_that_breaks_and_goes_dead_again_and_again(
    pg_wal: Database, tmp_path: Path, tail: str, faults: int
) -> None:
    """Under load it waits and goes on by itself; in the end the store is the log, and all match."""
    load = Load(pg_wal.dsn, total=150 * faults, writers=6, longest_s=0.3)
    store, lane = tmp_path / "chain.db", "live" if tail == "poll" else "wal"
    async with (
        proxy(pg_wal.dsn) as way,
        service(way.dsn, store, tail=tail, query_timeout_s=DEADLINE_S) as sidecar,
    ):
        writing = asyncio.create_task(load.run())
        await again_and_again(way, sidecar, lane, faults, noticed_by={NotReady.SOURCE_UNAVAILABLE})
        await writing
        await sidecar.idle(patience_s=PATIENCE_S)
        assert sidecar.divergences() == {}
    async with ChainStore.open_readonly(str(store)) as kept:
        judged = await kept.query("SELECT verdict, count(*) FROM partition GROUP BY verdict")
        assert judged == [("match", len({execution_id for execution_id, _ in load.visible}))]
        rows = await kept.query("SELECT count(*), count(DISTINCT gseq) FROM event")
        assert rows == [(len(load.visible), len(load.visible))]
    if tail == "wal":
        await until(
            lambda: pg_wal.holds(
                "SELECT count(*) = 1 AND NOT bool_or(active) FROM pg_replication_slots"
                " WHERE database = current_database()"
            )
        )
