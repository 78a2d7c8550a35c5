"""Refusals with a face: a browser gets a page where a program gets a problem document.

Stands outside of everything else, so that whatever refuses, the gate or a route, needs to know
one form only.  Status and headers stay as they are.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sidecar.web.pages import PAGE_HEADERS
from sidecar.web.rendering import render

PROBLEM: Final = "application/problem+json"
REMEDIES: Final = {
    "never_seen": "Check the id; an execution that began a moment ago may not be there yet.",
    "other_shard": "Ask the sidecar of that shard.",
    "not_found": "Check the id: an execution id is the number that NoETL shows.",
    "token_required": "Log in once with the token of NOETL_CHAIN_API_TOKEN.",
    "wrong_token": "The token is the one of NOETL_CHAIN_API_TOKEN or NOETL_CHAIN_API_TOKEN_FILE.",
    "unavailable": "Postgres or the store does not answer now; nothing is lost. Load the page again later.",
    "busy": "Others are asking at this moment; load the page again.",
    "rate_limited": "Wait a moment and try again.",
    "bad_host": "Open the page under the name or address on which the sidecar listens.",
    "internal": "The log of the sidecar says what happened.",
}


class Faced:
    """Turns the problem documents of `app` into pages for those who ask for HTML."""

    def __init__(self, app: ASGIApp, *, tokened: bool) -> None:
        self._app = app
        self._tokened = tokened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _by_people(Request(scope)):
            await self._app(scope, receive, send)
            return
        started: Message | None = None
        body = b""

        async def faced(message: Message) -> None:
            nonlocal started, body
            if message["type"] == "http.response.start" and _is_problem(message):
                started = message
            elif started is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body"):
                    await self._show(send, started, body, scope)

        await self._app(scope, receive, faced)

    async def _show(self, send: Send, started: Message, problem: bytes, scope: Scope) -> None:
        told: dict[str, Any] = msgspec.json.decode(problem)
        text = render(
            "error.html",
            told=told,
            remedy=REMEDIES.get(told["reason"], ""),
            tokened=self._tokened,
            authorised=self._tokened and scope.get("noetl.authorised") is True,
            next=scope["path"] if scope["method"] == "GET" else "/",
        ).encode()
        headers = MutableHeaders(raw=list(started["headers"]))
        headers.update({**PAGE_HEADERS, "content-type": "text/html; charset=utf-8"})
        headers["content-length"] = str(len(text))
        await send({**started, "headers": headers.raw})
        await send({"type": "http.response.body", "body": text})


def _by_people(request: Request) -> bool:
    """Whether HTML is asked for by name, and not of the API."""
    path = request.scope["path"]
    return not path.startswith("/api/") and "text/html" in request.headers.get("accept", "")


def _is_problem(message: Message) -> bool:
    return MutableHeaders(raw=message["headers"]).get("content-type", "").startswith(PROBLEM)
