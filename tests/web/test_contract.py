"""Every route against the contract, in both directions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from sidecar.service.board import Board
from sidecar.settings import Settings
from sidecar.telemetry.health import Health
from sidecar.web import login, routes
from tests.support.api import BEARER, TOKEN, check, contract, direct, filled, operations, served, shown
from tests.support.databases import Database
from tests.support.service import Service
from tests.support.waiting import until
from tests.web.planted import FOREIGN, HELD, MATCHED, NEVER, REFUSED, planted

ONE = "/api/v1/executions/{execution_id}"
FINDING = "/api/v1/divergences/{finding_id}"
PAGES = ("/", "/executions", "/executions/{execution_id}")
BAD_IDS = ("x", "1.0", str(2**63), "%D9%A3", "1" * 20, "--1")


class Asking:
    """Asks, and notes which line of the contract each answer was."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        seen: set[tuple[str, str, int]],
        headers: dict[str, str] | None = None,
    ) -> None:
        self._client = client
        self._seen = seen
        self._headers = headers or {}

    async def __call__(
        self,
        method: str,
        path: str,
        query: str = "",
        *,
        headers: dict[str, str] | None = None,
        body: bytes | str | None = None,
        **values: Any,
    ) -> httpx2.Response:
        target = filled(path, **values) + query
        sent = self._headers if headers is None else headers
        answer = await self._client.request(method, target, headers=sent, content=body)
        self._seen.add(check(method, path, answer))
        return answer


async def lines(client: httpx2.AsyncClient) -> set[tuple[str, str, int]]:
    """Ask every route in every way that it tells apart; the lines of the contract that were seen."""
    seen: set[tuple[str, str, int]] = set()

    ask = Asking(client, seen, BEARER)
    for method, path in operations():
        values: dict[str, Any] = {"execution_id": MATCHED, "finding_id": 1}
        wrong = await ask(method, path, headers={"authorization": "Bearer wrong"}, **values)
        assert wrong.status_code == 401
        assert (await ask(method, path, "?" + "x" * 9000, **values)).status_code == 414
        assert (await ask(method, path, headers={"host": "elsewhere"}, **values)).status_code == 421
        large = await ask(method, path, body=b"x" * 70_000, **values)
        assert large.status_code == 413
        if method == "GET":
            head = await ask("HEAD", path, **values)
            assert head.status_code == 200
        if method == "POST":
            foreign = await ask(method, path, headers={"origin": "http://evil.example"}, **values)
            assert (foreign.status_code, foreign.json()["reason"]) == (403, "cross_origin")
        if "{execution_id}" in path:
            for none in BAD_IDS:
                answer = await ask(method, path, execution_id=none)
                assert (answer.status_code, answer.json()["reason"]) == (400, "bad_parameter")
                assert "execution_id" in answer.json()["detail"]
        if path.endswith(("/chain", "/state")):
            assert (await ask(method, path, headers={}, **values)).status_code == 403
            assert (await ask(method, path, execution_id=NEVER)).json()["reason"] == "never_seen"
            assert (await ask(method, path, execution_id=HELD)).json()["reason"] == "rows_held_back"
            for unanswered in (REFUSED, FOREIGN):
                answer = await ask(method, path, execution_id=unanswered)
                assert answer.status_code == 409
                assert answer.json()["reason"] in ("not_populated", "rows_held_back")
        if method == "GET" and not path.endswith("/events"):
            assert (await ask(method, path, **values)).status_code == 200
    return seen


