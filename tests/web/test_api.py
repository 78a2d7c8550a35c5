"""The API listener: what holds for every route.  Design 4, HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from sidecar.errors import ConfigError, InvariantError, StoreBusy
from sidecar.settings import Bind
from sidecar.web.api import BODY_MAX_BYTES, TARGET_MAX_BYTES, Endpoint, application
from sidecar.web.login import TRIES, TRY_EVERY_S
from sidecar.web.problem import HEADERS

LOOPBACK = Bind("127.0.0.1", 9110)
ELSEWHERE = Bind("0.0.0.0", 9110)
TOKEN = "a token that nobody guesses"


async def small(request: Request) -> dict[str, Any]:
    return {"execution_id": "9007199254740993"}


async def echo(request: Request) -> dict[str, Any]:
    return {"bytes": len(await request.body())}


async def busy(request: Request) -> dict[str, Any]:
    raise StoreBusy("the store is busy")


async def broken(request: Request) -> dict[str, Any]:
    raise InvariantError("a secret of ours")


ENDPOINTS = (
    Endpoint("/api/v1/small", small),
    Endpoint("/api/v1/echo", echo, methods=("POST",)),
    Endpoint("/api/v1/busy", busy),
    Endpoint("/api/v1/broken", broken),
    Endpoint("/api/v1/bodies", small, payload=True),
)


def client(place: Bind = LOOPBACK, token: str | None = None, *, host: str = "127.0.0.1:9110") -> TestClient:
    return TestClient(
        application(ENDPOINTS, place, token), base_url=f"http://{host}", raise_server_exceptions=False
    )


def refused(answer: Any, status: int, reason: str) -> dict[str, Any]:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = json.loads(answer.text)
    assert told.keys() == {"type", "title", "status", "reason", "detail"}
    assert (told["status"], told["reason"]) == (status, reason)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    return told


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_an_answer_is_json_with_headers_that_keep_it_to_itself() -> None:
    answer = client().get("/api/v1/small")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {"execution_id": "9007199254740993"}
    for name, value in HEADERS.items():
        assert answer.headers[name] == value


def test_unknown_routes_and_other_methods_are_problems() -> None:
    for path in ("/", "/api/v1/none", "/api/v1/small/"):
        refused(client().get(path), 404, "not_found")
    answer = client().post("/api/v1/small")
    refused(answer, 405, "method_not_allowed")
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9110", "127.0.0.1.evil", "[::2]:9110"])
def test_a_foreign_host_is_refused_before_anything_is_answered(host: str) -> None:
    refused(client(host=host).get("/api/v1/small"), 421, "bad_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9110", "127.0.0.1:1", "[::1]:9110"])
def test_names_of_this_machine_are_ours(host: str) -> None:
    assert client(host=host).get("/api/v1/small").status_code == 200


def test_outside_loopback_without_a_token_nothing_is_bound() -> None:
    with pytest.raises(ConfigError, match="NOETL_CHAIN_API_BIND") as error:
        application(ENDPOINTS, ELSEWHERE, None)
    assert error.value.exit_code == 2
    assert "NOETL_CHAIN_API_TOKEN" in error.value.hint


def test_outside_loopback_every_route_asks_for_the_token() -> None:
    outside = client(ELSEWHERE, TOKEN, host="chain.example:9110")
    answer = outside.get("/api/v1/small")
    refused(answer, 401, "token_required")
    assert answer.headers["www-authenticate"] == "Bearer"
    refused(outside.get("/api/v1/none"), 401, "token_required")
    assert outside.get("/api/v1/small", headers=bearer(TOKEN)).status_code == 200
    assert outside.get("/api/v1/bodies", headers=bearer(TOKEN)).status_code == 200


@pytest.mark.parametrize(
    "header", ["Bearer wrong", "Bearer ", "Bearer", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"]
)
def test_a_wrong_token_is_refused_everywhere_and_not_repeated(header: str) -> None:
    for place in (LOOPBACK, ELSEWHERE):
        answer = client(place, TOKEN).get("/api/v1/small", headers={"authorization": header})
        refused(answer, 401, "wrong_token")
        assert TOKEN not in answer.text
        assert "wrong" not in answer.text.replace("wrong_token", "").replace("Wrong token", "")


@pytest.mark.parametrize("place", [LOOPBACK, ELSEWHERE])
def test_wrong_tokens_are_few_and_the_right_one_is_never_kept_out(place: Bind) -> None:
    here = client(place, TOKEN)
    for _ in range(TRIES):
        refused(here.get("/api/v1/small", headers=bearer("wrong")), 401, "wrong_token")
        assert here.get("/api/v1/bodies", headers=bearer(TOKEN)).status_code == 200
    answer = here.get("/api/v1/small", headers=bearer("wrong"))
    refused(answer, 429, "rate_limited")
    assert 1 <= int(answer.headers["retry-after"]) <= TRY_EVERY_S
    refused(here.get("/api/v1/none", headers=bearer("wrong")), 429, "rate_limited")
    assert here.get("/api/v1/bodies", headers=bearer(TOKEN)).status_code == 200
    # Nor do they use up what a browser has for its way in.
    entered = here.post(
        "/login",
        data={"token": TOKEN},
        headers={"origin": "http://127.0.0.1:9110"},
        follow_redirects=False,
    )
    assert entered.status_code == 303


def test_payload_stays_closed_on_loopback_too_until_a_token_is_configured_and_presented() -> None:
    refused(client().get("/api/v1/bodies"), 403, "token_required")
    refused(client().get("/api/v1/bodies", headers=bearer(TOKEN)), 403, "token_required")
    refused(client(token=TOKEN).get("/api/v1/bodies"), 403, "token_required")
    assert client(token=TOKEN).get("/api/v1/bodies", headers=bearer(TOKEN)).status_code == 200
    assert client(token=TOKEN).get("/api/v1/small").status_code == 200


def test_sizes_are_bounded() -> None:
    refused(client().get("/api/v1/small?" + "x" * TARGET_MAX_BYTES), 414, "too_large")
    here = client()
    assert here.post("/api/v1/echo", content=b"x" * BODY_MAX_BYTES).json() == {"bytes": BODY_MAX_BYTES}
    refused(here.post("/api/v1/echo", content=b"x" * (BODY_MAX_BYTES + 1)), 413, "too_large")
    refused(here.post("/api/v1/echo", content=iter([b"x" * BODY_MAX_BYTES, b"x"])), 413, "too_large")
    refused(here.post("/api/v1/echo", content=b"", headers={"content-length": "-1"}), 413, "too_large")


def test_a_store_that_cannot_answer_is_unavailable_and_our_own_bug_says_nothing() -> None:
    assert refused(client().get("/api/v1/busy"), 503, "unavailable")["detail"] == "the store is busy"
    assert "secret" not in refused(client().get("/api/v1/broken"), 500, "internal")["detail"]
