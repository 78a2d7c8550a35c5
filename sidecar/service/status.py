"""The document of `status`: one builder for the command and for the API.

Whatever is not known is null and never 0: a store file knows neither the gates of the sidecar that
writes it nor its controls.  Ids and horizons are decimal texts.  A ratio without a denominator is
left out.  Source: design 4, HTTP; spec 3.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sidecar import __version__
from sidecar.core.acceptance import OPEN, Acceptance, Floors
from sidecar.core.coverage import AWAITED, UNJUDGED, Coverage
from sidecar.core.due import SECOND
from sidecar.core.horizon import Cursor
from sidecar.core.shards import Shard
from sidecar.core.verdict import EVIDENCED, Verdict
from sidecar.service.standing import START, Standing
from sidecar.settings import Arming, Reading
from sidecar.store.handover import Filled

Document = dict[str, Any]
SWEEP: Final = "sweep"
_LABELS: Final = (*(v.value for v in Verdict if v is not Verdict.BEHIND), UNJUDGED, AWAITED)


@dataclass(frozen=True, slots=True)
class LaneNow:
    """One lane of the tail.

    `horizon_age_s`: seconds since its horizon last advanced.  `lag_s`: the longest time from
    `ingest_time` to stored in its last batch that had rows.  `polled_s`: seconds since its last
    stored poll; of the sweep's partitions the longest.  None: not known here.
    """

    lane: str
    horizon_age_s: float | None
    lag_s: float | None
    polled_s: float | None
    caught_up: bool | None


@dataclass(frozen=True, slots=True)
class Process:
    """What only the running sidecar knows.  `not_ready`: empty is ready."""

    gates: Mapping[str, Reading]
    arming: Arming
    not_ready: tuple[str, ...]


def document(
    standing: Standing | None, lanes: Iterable[LaneNow], process: Process | None, shard: Shard
) -> Document:
    """Everything `status` says.

    Args:
        shard: Of the settings of whoever says it.
        standing: None before the first look at the store, or without a store.
        process: None: read from a store file.
    """
    return {
        "from": "store" if process is None else "sidecar",
        "version": __version__,
        "gates": None if process is None else {gate: read.value for gate, read in process.gates.items()},
        "arming": None if process is None else process.arming.value,
        "ready": None if process is None else not process.not_ready,
        "not_ready": None if process is None else list(process.not_ready),
        "lanes": [_lane(lane) for lane in lanes],
        "shard": _shard(shard, None if standing is None else standing.filled),
        **(_NOTHING if standing is None else _stands(standing, known=process is not None)),
    }


def _shard(shard: Shard, filled: Filled | None) -> Document:
    stored = None if filled is None or filled.shard is None else filled.shard
    return {
        "index": shard.index,
        "count": shard.count,
        "store": None if stored is None else {"index": stored.index, "count": stored.count},
        "moving": None if filled is None else filled.moving,
        "differs": None if filled is None else filled.differs(shard),
    }


def _lane(lane: LaneNow) -> Document:
    return {
        "lane": lane.lane,
        "horizon_age_seconds": _rounded(lane.horizon_age_s),
        "lag_seconds": _rounded(lane.lag_s),
        "polled_seconds_ago": _rounded(lane.polled_s),
        "caught_up": lane.caught_up,
    }


def _stands(standing: Standing, *, known: bool) -> Document:
    start = standing.coverage[START].verdicts
    return {
        "at": instant(standing.at),
        "divergences": dict(standing.divergences),
        "findings_open": {v.value: standing.findings_open.get(v.value, 0) for v in EVIDENCED},
        "coverage": {window: _coverage(each) for window, each in standing.coverage.items()},
        "verdicts": {label: start.get(label, 0) for label in _LABELS},
        "observed_since": None if standing.observation.since is None else instant(standing.observation.since),
        "observation_seconds": round(standing.elapsed_s, 3),
        "acceptance": _acceptance(standing.acceptance, standing.floors),
        "controls": {
            "expected": standing.controls.expected,
            "unexpected": standing.controls.unexpected,
        }
        if known
        else None,
        "due": dict(standing.due),
        "oldest_pending_seconds": round(standing.pending_s, 3),
        "oldest_dangling_seconds": round(standing.dangling_s, 3),
        "store": {
            "bytes": standing.size.used,
            "free_bytes": standing.size.free,
            "wal_bytes": standing.size.wal,
        },
        "fleet": {"live_workers": standing.live_workers},
    }


_NOTHING: Final = dict.fromkeys(
    (
        "at",
        "divergences",
        "findings_open",
        "coverage",
        "verdicts",
        "observed_since",
        "observation_seconds",
        "acceptance",
        "controls",
        "due",
        "oldest_pending_seconds",
        "oldest_dangling_seconds",
        "store",
        "fleet",
    )
)


def _coverage(found: Coverage) -> Document:
    told: Document = {
        "covered_executions": found.covered_executions,
        "eligible_executions": found.eligible_executions,
        "covered_events": found.covered_events,
        "eligible_events": found.eligible_events,
        "pending_executions": found.pending_executions,
        "rejoined_executions": found.rejoined_executions,
        "rejoined_events": found.rejoined_events,
        "uncovered": found.uncovered,
    }
    if found.ratio is not None:
        told["ratio"] = round(found.ratio, 6)
    if found.ratio_with_rejoined is not None:
        told["ratio_with_rejoined"] = round(found.ratio_with_rejoined, 6)
    if found.pending_share is not None:
        told["pending_share"] = round(found.pending_share, 6)
    return told


def _acceptance(found: Acceptance, floors: Floors) -> Document:
    return {
        "accepted": found.accepted,
        "counted": [verdict.value for verdict in found.counted],
        "blocked": [{"reason": each.reason.value, "detail": each.detail} for each in found.blocked],
        "floors": {
            "coverage": floors.coverage,
            "executions": floors.executions,
            "elapsed_seconds": floors.elapsed_s,
        },
    }


def exit_code(told: Mapping[str, Any]) -> int:
    """0 accepted, 1 an open finding or a control that came out wrong, 3 anything else: no agreement."""
    findings = told.get("findings_open") or {}
    controls = told.get("controls") or {}
    if any(findings.get(verdict) for verdict in OPEN) or controls.get("unexpected"):
        return 1
    return 0 if (told.get("acceptance") or {}).get("accepted") else 3


def lanes_of(cursors: Mapping[str, Cursor], now: int) -> list[LaneNow]:
    """The lanes as a store file knows them.

    Args:
        now: Microseconds since 1970; the cursors hold Postgres's clock, so ages are approximate.
    """
    oldest: dict[str, int] = {}
    for key, cursor in cursors.items():
        lane = key.partition(":")[0]
        oldest[lane] = min(cursor.polled_at, oldest.get(lane, cursor.polled_at))
    return [
        LaneNow(lane, None, None, max(0.0, (now - polled_at) / SECOND), None)
        for lane, polled_at in sorted(oldest.items())
    ]


def instant(at: int) -> str:
    """Microseconds since 1970 as an ISO 8601 time in UTC."""
    return datetime.fromtimestamp(at / SECOND, UTC).isoformat(timespec="seconds")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
