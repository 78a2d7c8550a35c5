"""How much was compared: the number that stands beside the divergences.

Executions of one window, counted by their latest verdict, come to a numerator and a denominator.
Every way of not knowing is in the denominator: a read that failed or was cut, a refusal, and an
execution that nobody judged in time.  What is still pending is in neither, and its share says so.
What was joined by proof is eligible and has a series of its own.  A ratio without a denominator
is absent, never 1.

Observation is the time during which a comparator was really judging: not the time since the
first start.  Source: spec 3.3 (table), 3.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.core.verdict import NOT_ELIGIBLE, PENDING, Verdict
from sidecar.errors import invariant

AWAITED: Final = "pending"
"""No verdict yet, and first seen less than `settle` ago."""
UNJUDGED: Final = "unjudged"
"""No verdict yet after `settle`: eligible, so that a stopped comparator shrinks nothing."""

UNCOVERED: Final = (
    *(
        verdict.value
        for verdict in Verdict
        if verdict not in NOT_ELIGIBLE | {Verdict.MATCH, Verdict.MATCH_REJOINED, Verdict.BEHIND}
    ),
    UNJUDGED,
)
"""The labels that are eligible and not covered, in the order of the verdicts."""

_PENDING: Final = frozenset({AWAITED, *(verdict.value for verdict in PENDING)})
_OUTSIDE: Final = frozenset({AWAITED, *(verdict.value for verdict in NOT_ELIGIBLE)})
_KNOWN: Final = frozenset({AWAITED, UNJUDGED, *(verdict.value for verdict in Verdict)})


@dataclass(frozen=True, slots=True)
class Tally:
    """Executions of one window with the same latest verdict (or AWAITED, UNJUDGED).

    `read`: rows of the log reads behind those verdicts.  `events`: per execution the greater of
    the rows that the tail saw and the rows stored, summed.
    """

    label: str
    executions: int
    read: int
    events: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The two numbers of one window; `verdicts` counts executions by label, none of them at 0."""

    covered_executions: int = 0
    eligible_executions: int = 0
    covered_events: int = 0
    eligible_events: int = 0
    pending_executions: int = 0
    rejoined_executions: int = 0
    rejoined_events: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Covered of eligible events; None: nothing was eligible."""
        return self.covered_events / self.eligible_events if self.eligible_events else None

    @property
    def ratio_with_rejoined(self) -> float | None:
        """The same with what is covered over proven joins."""
        with_rejoined = self.covered_events + self.rejoined_events
        return with_rejoined / self.eligible_events if self.eligible_events else None

    @property
    def pending_share(self) -> float | None:
        """Pending of all that is or may become eligible; None: nothing is there."""
        whole = self.eligible_executions + self.pending_executions
        return self.pending_executions / whole if whole else None

    @property
    def uncovered(self) -> dict[str, int]:
        """Eligible and not covered executions by verdict, those at 0 left out."""
        return {label: n for label in UNCOVERED if (n := self.verdicts.get(label, 0))}


def covered(tallies: Iterable[Tally]) -> Coverage:
    """The numbers of one window.

    Raises:
        InvariantError: a label is neither a verdict nor a wait for one, or comes twice.
    """
    by_label: dict[str, Tally] = {}
    for tally in tallies:
        invariant(tally.label in _KNOWN, "a verdict outside the closed list")
        invariant(tally.label not in by_label, "a verdict that was counted twice")
        by_label[tally.label] = tally
    eligible = [tally for tally in by_label.values() if tally.label not in _OUTSIDE]
    match = by_label.get(Verdict.MATCH, Tally(Verdict.MATCH, 0, 0, 0))
    joined = by_label.get(Verdict.MATCH_REJOINED, Tally(Verdict.MATCH_REJOINED, 0, 0, 0))
    return Coverage(
        covered_executions=match.executions,
        eligible_executions=sum(tally.executions for tally in eligible),
        covered_events=match.read,
        eligible_events=sum(tally.events for tally in eligible),
        pending_executions=sum(tally.executions for tally in by_label.values() if tally.label in _PENDING),
        rejoined_executions=joined.executions,
        rejoined_events=joined.read,
        verdicts={label: tally.executions for label, tally in by_label.items() if tally.executions},
    )


@dataclass(frozen=True, slots=True)
class Observation:
    """How long executions were watched.  Times are microseconds of the store's clock.

    `since`: when a comparator first stood ready in this store, None: never.  `elapsed`: the
    sum of the times between neighbouring ticks.  `last`: the end of the last good tick of this
    process, None at its start and after anything that stopped the judging.
    """

    since: int | None = None
    elapsed: int = 0
    last: int | None = None

    def goes_on(self, now: int, *, gap_max: int) -> bool:
        """Whether somebody watches: the last tick was good, and the next may still follow in time."""
        return self.last is not None and now - self.last <= gap_max

    def ticked(self, now: int, *, good: bool, gap_max: int) -> Observation:
        """The observation after the end of a tick.

        Args:
            good: The tick judged, and nothing stood against relying on it.
            gap_max: Ticks that lie further apart leave a hole which nobody watched.
        """
        if not good:
            return Observation(self.since, self.elapsed, None)
        since = now if self.since is None else self.since
        gap = 0 if self.last is None else now - self.last
        return Observation(since, self.elapsed + (gap if 0 <= gap <= gap_max else 0), now)
