"""A wire to the store's server that breaks in the middle of whatever passes, or goes dead for a while."""

from __future__ import annotations

import asyncio
import random

import pytest

from sidecar.store import ChainStore
from sidecar.store.postgres import connection, writer
from sidecar.telemetry.health import NotReady
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.load import Load
from tests.support.proxy import proxy
from tests.support.service import service
from tests.support.storeserver import fresh_url
from tests.support.waiting import until

DEADLINE_S = 0.5
PATIENCE_S = 60.0
WAITS = {NotReady.PAUSED, NotReady.STORE_UNAVAILABLE}
ANSWER_BYTES = 20_000
"""More than the answers of a unit of work, so that every part of one is cut."""


@pytest.mark.parametrize(
    "faults", [6, pytest.param(24, marks=[pytest.mark.torture, pytest.mark.timeout(600)])]
)
async def test_a_wire_that_breaks_and_goes_dead_again_and_again(
    pg: Database, pg_server: StartServer, monkeypatch: pytest.MonkeyPatch, faults: int
) -> None:
    """Under load it waits and goes on by itself; in the end the store is the log, and all match."""
    for module in (connection, writer):
        for name in ("STATEMENT_S", "CONNECT_S"):
            monkeypatch.setattr(module, name, DEADLINE_S)
    home = await pg_server({"fsync": "off"}, event_table=False)
    moments = random.Random(faults)
    load = Load(pg.dsn, total=150 * faults, writers=6, longest_s=0.3)
    writing = asyncio.create_task(load.run())
    async with proxy(home.dsn()) as way:
        url = fresh_url(dsn=way.dsn)
        async with service(pg.dsn, url) as sidecar:

            def stored() -> float:
                return sidecar.value("tail_last_poll_timestamp_seconds", lane="live")

            for _ in range(faults):
                before, cuts = stored(), way.cuts
                await until(lambda: stored() > before, within_s=PATIENCE_S)  # noqa: B023 - awaited here
                if moments.random() < 0.5:
                    way.cut_once_after(moments.randrange(ANSWER_BYTES))
                    await until(lambda: way.cuts > cuts, within_s=PATIENCE_S)  # noqa: B023 - as above
                else:
                    way.swallow()
                    await until(lambda: not WAITS.isdisjoint(sidecar.health.reasons()), within_s=PATIENCE_S)
                    way.heal()
            await writing
            before = stored()
            await until(lambda: stored() > before, within_s=PATIENCE_S)
            await sidecar.idle(patience_s=PATIENCE_S)
        assert way.cuts > 0
        assert way.swallowed > 0
        async with ChainStore.open_readonly(url) as store:
            judged = await store.query("SELECT verdict, count(*) FROM partition GROUP BY verdict")
            assert judged == [("match", len({execution_id for execution_id, _ in load.visible}))]
            rows = await store.query("SELECT count(*), count(DISTINCT gseq) FROM event")
            assert rows == [(len(load.visible), len(load.visible))]
