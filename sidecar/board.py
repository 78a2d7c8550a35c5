"""What the API shows, and where: the one table of its routes.

Each answer is put together from the last look of the gauges and from plain state of the running
line; no request makes the store count anything.  Before the store is open, and while POPULATE is
off, the same routes answer with what is known then.  Source: design 4, HTTP.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from sidecar.core.acceptance import Controls
from sidecar.gauges import Gauges
from sidecar.line import FollowedLane, Line
from sidecar.sampler import Sampled, Sampler
from sidecar.settings import Settings
from sidecar.status import LaneNow, Process, document
from sidecar.telemetry.health import Health
from sidecar.web.api import Endpoint


class Board:
    """Filled by the composition root as the parts come up."""

    def __init__(self, settings: Settings, health: Health) -> None:
        self._settings = settings
        self._health = health
        self.gauges: Gauges | None = None
        self.line: Line | None = None
        self.sampler: Sampler | None = None

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Every route of the API."""
        return (
            Endpoint("/api/v1/status", self._status),
            Endpoint("/api/v1/invariant", self._invariant),
            Endpoint("/api/v1/controls", self._controls),
        )

    async def _status(self, request: Request) -> dict[str, Any]:
        settings = self._settings
        reasons = tuple(reason.value for reason in self._health.reasons())
        standing = None if self.gauges is None else self.gauges.standing
        lanes = [] if self.line is None else [_lane(self.line, lane) for lane in self.line.lanes]
        return document(standing, lanes, Process(settings.gates, settings.arming, reasons))

    async def _invariant(self, request: Request) -> dict[str, Any]:
        latest = Sampled(self._settings.invariant_window_hours)
        return invariant(latest if self.sampler is None else self.sampler.latest)

    async def _controls(self, request: Request) -> dict[str, Any]:
        totals = Controls() if self.gauges is None else self.gauges.controls()
        return {"expected": totals.expected, "unexpected": totals.unexpected}


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
