"""The pages of a running sidecar, over a real log and a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from sidecar.core.ports import ExecutionLog
from sidecar.errors import SourceUnavailable
from sidecar.settings import Bind
from sidecar.web.listener import Listener
from tests.support.api import BEARER, TOKEN
from tests.support.changing import replace
from tests.support.databases import Database
from tests.support.service import Service
from tests.web.planted import FOREIGN, HELD, MARKS, MATCHED, NEVER, REFUSED, planted
from tests.web.test_pages import checked, words

HTML = {"accept": "text/html"}


class Away:
    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        raise SourceUnavailable("Postgres does not answer")


@asynccontextmanager
async def browsing(sidecar: Service) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of everything that the API's listener serves."""
    place = Bind("127.0.0.1", 0)
    listener = Listener(sidecar.board.served(place, TOKEN), place, ending=sidecar.board.hub.close)
    stop = asyncio.Event()
    task = asyncio.create_task(listener.run(stop))
    try:
        url = f"http://127.0.0.1:{listener.port}"
        async with httpx2.AsyncClient(base_url=url, headers=HTML, timeout=20) as client:
            yield client
    finally:
        stop.set()
        await asyncio.wait_for(task, 5)


async def test_pages_of_a_running_sidecar_tell_what_it_judged(pg: Database, tmp_path: Path) -> None:
    async with planted(pg, tmp_path / "chain.db") as sidecar, browsing(sidecar) as browser:
        told = {}
        for path in ("/", "/executions", *(f"/executions/{e}" for e in (MATCHED, REFUSED, HELD, FOREIGN))):
            answer = await browser.get(path)
            assert answer.status_code == 200
            checked(answer.text)
            assert not [mark for mark in MARKS if mark in answer.text], path
            told[path] = words(answer.text)
        assert "1 open finding." in told["/"]
        assert f"{FOREIGN} second_writer second_writer" in told["/"]
        assert str(HELD) in told["/executions"]
        assert "Store and log hold the same chain." in told[f"/executions/{MATCHED}"]
        assert "2 roots: 11, 13." in told[f"/executions/{REFUSED}"]
        assert "Event 23 is missing; 24 names it" in told[f"/executions/{HELD}"]
        assert "store only" in told[f"/executions/{FOREIGN}"]
        shown = await browser.get(f"/executions/{FOREIGN}", headers=BEARER)
        assert all(mark in shown.text for mark in MARKS)
        assert (await browser.get(f"/executions/{NEVER}")).status_code == 404
        assert (await browser.get("/api/v1/status")).json()["from"] == "sidecar"


async def test_pages_while_postgres_is_away_show_the_store_and_know_no_never_seen(
    pg: Database, tmp_path: Path
) -> None:
    async with planted(pg, tmp_path / "chain.db") as sidecar, browsing(sidecar) as browser:
        sidecar.board.data.sources = replace(sidecar.board.data.open, log=Away())
        told = words((await browser.get(f"/executions/{MATCHED}")).text)
        assert "the log was not read: Postgres does not answer" in told
        assert "Store 3 rows" in told
        unknown = await browser.get(f"/executions/{NEVER}")
        assert unknown.status_code == 503, "whether it was ever seen cannot be told"
        checked(unknown.text)
