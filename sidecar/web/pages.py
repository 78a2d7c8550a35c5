"""The status pages: what the API says, for people.

Every page is whole without JavaScript; with it, an event of the stream lets the page be fetched
again and its sections change in place.  Nothing comes from outside, and no style or script stands
in the markup.  A body is shown to those who have the token, as in the API.  Source: design 4,
HTTP, pages.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sidecar.core.acceptance import OPEN
from sidecar.core.event import is_id
from sidecar.inspection.documents import Document
from sidecar.store.listing import VERDICTS, Place
from sidecar.web import execution, overview
from sidecar.web.api import Endpoint, authorised
from sidecar.web.data import Execution
from sidecar.web.drawing import legend
from sidecar.web.problem import HEADERS, Problem, Refusal
from sidecar.web.rendering import file, render
from sidecar.web.routes import cursor, parameters, place_of

STATIC: Final = {
    "page.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
RECENT: Final = 12
LISTED: Final = 50
EVIDENCE_SHOWN: Final = 8
"""Findings of an execution with their evidence, the newest; further ones are named."""
PAGE_HEADERS: Final = {
    **HEADERS,
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self';"
        " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # A form that is sent from a page without a referrer says that it comes from nowhere.
    "referrer-policy": "same-origin",
}


class Shown(Protocol):
    """What the pages ask for, anew for each of them; see `Data`."""

    async def executions(
        self, *, verdict: str | None, after: Place | None, limit: int
    ) -> tuple[list[Document], Place | None]: ...

    async def execution(self, execution_id: int, *, with_log: bool) -> Execution: ...

    async def findings(
        self, *, verdict: str | None = None, only_open: bool = False, limit: int
    ) -> tuple[list[Document], int | None]: ...

    async def finding(self, finding_id: int, *, bodies: bool) -> Document: ...


def page(template: str, status: int = 200, **values: Any) -> Response:
    """One page, with the headers that let it load its own style and script and nothing else."""
    return Response(render(template, **values), status, PAGE_HEADERS, "text/html; charset=utf-8")


class Pages:
    """The pages over what is shown.

    Args:
        status: Gives the document of `status`.
        opened: Whether there is a store to ask.
        tokened: A token is configured, so that a browser can log in.
    """

    def __init__(
        self,
        shown: Shown,
        status: Callable[[], Mapping[str, Any]],
        opened: Callable[[], bool],
        *,
        tokened: bool,
    ) -> None:
        self._shown = shown
        self._status = status
        self._opened = opened
        self._tokened = tokened

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The table.  What a browser needs before it has the token is public; it says nothing of the log."""
        return (
            Endpoint("/", self._overview),
            Endpoint("/executions", self._executions),
            Endpoint("/executions/{execution_id}", self._execution),
            Endpoint("/login", self._login, public=True),
            *(
                Endpoint(f"/static/{name}", _static(file(name), kind), public=True)
                for name, kind in STATIC.items()
            ),
        )

    def _common(self, request: Request) -> dict[str, Any]:
        return {"tokened": self._tokened, "authorised": self._tokened and authorised(request)}

    async def _overview(self, request: Request) -> Response:
        recent = await self._recent() if self._opened() else []
        return page(
            "overview.html", seen=overview.seen(self._status()), recent=recent, **self._common(request)
        )

    async def _recent(self) -> list[Document]:
        """What stands against acceptance first, then the newest: many refusals hide no divergence."""
        found: dict[str, Document] = {}
        for verdict in OPEN:
            alarms, _ = await self._shown.findings(verdict=verdict, only_open=True, limit=RECENT)
            found |= {each["finding_id"]: each for each in alarms}
        for each in (await self._shown.findings(limit=RECENT))[0]:
            found.setdefault(each["finding_id"], each)
        return list(found.values())[:RECENT]

    async def _executions(self, request: Request) -> Response:
        """The list, and the way from the search box to one execution."""
        given = parameters(request, "id", "verdict", "after")
        text = given.get("id", "").strip()
        if _id(text) is not None:
            return RedirectResponse(f"/executions/{int(text)}", 303, HEADERS)
        verdict = given.get("verdict") or None
        if verdict is not None and verdict not in VERDICTS:
            raise Problem(400, Refusal.BAD_PARAMETER, "verdict: there is no such verdict")
        found, place = await self._shown.executions(verdict=verdict, after=place_of(given), limit=LISTED)
        return page(
            "executions.html",
            400 if text else 200,
            asked=text,
            verdict=verdict,
            verdicts=VERDICTS,
            found=found,
            next=None if place is None else cursor(place),
            first="after" not in given,
            **self._common(request),
        )

    async def _execution(self, request: Request) -> Response:
        common = self._common(request)
        execution_id = _id(request.path_params["execution_id"])
        if execution_id is None:
            raise Problem(404, Refusal.NOT_FOUND, "an execution id is a 64-bit integer")
        everything = "all" in request.query_params
        found = await self._shown.execution(execution_id, with_log=True)
        newest = found.findings[:EVIDENCE_SHOWN]
        kept = [await self._shown.finding(each.finding_id, bodies=common["authorised"]) for each in newest]
        return page(
            "execution.html",
            seen=execution.shown(found, kept, payload=common["authorised"], everything=everything),
            legend=tuple(legend()),
            everything=everything,
            **common,
        )

    async def _login(self, request: Request) -> Response:
        return page("login.html", next=request.query_params.get("next", "/"), **self._common(request))


def _static(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    return partial(_sent, content, kind)


async def _sent(content: bytes, kind: str, request: Request) -> Response:
    return Response(content, 200, HEADERS, kind)


def _id(text: str) -> int | None:
    """A 64-bit id as people write it; None: it is none."""
    if re.fullmatch("-?[0-9]{1,19}", text, re.ASCII) is None or not is_id(int(text)):
        return None
    return int(text)
