"""The routes over executions and findings: from a request to `Data` and back.

A parameter that is unknown, given twice or out of its bounds is refused with its name; nothing is
guessed, or a misspelt filter would show everything.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from sidecar.core.event import Event, is_id
from sidecar.core.verdict import Verdict
from sidecar.store.listing import VERDICTS, Place
from sidecar.web.api import Endpoint, authorised
from sidecar.web.data import Data
from sidecar.web.limits import Rate
from sidecar.web.problem import Problem, Refusal
from sidecar.web.stream import Hub

LIMIT: Final = 50
LIMIT_MAX: Final = 200
PROBES: Final = 10
PROBE_EVERY_S: Final = 1.0
CHUNK_EVENTS: Final = 256
FINDING_VERDICTS: Final = (*(verdict.value for verdict in Verdict), "rebuilt", "forked")
CONTRACT: Final = "openapi.yaml"

_ID: Final = re.compile("-?[0-9]{1,19}", re.ASCII)
_PLACE: Final = re.compile(r"(-?[0-9]{1,19}|n)\.(-?[0-9]{1,19})", re.ASCII)


class Routes:
    """Endpoints over `data` and `hub`.

    Args:
        serving: The gate NOETL_CHAIN_SERVE.
    """

    def __init__(self, data: Data, hub: Hub, *, serving: bool) -> None:
        self._data = data
        self._hub = hub
        self._serving = serving
        self._rate = Rate(PROBES, PROBE_EVERY_S)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The table."""
        one = "/api/v1/executions/{execution_id}"
        return (
            Endpoint("/api/v1/executions", self._executions),
            Endpoint(one, self._execution),
            Endpoint(f"{one}/chain", self._chain, payload=True),
            Endpoint(f"{one}/probe", self._probe, methods=("POST",)),
            Endpoint("/api/v1/divergences", self._divergences),
            Endpoint("/api/v1/divergences/{finding_id}", self._divergence),
            Endpoint("/api/v1/events", self._hub.answer),
            Endpoint("/api/v1/openapi.yaml", _contract),
        )

    async def _executions(self, request: Request) -> dict[str, Any]:
        given = parameters(request, "verdict", "limit", "after")
        found, place = await self._data.executions(
            verdict=_choice(given, "verdict", VERDICTS), after=place_of(given), limit=_limit(given)
        )
        return {"executions": found, "next": None if place is None else cursor(place)}

    async def _execution(self, request: Request) -> dict[str, Any]:
        execution_id = path_id(request, "execution_id")
        with_log = _flag(parameters(request, "log"), "log")
        if with_log:
            self._rate.spend(request)
        return (await self._data.execution(execution_id, with_log=with_log)).document()

    async def _chain(self, request: Request) -> Response:
        execution_id = path_id(request, "execution_id")
        if not self._serving:
            raise Problem(403, Refusal.SERVE_OFF, "NOETL_CHAIN_SERVE is off")
        held = await self._data.chain(execution_id)
        pruned = held.partition is not None and held.partition.verdict == Verdict.LOG_PRUNED
        if request.method == "HEAD":
            return Response(media_type="application/json")
        events = held.guarded.events or ()
        return StreamingResponse(_chain(execution_id, events, pruned=pruned), media_type="application/json")

    async def _probe(self, request: Request) -> dict[str, Any]:
        execution_id = path_id(request, "execution_id")
        self._rate.spend(request)
        return (await self._data.probe(execution_id)).document()

    async def _divergences(self, request: Request) -> dict[str, Any]:
        given = parameters(request, "verdict", "open", "limit", "after")
        found, place = await self._data.findings(
            verdict=_choice(given, "verdict", FINDING_VERDICTS),
            only_open=_flag(given, "open"),
            after=_id("after", given["after"]) if "after" in given else None,
            limit=_limit(given),
        )
        return {"divergences": found, "next": None if place is None else str(place)}

    async def _divergence(self, request: Request) -> dict[str, Any]:
        return await self._data.finding(path_id(request, "finding_id"), bodies=authorised(request))


async def _contract(request: Request) -> Response:
    return Response(contract(), media_type="application/yaml")


@lru_cache(maxsize=1)
def contract() -> str:
    """The OpenAPI document, from beside the program or from the source tree."""
    here = Path(__file__).with_name(CONTRACT)
    source = Path(__file__).parents[2] / "docs" / CONTRACT
    return (here if here.is_file() else source).read_text("utf-8")


async def _chain(execution_id: int, events: Sequence[Event], *, pruned: bool) -> AsyncIterator[bytes]:
    """The document of the guarded read, in pieces: a long chain holds nobody else up."""
    yield b'{"execution_id":"%d","pruned":%b,"events":[' % (execution_id, b"true" if pruned else b"false")
    for start in range(0, len(events), CHUNK_EVENTS):
        part = [
            {
                "exec_seq": seq,
                "event_id": str(event.event_id),
                "prev_event_id": None if event.prev_event_id is None else str(event.prev_event_id),
                "event_type": event.event_type,
                "body": event.body,
            }
            for seq, event in enumerate(events[start : start + CHUNK_EVENTS], start=start + 1)
        ]
        yield (b"," if start else b"") + msgspec.json.encode(part)[1:-1]
    yield b"]}"


# Parameters


def parameters(request: Request, *known: str) -> dict[str, str]:
    """The query by name.

    Raises:
        Problem: a name is unknown or given twice.
    """
    pairs = request.query_params.multi_items()
    given = dict(pairs)
    for name in given:
        if name not in known:
            raise _bad(name, "there is no such parameter")
    if len(given) != len(pairs):
        twice = next(name for name in given if sum(name == each for each, _ in pairs) > 1)
        raise _bad(twice, "is given more than once")
    return given


def path_id(request: Request, name: str) -> int:
    """A 64-bit id of the path.

    Raises:
        Problem: it is none.
    """
    return _id(name, request.path_params[name])


def cursor(place: Place) -> str:
    """A place as people send it back."""
    return f"{'n' if place.changed_at is None else place.changed_at}.{place.execution_id}"


def _id(name: str, text: str) -> int:
    if _ID.fullmatch(text) is None or not is_id(int(text)):
        raise _bad(name, "is a 64-bit integer")
    return int(text)


def place_of(given: dict[str, str]) -> Place | None:
    """Where a list goes on.

    Raises:
        Problem: no answer said so.
    """
    if "after" not in given:
        return None
    found = _PLACE.fullmatch(given["after"])
    if found is None:
        raise _bad("after", "is what an answer gave as `next`")
    at, execution_id = found.groups()
    return Place(None if at == "n" else _id("after", at), _id("after", execution_id))


def _limit(given: dict[str, str]) -> int:
    text = given.get("limit", str(LIMIT))
    if re.fullmatch("[0-9]{1,3}", text, re.ASCII) is None or not 1 <= int(text) <= LIMIT_MAX:
        raise _bad("limit", f"is a number from 1 to {LIMIT_MAX}")
    return int(text)


def _choice(given: dict[str, str], name: str, among: Sequence[str]) -> str | None:
    if name in given and given[name] not in among:
        raise _bad(name, f"is one of {', '.join(among)}")
    return given.get(name)


def _flag(given: dict[str, str], name: str) -> bool:
    return _choice(given, name, ("true", "false")) == "true"


def _bad(name: str, why: str) -> Problem:
    return Problem(400, Refusal.BAD_PARAMETER, f"{name[:64]}: {why}")
