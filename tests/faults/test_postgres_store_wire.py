"""A wire to the store's server that breaks in the middle of whatever passes, or goes dead for a while."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.errors import StoreBusy
from sidecar.store import ChainStore
from sidecar.store.postgres import connection, writer
from sidecar.telemetry.health import NotReady
from tests.conftest import StartServer
from tests.contract.events import E, chain
from tests.support.databases import Database
from tests.support.load import Load
from tests.support.proxy import proxy
from tests.support.service import service
from tests.support.storeserver import fresh_url
from tests.support.wire import PATIENCE_S, again_and_again

DEADLINE_S = 0.5
WAITS = {NotReady.PAUSED, NotReady.STORE_UNAVAILABLE}


@pytest.mark.parametrize(
    "faults", [6, pytest.param(24, marks=[pytest.mark.torture, pytest.mark.timeout(600)])]
)
async def test_a_wire_that_breaks_and_goes_dead_again_and_again(
    pg: Database, pg_server: StartServer, monkeypatch: pytest.MonkeyPatch, faults: int
) -> None:
    """Under load it waits and goes on by itself; in the end the store is the log, and all match."""
    _shorten(monkeypatch, DEADLINE_S)
    home = await pg_server({"fsync": "off"}, event_table=False)
    load = Load(pg.dsn, total=150 * faults, writers=6, longest_s=0.3)
    async with proxy(home.dsn()) as way:
        url = fresh_url(dsn=way.dsn)
        async with service(pg.dsn, url) as sidecar:
            writing = asyncio.create_task(load.run())
            await again_and_again(way, sidecar, "live", faults, noticed_by=WAITS)
            await writing
            await sidecar.idle(patience_s=PATIENCE_S)
        async with ChainStore.open_readonly(url) as store:
            judged = await store.query("SELECT verdict, count(*) FROM partition GROUP BY verdict")
            assert judged == [("match", len({execution_id for execution_id, _ in load.visible}))]
            rows = await store.query("SELECT count(*), count(DISTINCT gseq) FROM event")
            assert rows == [(len(load.visible), len(load.visible))]


async def test_wherever_it_goes_dead_a_read_notices(
    pg_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the driver says goodbye to the statement before, behind which it would wait for ever."""
    home = await pg_server({"fsync": "off"}, event_table=False)
    async with proxy(home.dsn()) as way:
        url = fresh_url(dsn=way.dsn)
        async with ChainStore.open(url) as store:
            await store.populate_from_log(E, chain(1, 2, 3))
        for passed in count():
            way.pass_all()
            async with ChainStore.open_readonly(url) as store:
                sums = await store.summer.between(ID_MIN, ID_MAX)
                way.stand_still_after(passed, by_pieces=True)
                with monkeypatch.context() as short:
                    _shorten(short, DEADLINE_S / 5)
                    try:
                        async with asyncio.timeout(PATIENCE_S):
                            again = await store.summer.between(ID_MIN, ID_MAX)
                    except StoreBusy:
                        continue
            break
    assert again == sums
    assert passed > 3


def _shorten(monkeypatch: pytest.MonkeyPatch, deadline_s: float) -> None:
    for module in (connection, writer):
        for name in ("STATEMENT_S", "CONNECT_S"):
            monkeypatch.setattr(module, name, deadline_s)
