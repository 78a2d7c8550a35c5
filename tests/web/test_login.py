"""The way in for browsers: a session in a cookie, nothing for another origin, few tries."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from sidecar.settings import Bind
from sidecar.web.api import Endpoint, application
from sidecar.web.keys import COOKIE, SESSION_S, SESSIONS_MAX, Keys
from sidecar.web.limits import CLIENTS_MAX, Rate
from sidecar.web.listener import Listener
from sidecar.web.problem import Problem

TOKEN = "a token that nobody guesses"
LOOPBACK = Bind("127.0.0.1", 9110)
ELSEWHERE = Bind("0.0.0.0", 9110)
HERE = "http://127.0.0.1:9110"


async def said(request: Request) -> dict[str, Any]:
    return {"said": True}


ENDPOINTS = (
    Endpoint("/api/v1/bodies", said, payload=True),
    Endpoint("/api/v1/act", said, methods=("POST",)),
    Endpoint("/open", said, public=True),
)


def client(place: Bind = LOOPBACK, token: str | None = TOKEN) -> TestClient:
    return TestClient(application(ENDPOINTS, place, token), base_url=HERE, follow_redirects=False)


def log_in(browser: TestClient, **form: str) -> Any:
    return browser.post("/login", data={"token": TOKEN} | form, headers={"origin": HERE})


def test_a_browser_logs_in_reads_payload_and_logs_out() -> None:
    browser = client()
    assert browser.get("/api/v1/bodies").status_code == 403
    entered = log_in(browser)
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert TOKEN not in cookie
    assert browser.get("/api/v1/bodies").status_code == 200
    kept = browser.cookies[COOKIE]
    assert browser.post("/logout", headers={"origin": HERE}).status_code == 303
    assert COOKIE not in browser.cookies
    browser.cookies[COOKIE] = kept  # a cookie that was written down is worth nothing any more
    assert browser.get("/api/v1/bodies").status_code == 403


def test_outside_loopback_the_way_in_is_open_and_nothing_else() -> None:
    browser = client(ELSEWHERE)
    assert browser.get("/api/v1/bodies").status_code == 401
    assert browser.get("/open").status_code == 200
    assert log_in(browser).status_code == 303
    assert browser.get("/api/v1/bodies").status_code == 200
    assert browser.get("/api/v1/bodies", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_without_a_configured_token_there_is_nothing_to_log_in_to() -> None:
    browser = client(token=None)
    assert log_in(browser).json()["reason"] == "token_required"
    browser.cookies[COOKIE] = "x"
    assert browser.get("/api/v1/bodies").status_code == 403


@pytest.mark.parametrize("token", ["wrong", "", TOKEN + "x"])
def test_a_wrong_token_opens_nothing_and_is_not_repeated(token: str) -> None:
    answer = log_in(client(), token=token)
    assert (answer.status_code, answer.json()["reason"]) == (401, "wrong_token")
    assert "set-cookie" not in answer.headers
    assert TOKEN not in answer.text


def test_tries_are_few_right_ones_too() -> None:
    browser = client()
    codes = [log_in(browser, token="wrong").status_code for _ in range(6)]
    assert codes == [401] * 5 + [429]
    refused = log_in(browser)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 12


async def test_no_header_of_a_client_names_another_client() -> None:
    """Or each try would come from an address of its own, and no number of them would be too many."""
    listener = Listener(application(ENDPOINTS, LOOPBACK, TOKEN), Bind("127.0.0.1", 0))
    stop = asyncio.Event()
    task = asyncio.create_task(listener.run(stop))
    here = f"http://127.0.0.1:{listener.port}"
    codes = []
    async with httpx2.AsyncClient(base_url=here) as client:
        for n in range(6):
            claimed = {"origin": here, "x-forwarded-for": f"192.0.2.{n}", "x-forwarded-proto": "https"}
            codes.append((await client.post("/login", data={"token": "wrong"}, headers=claimed)).status_code)
    stop.set()
    await asyncio.wait_for(task, 5)
    assert codes == [401] * 5 + [429]


async def test_whoever_leaves_in_the_middle_of_a_form_is_no_bug_of_ours() -> None:
    """What the application raises the server logs as an error, with a stack trace."""
    came: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": b"token=", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return came.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = {"host": "127.0.0.1", "content-type": "application/x-www-form-urlencoded"}
    scope = dict(of("127.0.0.1", **headers).scope)
    scope |= {"path": "/login", "raw_path": b"/login", "query_string": b"", "root_path": ""}
    await application(ENDPOINTS, LOOPBACK, TOKEN)(scope, receive, send)
    assert came == []
    assert [message.get("status") for message in sent] == [400, None]


def test_behind_tls_the_cookie_is_for_tls_alone() -> None:
    behind = TestClient(
        application(ENDPOINTS, ELSEWHERE, TOKEN), base_url="http://chain.example", follow_redirects=False
    )
    entered = behind.post("/login", data={"token": TOKEN}, headers={"origin": "https://chain.example"})
    assert "Secure" in entered.headers["set-cookie"]
    assert "Secure" not in log_in(client()).headers["set-cookie"]


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "/\\evil.example", "https://evil.example", "evil", "/a\r\nset-cookie: x=y", "/é"],
)
def test_the_redirect_stays_inside(target: str) -> None:
    assert log_in(client(), next=target).headers["location"] == "/"
    assert log_in(client(), next="/executions/5?log=true").headers["location"] == "/executions/5?log=true"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9111"},
        {"origin": "https://127.0.0.1:9110.evil.example"},
        {"origin": "null"},
        {"origin": "http://[::1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": HERE},
        {"sec-fetch-site": "same-origin", "origin": "http://evil.example"},
        {},
    ],
)
def test_a_cookie_authorises_no_post_of_another_origin(headers: dict[str, str]) -> None:
    browser = client()
    log_in(browser)
    answer = browser.post("/api/v1/act", headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (403, "cross_origin")
    assert browser.post("/api/v1/act", headers={"origin": HERE}).status_code == 200
    assert browser.post("/api/v1/act", headers={"sec-fetch-site": "none"}).status_code == 200


def test_a_page_elsewhere_cannot_act_on_loopback_without_any_token_either() -> None:
    browser = client(token=None)
    assert browser.post("/api/v1/act", headers={"origin": "http://evil.example"}).status_code == 403
    assert browser.post("/api/v1/act").status_code == 200  # a program, not a page


def test_a_path_with_two_endpoints_tells_all_its_methods() -> None:
    table = (*ENDPOINTS, Endpoint("/login", said, public=True))
    browser = TestClient(application(table, LOOPBACK, TOKEN), base_url=HERE)
    answer = browser.request("OPTIONS", "/login", headers={"origin": HERE})
    assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD", "POST"})
    assert (browser.get("/login").json(), browser.head("/login").status_code) == ({"said": True}, 200)


def test_the_port_that_a_scheme_has_anyway_may_be_left_out() -> None:
    outside = TestClient(application(ENDPOINTS, ELSEWHERE, TOKEN), base_url="http://chain.example")
    token = {"authorization": f"Bearer {TOKEN}"}
    for origin in ("http://chain.example", "https://chain.example:443", "http://chain.example:80"):
        assert outside.post("/api/v1/act", headers=token | {"origin": origin}).status_code == 200
    assert (
        outside.post("/api/v1/act", headers=token | {"origin": "http://chain.example:81"}).status_code == 403
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def of(client: str, **headers: str) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "client": (client, 1), "headers": raw, "method": "POST", "path": "/"})


def session(keys: Keys) -> str:
    answer = Response()
    keys.open(answer, secure=True)
    cookie = answer.headers["set-cookie"]
    assert "Secure" in cookie
    return cookie.partition(";")[0]


def test_a_session_ends_by_itself_and_the_oldest_goes_when_there_are_many() -> None:
    clock = Clock()
    keys = Keys(TOKEN, clock)
    first = session(keys)
    assert keys.presented(of("a", cookie=first)) is True
    later = [session(keys) for _ in range(SESSIONS_MAX)]
    assert keys.presented(of("a", cookie=first)) is None
    assert all(keys.presented(of("a", cookie=each)) for each in later)
    clock.now = SESSION_S
    assert not any(keys.presented(of("a", cookie=each)) for each in later)


def test_a_rate_is_each_client_s_own_and_comes_back_with_time() -> None:
    clock = Clock()
    rate = Rate(2, 10.0, clock)
    rate.spend(of("a"))
    rate.spend(of("a"))
    with pytest.raises(Problem) as refused:
        rate.spend(of("a"))
    assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "10")
    rate.spend(of("b"))
    clock.now = 10
    rate.spend(of("a"))
    with pytest.raises(Problem):
        rate.spend(of("a"))


def test_the_clients_that_are_remembered_are_bounded() -> None:
    rate = Rate(1, 10.0, Clock())
    for number in range(2 * CLIENTS_MAX):
        rate.spend(of(str(number)))
    assert len(rate._full_at) == CLIENTS_MAX
