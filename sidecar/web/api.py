"""The API listener: JSON for people's programs, on loopback unless a token guards it.

One table of routes, in `app`; here is what holds for each of them.  Every answer is JSON, every
refusal application/problem+json (RFC 9457) with a `reason` of a closed set.  The Host header must
be ours, so that a page in somebody's browser cannot reach a loopback listener under a name of its
own.  A bearer token is compared in constant time; outside loopback every route asks for it, on
loopback only routes that show payload, and those stay closed while no token is configured.
Source: design 4, HTTP.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sidecar.errors import ConfigError, InvariantError, SidecarError
from sidecar.settings import Bind

BODY_MAX_BYTES: Final = 64 * 1024
TARGET_MAX_BYTES: Final = 8 * 1024

HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

Document = Mapping[str, Any]
Answer = Callable[[Request], Awaitable[Document]]


class Refusal(StrEnum):
    """Why a request is refused: the `reason` of the problem document."""

    BAD_HOST = "bad_host"
    TOKEN_REQUIRED = "token_required"  # noqa: S105 - a reason, no secret
    WRONG_TOKEN = "wrong_token"  # noqa: S105
    TOO_LARGE = "too_large"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route.  `payload`: what it shows is the business of those who have the token."""

    path: str
    answer: Answer
    methods: tuple[str, ...] = ("GET",)
    payload: bool = False


class Problem(Exception):
    """A refusal on its way to the client.  An endpoint may raise it."""

    def __init__(
        self, status: int, reason: str, detail: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.headers = headers or {}


def problem(status: int, reason: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """One problem document."""
    body = {"type": "about:blank", "title": _title(reason), "status": status, "reason": reason}
    text = msgspec.json.encode({**body, "detail": detail})
    return Response(text, status, {**HEADERS, **(headers or {})}, "application/problem+json")


def _title(reason: str) -> str:
    return reason.replace("_", " ").capitalize()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(place: Bind, token: str | None) -> None:
    """Refuse an address that others reach while there is no token.

    Raises:
        ConfigError: so it is.
    """
    if token is None and not is_loopback(place.host):
        raise ConfigError(
            "NOETL_CHAIN_API_BIND is no loopback address and no token is configured",
            hint="set NOETL_CHAIN_API_TOKEN_FILE, or bind to 127.0.0.1",
        )


def application(endpoints: Sequence[Endpoint], place: Bind, token: str | None) -> ASGIApp:
    """The API over `endpoints`.

    Raises:
        ConfigError: see `check_bind`.
    """
    check_bind(place, token)
    app = Starlette(
        routes=[Route(each.path, _handler(each, token), methods=list(each.methods)) for each in endpoints],
        exception_handlers={HTTPException: _http, Problem: _problem, SidecarError: _failed, 500: _broken},
    )
    app.router.redirect_slashes = False
    return _Gate(app, place, token)


def _handler(endpoint: Endpoint, token: str | None) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        if endpoint.payload and (token is None or not request.scope["noetl.authorised"]):
            raise Problem(403, Refusal.TOKEN_REQUIRED, "this route needs a configured token, presented")
        return Response(msgspec.json.encode(await endpoint.answer(request)), 200, HEADERS, "application/json")

    return handle


async def _http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    if status == 405:
        return problem(status, Refusal.METHOD_NOT_ALLOWED, "this route takes another method", headers)
    return problem(404, Refusal.NOT_FOUND, "there is no such route", headers)


async def _problem(request: Request, error: Exception) -> Response:
    if isinstance(error, Problem):
        return problem(error.status, error.reason, str(error), error.headers)
    raise error


async def _failed(request: Request, error: Exception) -> Response:
    """Postgres or the store cannot answer now; the message names neither host nor secret."""
    if isinstance(error, InvariantError):
        raise error
    return problem(503, Refusal.UNAVAILABLE, str(error))


async def _broken(request: Request, error: Exception) -> Response:
    """Our own bug: said to the log by the server, not to the client."""
    return problem(500, Refusal.INTERNAL, "an error of this program; its log has it")


class _Gate:
    """What stands before every route: size, Host, token."""

    def __init__(self, app: ASGIApp, place: Bind, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else _hashed(token)
        self._open = is_loopback(place.host)
        # With a token the name it is reached under is not ours to know; without it cannot be guessed.
        self._hosts = {"localhost", "127.0.0.1", "::1", place.host} if self._open else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        refused = self._refused(request)
        if refused is not None:
            await refused(scope, receive, send)
            return
        scope["noetl.authorised"] = self._presented(request) is True
        await self._app(scope, _bounded(receive), send)

    def _refused(self, request: Request) -> Response | None:
        scope = request.scope
        if len(scope["raw_path"] or b"") + len(scope["query_string"]) > TARGET_MAX_BYTES:
            return problem(414, Refusal.TOO_LARGE, f"a target has at most {TARGET_MAX_BYTES} bytes")
        length = request.headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > BODY_MAX_BYTES:
            return problem(413, Refusal.TOO_LARGE, f"a body has at most {BODY_MAX_BYTES} bytes")
        if not self._ours(request.headers.getlist("host")):
            return problem(421, Refusal.BAD_HOST, "the Host header names no address of this listener")
        presented = self._presented(request)
        if presented is False:
            return _unauthorised(Refusal.WRONG_TOKEN, "the token is not the configured one")
        if presented is None and not self._open:
            return _unauthorised(Refusal.TOKEN_REQUIRED, "send the token: Authorization: Bearer …")
        return None

    def _ours(self, hosts: Sequence[str]) -> bool:
        if len(hosts) != 1 or not hosts[0]:
            return False
        return self._hosts is None or _name(hosts[0]) in self._hosts

    def _presented(self, request: Request) -> bool | None:
        """Whether the token that was sent is right; None: none was sent, or none is configured."""
        header = request.headers.get("authorization")
        if header is None or self._token is None:
            return None
        scheme, _, given = header.partition(" ")
        # Hashes of one length: the comparison's time says nothing, of the length neither.
        return hmac.compare_digest(_hashed(given.strip()), self._token) and scheme.lower() == "bearer"


def _unauthorised(reason: str, detail: str) -> Response:
    return problem(401, reason, detail, {"www-authenticate": "Bearer"})


def _hashed(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()


def _name(host: str) -> str:
    """The Host header without its port, brackets and capitals."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _bounded(receive: Receive) -> Receive:
    """A body without a length is counted as it comes."""
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > BODY_MAX_BYTES:
            raise Problem(413, Refusal.TOO_LARGE, f"a body has at most {BODY_MAX_BYTES} bytes")
        return message

    return bounded
