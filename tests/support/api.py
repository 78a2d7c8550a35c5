"""The API of a running line on a real socket, and answers held to the contract."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx2
import jsonschema_rs
import msgspec

from sidecar.service.board import Board
from sidecar.settings import Bind
from sidecar.web.listener import Listener
from tests.support.service import Service

CONTRACT: Final = Path(__file__).resolve().parents[2] / "docs" / "openapi.yaml"
TOKEN: Final = "a token that nobody guesses"
BEARER: Final = {"authorization": f"Bearer {TOKEN}"}
JSON: Final = ("application/json", "application/problem+json")


@cache
def contract() -> dict[str, Any]:
    """The OpenAPI document."""
    read: dict[str, Any] = msgspec.yaml.decode(CONTRACT.read_text("utf-8"))
    return read


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    """Every operation of the contract by method and path."""
    return {
        (method.upper(), path): operation
        for path, item in contract()["paths"].items()
        for method, operation in item.items()
    }


def served(board: Board) -> set[tuple[str, str]]:
    """Method and path of everything that is answered, whoever made it a route; HEAD left out."""
    app: Any = board.served(Bind("127.0.0.1", 9110), TOKEN)
    while not hasattr(app, "routes"):  # what stands before the routes
        app = app._app
    return {(method, route.path) for route in app.routes for method in route.methods - {"HEAD"}}


def resolved(found: dict[str, Any]) -> dict[str, Any]:
    """What a `$ref` of the contract stands for."""
    while "$ref" in found:
        name = found["$ref"].removeprefix("#/")
        found = contract()
        for part in name.split("/"):
            found = found[part]
    return found


@cache
def _validator(schema: bytes) -> Any:
    whole = {**msgspec.json.decode(schema), "components": contract()["components"]}
    return jsonschema_rs.Draft202012Validator(whole, validate_formats=True)


def check(method: str, path: str, answer: httpx2.Response) -> tuple[str, str, int]:
    """Hold an answer to the contract; which line of it this was.

    Args:
        path: As the contract spells it.
    """
    operation = operations()[(("GET" if method == "HEAD" else method), path)]
    status = answer.status_code
    assert str(status) in operation["responses"], (method, path, status, answer.text[:300])
    response = resolved(operation["responses"][str(status)])
    for name, header in response.get("headers", {}).items():
        assert not header.get("required") or name in answer.headers
    kinds = response.get("content", {})
    kind = answer.headers.get("content-type", "").partition(";")[0]
    assert not kinds or kind in kinds, (method, path, kind)
    if method == "HEAD":
        assert answer.content == b""
    elif kind in JSON:
        _validator(msgspec.json.encode(kinds[kind]["schema"])).validate(answer.json())
    return method, path, status


@asynccontextmanager
async def shown(sidecar: Service, token: str | None = TOKEN) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the API of `sidecar`, served on loopback by the program's own listener."""
    place = Bind("127.0.0.1", 0)
    listener = Listener(sidecar.board.served(place, token), place, ending=sidecar.board.hub.close)
    stop = asyncio.Event()
    task = asyncio.create_task(listener.run(stop))
    try:
        url = f"http://127.0.0.1:{listener.port}"
        async with httpx2.AsyncClient(base_url=url, timeout=20) as client:
            yield client
    finally:
        stop.set()
        await asyncio.wait_for(task, 5)


@asynccontextmanager
async def direct(sidecar: Service, token: str | None = TOKEN) -> AsyncIterator[httpx2.AsyncClient]:
    """The same without a socket: for many questions; not for an answer without an end."""
    transport = httpx2.ASGITransport(app=sidecar.board.served(Bind("127.0.0.1", 9110), token))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:9110") as client:
        yield client


def filled(path: str, **values: object) -> str:
    """A path of the contract with its parameters in place."""
    return re.sub(r"\{(\w+)\}", lambda found: str(values[found[1]]), path)