async def test_every_line_of_the_contract_is_seen_and_no_other(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "chain.db"
    async with planted(pg, store) as sidecar:
        async with direct(sidecar) as client:
            seen = await limited(client)
        monkeypatch.setattr(login, "TRIES", 2 * len(operations()))
        async with shown(sidecar) as client:
            seen |= await lines(client)
            await every_line(sidecar, client, seen)
    wanted = {
        (method, path, int(status))
        for (method, path), operation in operations().items()
        for status in operation["responses"]
    }
    elsewhere = {("POST", f"{ONE}/probe", 409), ("POST", f"{ONE}/probe", 503)}
    heads = {("HEAD", path, 200) for method, path in operations() if method == "GET"}
    # An endless answer is looked at in test_events.
    assert seen == (wanted | heads) - elsewhere - {("GET", "/api/v1/events", 200)}


async def limited(client: httpx2.AsyncClient) -> set[tuple[str, str, int]]:
    """Ask every route with a wrong token, when no try is left for one; what was seen."""
    seen: set[tuple[str, str, int]] = set()
    ask = Asking(client, seen, {"authorization": "Bearer wrong"})
    values: dict[str, Any] = {"execution_id": MATCHED, "finding_id": 1}
    for _ in range(login.TRIES):
        assert (await ask("GET", "/api/v1/status")).status_code == 401
    for method, path in operations():
        answer = await ask(method, path, **values)
        assert (answer.status_code, answer.json()["reason"]) == (429, "rate_limited")
    return seen


async def every_line(sidecar: Service, client: httpx2.AsyncClient, seen: set[tuple[str, str, int]]) -> None:
    """Ask in every way that the contract tells apart; adds what was seen."""
    ask = Asking(client, seen)
    for path, query, named in (
        ("/api/v1/executions", "?limit=0", "limit"),
        ("/api/v1/executions", "?limit=201", "limit"),
        ("/api/v1/executions", "?limit=1&limit=2", "limit"),
        ("/api/v1/executions", "?verdict=good", "verdict"),
        ("/api/v1/executions", "?after=1", "after"),
        ("/api/v1/executions", "?after=1.9999999999999999999", "after"),
        ("/api/v1/executions", "?verdit=match", "verdit"),
        ("/api/v1/divergences", "?open=yes", "open"),
        ("/api/v1/divergences", "?after=x", "after"),
        ("/api/v1/divergences", "?verdict=good", "verdict"),
    ):
        answer = await ask("GET", path, query)
        assert (answer.status_code, answer.json()["reason"]) == (400, "bad_parameter")
        assert answer.json()["detail"].startswith(f"{named}: ")
    assert (await ask("GET", FINDING, finding_id="x")).status_code == 400
    assert (await ask("GET", FINDING, finding_id=999)).status_code == 404
    assert (await ask("GET", ONE, execution_id=NEVER)).json()["reason"] == "never_seen"
    assert (await ask("POST", f"{ONE}/probe", execution_id=NEVER)).json()["verdict"] == "empty"
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert (await ask("POST", "/login", headers=form, body="token=")).status_code == 401
    assert (await ask("POST", "/login", headers=form, body=f"token={TOKEN}")).status_code == 303
    # The session came with it, and nothing says from which page.
    assert (await ask("POST", "/login")).json()["reason"] == "cross_origin"
    client.cookies.clear()
    assert (await ask("POST", "/login")).status_code == 400
    while (await ask("POST", "/login", headers=form, body="token=x")).status_code != 429:
        pass
    assert (await ask("POST", "/logout", headers={"sec-fetch-site": "same-origin"})).status_code == 303
    while (await ask("GET", ONE, "?log=true", execution_id=MATCHED)).status_code != 429:
        pass
    while (await ask("POST", f"{ONE}/probe", execution_id=MATCHED)).status_code != 429:
        pass  # one more may have come free meanwhile
    async with asyncio.TaskGroup() as tasks:
        held = [tasks.create_task(_listen(client)) for _ in range(32)]
        await until(lambda: sidecar.board.hub.listeners == 32)
        assert (await ask("GET", "/api/v1/events")).status_code == 429
        sidecar.board.hub.close()
    assert all(text.startswith("retry: ") for text in await asyncio.gather(*held))
    sidecar.board.data.sources = None
    sidecar.board.state = None
    for method, path in operations():
        if "503" in operations()[method, path]["responses"]:
            values: dict[str, Any] = {"execution_id": MATCHED, "finding_id": 1}
            if path.endswith("/probe"):
                continue
            answer = await ask(method, path, headers=BEARER, **values)
            assert answer.json()["reason"] == "unavailable"


async def _listen(client: httpx2.AsyncClient) -> str:
    return (await client.get("/api/v1/events")).text


def test_every_route_is_in_the_contract_and_every_path_of_it_is_served() -> None:
    """Pages are for people and stand in no contract; they are named here, or they would be forgotten."""
    everything = served(Board(Settings.given(), Health()))
    pages = {each for each in everything if not each[1].startswith("/api/")} - operations().keys()
    assert everything - pages == operations().keys()
    assert {path for _, path in pages if not path.startswith("/static/")} == set(PAGES)
    assert {method for method, _ in pages} == {"GET"}


def test_every_route_with_payload_is_closed_by_the_contract_too() -> None:
    closed = {each.path for each in Board(Settings.given(), Health()).endpoints() if each.payload}
    assert closed == {f"{ONE}/chain", f"{ONE}/state"}
    for path in closed:
        assert {} not in operations()["GET", path]["security"]


def test_the_contract_travels_with_the_program() -> None:
    assert routes.contract() == (Path(__file__).parents[2] / "docs/openapi.yaml").read_text("utf-8")
    assert contract()["openapi"] == "3.1.0"
