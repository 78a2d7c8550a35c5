"""The API listener: JSON for people's programs, on loopback unless a token guards it.

One table of routes, in `app`; here is what holds for each of them.  Every answer is JSON, every
refusal application/problem+json (RFC 9457) with a `reason` of a closed set.  The Host header must
be ours, so that a page in somebody's browser cannot reach a loopback listener under a name of its
own, and what is more than a question must not come from a page of another origin.  Outside
loopback every route asks for the token, on loopback only routes that show payload, and those stay
closed while no token is configured.
Source: design 4, HTTP.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sidecar.errors import ConfigError, InvariantError, SidecarError
from sidecar.settings import Bind
from sidecar.web.keys import Keys
from sidecar.web.login import Login, tries
from sidecar.web.problem import HEADERS, Problem, Refusal, problem

BODY_MAX_BYTES: Final = 64 * 1024
TARGET_MAX_BYTES: Final = 8 * 1024
SAFE: Final = frozenset({"GET", "HEAD"})
PORTS: Final = {"http": "80", "https": "443"}

Document = Mapping[str, Any]
Answer = Callable[[Request], Awaitable[Document | Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route.

    `answer`: a document, sent as JSON, or a whole response, which gets the common headers it
    lacks.  `payload`: what it shows is the business of those who have the token.  `public`: also
    outside loopback it asks for no token; for the way in, never for anything that is known.
    """

    path: str
    answer: Answer
    methods: tuple[str, ...] = ("GET",)
    payload: bool = False
    public: bool = False


def authorised(request: Request) -> bool:
    """Whether the token, or a session opened with it, came with the request."""
    return request.scope["noetl.authorised"] is True


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
    keys = Keys(token)
    login = Login(keys)
    table = (
        *endpoints,
        Endpoint("/login", login.enter, methods=("POST",), public=True),
        Endpoint("/logout", login.leave, methods=("POST",), public=True),
    )
    app = Starlette(
        routes=_routes(table, keys),
        exception_handlers={
            ClientDisconnect: _left,
            HTTPException: _http,
            Problem: _problem,
            SidecarError: _failed,
            500: _broken,
        },
    )
    app.router.redirect_slashes = False
    return _Gate(app, place, keys, frozenset(each.path for each in table if each.public))


def _routes(table: Sequence[Endpoint], keys: Keys) -> list[Route]:
    """One route a path, so that a refused method is told all the others."""
    paths: dict[str, dict[str, Callable[[Request], Awaitable[Response]]]] = {}
    for each in table:
        handler = _handler(each, keys)
        paths.setdefault(each.path, {}).update(dict.fromkeys(each.methods, handler))
    return [Route(path, _by_method(handlers), methods=list(handlers)) for path, handlers in paths.items()]


def _by_method(
    handlers: Mapping[str, Callable[[Request], Awaitable[Response]]],
) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return handle


def _handler(endpoint: Endpoint, keys: Keys) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        if endpoint.payload and not (keys.configured and authorised(request)):
            raise Problem(403, Refusal.TOKEN_REQUIRED, "this route needs a configured token, presented")
        answer = await endpoint.answer(request)
        if not isinstance(answer, Response):
            return Response(msgspec.json.encode(answer), 200, HEADERS, "application/json")
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        return answer

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


async def _left(request: Request, error: Exception) -> Response:
    """Whoever sent half a body is gone, or what came was no HTTP: nobody reads this, and it is no bug."""
    return problem(400, Refusal.BAD_PARAMETER, "body: it ended before its end")


async def _broken(request: Request, error: Exception) -> Response:
    """Our own bug: said to the log by the server, not to the client."""
    return problem(500, Refusal.INTERNAL, "an error of this program; its log has it")


class _Gate:
    """What stands before every route: size, Host, origin, token."""

    def __init__(self, app: ASGIApp, place: Bind, keys: Keys, public: frozenset[str]) -> None:
        self._app = app
        self._keys = keys
        self._public = public
        self._wrong = tries()
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
        scope["noetl.authorised"] = self._keys.presented(request) is True
        await self._app(scope, _bounded(receive), send)

    def _refused(self, request: Request) -> Response | None:
        scope = request.scope
        if len(scope["raw_path"] or b"") + len(scope["query_string"]) > TARGET_MAX_BYTES:
            return problem(414, Refusal.TOO_LARGE, f"a target has at most {TARGET_MAX_BYTES} bytes")
        length = request.headers.get("content-length", "0")
        if re.fullmatch("[0-9]{1,18}", length, re.ASCII) is None or int(length) > BODY_MAX_BYTES:
            return problem(413, Refusal.TOO_LARGE, f"a body has at most {BODY_MAX_BYTES} bytes")
        if not self._ours(request.headers.getlist("host")):
            return problem(421, Refusal.BAD_HOST, "the Host header names no address of this listener")
        if request.method not in SAFE and _from_elsewhere(request):
            return problem(403, Refusal.CROSS_ORIGIN, "another site may read nothing and change nothing here")
        presented = self._keys.presented(request)
        if presented is False:
            try:
                self._wrong.spend(request)  # after the comparison: the right token is never kept out
            except Problem as later:
                return problem(later.status, later.reason, str(later), later.headers)
            return _unauthorised(Refusal.WRONG_TOKEN, "the token is not the configured one")
        if presented is None and not self._open and scope["path"] not in self._public:
            return _unauthorised(Refusal.TOKEN_REQUIRED, "send the token: Authorization: Bearer …")
        return None

    def _ours(self, hosts: Sequence[str]) -> bool:
        if len(hosts) != 1 or not hosts[0]:
            return False
        return self._hosts is None or _name(hosts[0]) in self._hosts


def _from_elsewhere(request: Request) -> bool:
    """Whether a browser says that a page of another origin sends this.

    A cookie alone must not be enough to act: without any word of its origin a request that comes
    with one is refused as well; every browser of the last years says where it comes from.
    """
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return True
    if origin is not None:
        return _netloc(origin) != request.headers["host"].lower().removesuffix(_port(origin))
    return site is None and "cookie" in request.headers and "authorization" not in request.headers


def _netloc(origin: str) -> str | None:
    """Host and port of an Origin header without the port that its scheme has anyway."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    if parts.scheme not in PORTS or not parts.netloc:
        return None
    return parts.netloc.lower().removesuffix(_port(origin))


def _port(origin: str) -> str:
    return ":" + PORTS.get(origin.partition(":")[0].lower(), "")


def _unauthorised(reason: str, detail: str) -> Response:
    return problem(401, reason, detail, {"www-authenticate": "Bearer"})


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
