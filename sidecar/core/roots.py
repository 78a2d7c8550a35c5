"""One root an execution: how the executions of the log stand to that rule.

The aggregate of rows without a predecessor says nothing: one old era holds nearly all of them.  So
each execution is counted once, by its own number of roots.  Without executions nothing is healthy.
Source: spec 1.6 (last paragraph), 3.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

OUTCOMES: Final = ("one_root", "multi_root", "no_root")
WORST_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Roots:
    """One sample.  `worst`: executions that break the rule with their roots, most roots first."""

    one_root: int = 0
    multi_root: int = 0
    no_root: int = 0
    worst: tuple[tuple[int, int], ...] = ()

    @property
    def counts(self) -> Mapping[str, int]:
        """Executions by outcome."""
        return {"one_root": self.one_root, "multi_root": self.multi_root, "no_root": self.no_root}

    @property
    def executions(self) -> int:
        """The denominator."""
        return self.one_root + self.multi_root + self.no_root

    @property
    def healthy(self) -> float:
        """The share with exactly one root; 0 without executions, never 1."""
        return self.one_root / self.executions if self.executions else 0.0
