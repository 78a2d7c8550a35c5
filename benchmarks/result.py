"""One row of the table: a figure, what it is held against, and the ratio."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Result:
    """A measured figure.

    `limit`: the same work without logic, in the same run; None where there is none.  `ratio`:
    1 is as fast as the limit.  `goal`: the ratio to reach.  `turns`: every single measurement.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    ratio: float | None = None
    goal: float | None = None
    note: str = ""
    turns: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return self.goal is None or (self.ratio is not None and self.ratio >= self.goal)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def versus(ours: Sequence[float], limits: Sequence[float]) -> float:
    """The ratio of medians: a machine that slows down during the run slows both sides."""
    return median(ours) / median(limits)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
