"""Postgres is away, or silent: what the store knows is answered, and nothing is taken for agreement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.api import BEARER, check, filled, shown
from tests.support.databases import Database
from tests.support.proxy import Proxy, proxy
from tests.support.rows import chain_rows
from tests.support.service import Service, service

E = 617
ONE = "/api/v1/executions/{execution_id}"
PROBE = f"{ONE}/probe"


@asynccontextmanager
async def matched(pg: Database, store: Path, way: Proxy) -> AsyncIterator[tuple[Service, httpx2.AsyncClient]]:
    """A sidecar that reaches Postgres by `way` and has judged one execution."""
    await pg.insert(chain_rows(E, [1, 2, 3]))
    async with service(way.dsn, store, serve="on") as sidecar, shown(sidecar) as client:
        await sidecar.verdict(E, "match")
        yield sidecar, client


async def probe(client: httpx2.AsyncClient) -> httpx2.Response:
    answer = await client.post(filled(PROBE, execution_id=E))
    check("POST", PROBE, answer)
    return answer


async def test_a_probe_that_waits_too_long_for_postgres_is_unavailable_and_counts_nothing(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.web.data.LOG_READ_S", 0.2)
    async with proxy(pg.dsn) as way, matched(pg, tmp_path / "chain.db", way) as (sidecar, client):
        way.swallow()
        answer = await probe(client)
        assert (answer.status_code, answer.json()["reason"]) == (503, "unavailable")
        assert answer.json()["detail"] == "Postgres takes too long to answer"
        assert way.swallowed  # it did ask
        assert sidecar.moved("shadow_probe_total") == {}
        # The place is free again: the next one is not told that this one still runs.
        assert (await probe(client)).status_code == 503
        drawn = await client.get(filled(ONE, execution_id=E) + "?log=true")
        check("GET", ONE, drawn)
        assert (drawn.status_code, drawn.json()["reason"]) == (503, "unavailable")
        way.heal()
        way.cut()


async def test_a_probe_before_the_store_is_open_is_unavailable(pg: Database, tmp_path: Path) -> None:
    async with proxy(pg.dsn) as way, matched(pg, tmp_path / "chain.db", way) as (sidecar, client):
        sources, sidecar.board.data.sources = sidecar.board.data.sources, None
        answer = await probe(client)
        sidecar.board.data.sources = sources
        assert (answer.status_code, answer.json()["detail"]) == (503, "the store is not open")


async def test_while_postgres_is_away_the_store_is_shown_and_a_probe_says_that_it_cannot_tell(
    pg: Database, tmp_path: Path
) -> None:
    async with AsyncExitStack() as reached:
        way = await reached.enter_async_context(proxy(pg.dsn))
        async with matched(pg, tmp_path / "chain.db", way) as (sidecar, client):
            await reached.aclose()  # from here on nobody listens there
            answer = await probe(client)
            assert (answer.status_code, answer.json()["verdict"]) == (200, "log_read_failed")
            assert answer.json()["recorded_verdict"] == "match"
            assert sidecar.moved("shadow_probe_total") == {"log_read_failed": 1}
            for path in ("/api/v1/status", "/api/v1/executions", ONE, f"{ONE}/chain"):
                told = await client.get(filled(path, execution_id=E), headers=BEARER)
                assert check("GET", path, told)[2] == 200
            drawn = await client.get(filled(ONE, execution_id=E) + "?log=true")
            assert drawn.json()["not_read"][0].startswith("the log was not read: ")
            assert len(drawn.json()["picture"]["nodes"]) == 3
            page = await client.get(f"/executions/{E}")
            assert page.status_code == 200
            assert "the log was not read" in page.text
