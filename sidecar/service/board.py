"""What the API shows, and where: the one table of its routes.

Each answer is put together from the last look of the gauges and from plain state of the running
line; no request makes the store count anything.  Before the store is open, and while POPULATE is
off, the same routes answer with what is known then.  Source: design 4, HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from sidecar.certified import Answer
from sidecar.comparator.report import Judged
from sidecar.core.acceptance import Controls
from sidecar.core.authority import Reason
from sidecar.core.jsonvalue import rendered
from sidecar.core.verdict import EVIDENCED
from sidecar.service.fleet import nobody_known
from sidecar.service.gauges import Gauges
from sidecar.service.line import FollowedLane, Line
from sidecar.service.sampler import Sampled, Sampler
from sidecar.service.status import LaneNow, Process, document
from sidecar.settings import Bind, Reading, Settings
from sidecar.telemetry.health import Health
from sidecar.web.api import Endpoint, application
from sidecar.web.data import Data, never_seen
from sidecar.web.faces import Faced
from sidecar.web.pages import Pages
from sidecar.web.problem import Problem, Refusal
from sidecar.web.routes import Routes, path_id
from sidecar.web.stream import Hub


class Board:
    """Filled by the composition root as the parts come up."""

    def __init__(self, settings: Settings, health: Health) -> None:
        self._settings = settings
        self._health = health
        self.data = Data()
        self.hub = Hub()
        self.gauges: Gauges | None = None
        self.line: Line | None = None
        self.sampler: Sampler | None = None
        self.state: Callable[[int], Awaitable[Answer]] | None = None
        """Asks for the folded state of one execution."""
        self.fleet: Callable[[], Awaitable[dict[str, Any]]] | None = None
        """Asks who is registered in the record of the fleet."""

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Every route of the API."""
        return (
            Endpoint("/api/v1/status", self._status),
            Endpoint("/api/v1/invariant", self._invariant),
            Endpoint("/api/v1/controls", self._controls),
            Endpoint("/api/v1/fleet", self._fleet),
            Endpoint("/api/v1/executions/{execution_id}/state", self._state, payload=True),
            *Routes(self.data, self.hub, serving=self._settings.serve is Reading.ON).endpoints(),
        )

    def judged(self, judged: Judged) -> None:
        """A verdict was recorded: tell those who listen."""
        judgement = judged.judgement
        told = {
            "execution_id": str(judgement.execution_id),
            "verdict": judgement.verdict.value,
            "kinds": [kind.value for kind in judgement.kinds],
            "position": judgement.position,
            "log_rows": judgement.log_rows,
            "stored_rows": judgement.stored_rows,
        }
        self.hub.publish("verdict", told)
        if judgement.verdict in EVIDENCED:
            self.hub.publish("finding", {**told, "new_kinds": [kind.value for kind in judged.new_kinds]})

    async def measure(self) -> None:
        """Look at the store, and tell those who listen that the numbers are new.

        Raises:
            StoreError: the store cannot be read or written.
        """
        if self.gauges is not None:
            await self.gauges.measure()
            self.hub.publish("status", {})

    def served(self, place: Bind, token: str | None) -> ASGIApp:
        """The API and the pages.

        Raises:
            ConfigError: see `check_bind`.
        """
        tokened = token is not None
        pages = Pages(self.data, self.status, lambda: self.data.sources is not None, tokened=tokened)
        return Faced(application((*self.endpoints(), *pages.endpoints()), place, token), tokened=tokened)

    async def _status(self, request: Request) -> dict[str, Any]:
        return self.status()

    def status(self) -> dict[str, Any]:
        """The document of `status`."""
        settings = self._settings
        reasons = tuple(reason.value for reason in self._health.reasons())
        standing = None if self.gauges is None else self.gauges.standing
        lanes = [] if self.line is None else [_lane(self.line, lane) for lane in self.line.lanes]
        process = Process(settings.gates, settings.arming, reasons)
        return document(standing, lanes, process, settings.shard)

    async def _invariant(self, request: Request) -> dict[str, Any]:
        latest = Sampled(self._settings.invariant_window_hours)
        return invariant(latest if self.sampler is None else self.sampler.latest)

    async def _controls(self, request: Request) -> dict[str, Any]:
        totals = Controls() if self.gauges is None else self.gauges.controls()
        return {"expected": totals.expected, "unexpected": totals.unexpected}

    async def _fleet(self, request: Request) -> dict[str, Any]:
        return nobody_known() if self.fleet is None else await self.fleet()

    async def _state(self, request: Request) -> dict[str, Any]:
        execution_id = path_id(request, "execution_id")
        if self.state is None:
            raise Problem(503, Refusal.UNAVAILABLE, "the store is not open")
        self.data.check_shard(execution_id)
        answer = await self.state(execution_id)
        if answer.reason is not None:
            if answer.reason is Reason.NOT_POPULATED and not await self.data.seen(execution_id):
                raise never_seen(execution_id)
            raise Problem(409, answer.reason, "the store does not answer for this execution")
        shown = answer.document()
        # Our own encoder: numbers of the state are printed as they were spelled.
        return {**shown, "state": msgspec.Raw(rendered(shown["state"]))}


def invariant(sampled: Sampled) -> dict[str, Any]:
    """The document of `/api/v1/invariant`; ids are decimal texts."""
    roots = sampled.roots
    at = datetime.fromtimestamp(sampled.at, UTC).isoformat(timespec="seconds") if sampled.at else None
    return {
        "window_hours": sampled.window_h,
        "sampled_at": at,
        "sampled_at_seconds": round(sampled.at, 3),
        "executions": roots.executions,
        "outcomes": dict(roots.counts),
        "healthy_ratio": round(roots.healthy, 6),
        "worst": [{"execution_id": str(execution_id), "roots": count} for execution_id, count in roots.worst],
    }


def _lane(line: Line, lane: FollowedLane) -> LaneNow:
    polled = line.polls.get(lane.name)
    return LaneNow(
        lane.name,
        horizon_age_s=None if polled is None else lane.state.horizon_age_s,
        lag_s=None if polled is None else polled.lag_s,
        polled_s=None if polled is None else time.monotonic() - polled.at,
        caught_up=lane.state.caught_up,
    )
