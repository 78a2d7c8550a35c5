"""The document of `status`, arranged for a page: the two numbers together, and what they rest on.

Nothing is judged here.  A number that is not known is said to be so, and no number of
divergences is shown as good without the coverage that it stands on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sidecar.core.acceptance import OPEN
from sidecar.web.words import LANES, tone, words

WINDOWS: Final = {"5m": "5 minutes", "1h": "hour", "24h": "24 hours", "start": "Since the start"}
REASONS: Final = {
    "divergence": "Open findings",
    "coverage": "Coverage",
    "executions": "Executions",
    "elapsed": "Observed time",
    "controls": "Self-controls",
    "pending_share": "Pending share",
}


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence on how things stand, and what to do about it."""

    tone: str
    text: str
    more: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """Coverage of one window.  `ratio`, `pending`: None while nothing is eligible, or there."""

    name: str
    ratio: float | None
    covered_events: int
    eligible_events: int
    covered_executions: int
    rejoined_executions: int
    eligible_executions: int
    pending_executions: int
    pending: float | None
    uncovered: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Count:
    """Executions of one verdict."""

    label: str
    words: str
    tone: str
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of the tail; None: not known."""

    name: str
    words: str
    horizon_age: float | None
    lag: float | None
    polled: float | None
    caught_up: bool | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What the overview shows.  `looked`: the store was looked at; else no number is known."""

    headline: Headline
    looked: bool
    open_findings: int
    numbers_tone: str
    kinds: tuple[tuple[str, int], ...]
    windows: tuple[Window, ...]
    verdicts: tuple[Count, ...]
    lanes: tuple[Lane, ...]
    blocked: tuple[tuple[str, str], ...]
    told: Mapping[str, Any]

    @property
    def rejoining(self) -> bool:
        """Whether joins count, or something joined is kept from when they did."""
        counted = (self.told["acceptance"] or {}).get("counted", ())
        return "match_rejoined" in counted or any(each.rejoined_executions for each in self.windows)

    @property
    def start(self) -> Window | None:
        """Coverage since the start: the number beside the divergences."""
        return self.windows[-1] if self.windows else None


def seen(told: Mapping[str, Any]) -> Seen:
    """Arrange a document of `status`."""
    looked = told["coverage"] is not None
    coverage = told["coverage"] or {}
    windows = tuple(_window(name, coverage[name]) for name in WINDOWS if name in coverage)
    acceptance = told["acceptance"]
    found = sum((told["findings_open"] or {}).get(verdict, 0) for verdict in OPEN)
    blocked = () if acceptance is None else acceptance["blocked"]
    covered = bool(windows) and windows[-1].ratio is not None
    if found:
        numbers = "bad"
    elif acceptance is not None and acceptance["accepted"]:
        numbers = "good"
    else:
        numbers = "warn" if covered else "wait"
    return Seen(
        headline=_headline(told, found),
        looked=looked,
        open_findings=found,
        numbers_tone=numbers,
        kinds=tuple((kind, n) for kind, n in (told["divergences"] or {}).items() if n),
        windows=windows,
        verdicts=_verdicts(told["verdicts"] or {}),
        lanes=tuple(_lane(each) for each in told["lanes"]),
        blocked=tuple((REASONS[each["reason"]], each["detail"]) for each in blocked),
        told=told,
    )


def _headline(told: Mapping[str, Any], found: int) -> Headline:
    not_ready: Sequence[str] = told["not_ready"] or ()
    if told["arming"] == "off":
        return Headline(
            "wait", "Off: nothing is followed.", "Set NOETL_CHAIN_POPULATE and NOETL_CHAIN_COMPARE."
        )
    if found:
        return Headline(
            "bad",
            f"{found:,} open {'finding' if found == 1 else 'findings'}.",
            "They stand first in the list of findings.",
        )
    if "control failed" in not_ready:
        more = "The comparator does not find what it should; it gives no verdicts until it does."
        return Headline("bad", "A self-control failed.", more)
    if told["arming"] == "partial":
        return Headline("warn", "The gates do not fit together.", "Both POPULATE and COMPARE have to be on.")
    if not_ready:
        return Headline(
            "warn", f"Not ready: {', '.join(not_ready)}.", "The numbers below are of the last look."
        )
    acceptance = told["acceptance"]
    if acceptance is None:
        return Headline("wait", "Nothing was looked at yet.", "The first numbers come with the first tick.")
    if acceptance["accepted"]:
        return Headline("good", "Accepted: nothing stands against this run.")
    start = told["coverage"]["start"]
    if "ratio" not in start:
        return Headline("wait", "Nothing was compared yet.", "No divergence at no coverage is not agreement.")
    return Headline(
        "warn", "No divergence is open; not accepted yet.", "What stands against it is listed below."
    )


def _window(name: str, told: Mapping[str, Any]) -> Window:
    return Window(
        name=WINDOWS[name] if name == "start" else f"Last {WINDOWS[name]}",
        ratio=told.get("ratio"),
        covered_events=told["covered_events"],
        eligible_events=told["eligible_events"],
        covered_executions=told["covered_executions"],
        rejoined_executions=told["rejoined_executions"],
        eligible_executions=told["eligible_executions"],
        pending_executions=told["pending_executions"],
        pending=told.get("pending_share"),
        uncovered=tuple((label, n) for label, n in told["uncovered"].items() if n),
    )


def _verdicts(counts: Mapping[str, int]) -> tuple[Count, ...]:
    most = max(counts.values(), default=0)
    return tuple(Count(label, words(label), tone(label), n, n / most) for label, n in counts.items() if n)


def _lane(told: Mapping[str, Any]) -> Lane:
    return Lane(
        told["lane"],
        LANES.get(told["lane"], ""),
        told["horizon_age_seconds"],
        told["lag_seconds"],
        told["polled_seconds_ago"],
        told["caught_up"],
    )
