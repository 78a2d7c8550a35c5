"""Everything one moment of the demo shows, as plain values; `view` and `report` draw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.demo.faults import FAULTS, Fault
from sidecar.demo.ledger import UNJUDGED, Agreement, Entry
from sidecar.demo.watch import Look

GATES: Final = ("populate", "compare", "serve", "cert", "advance")


@dataclass(frozen=True, slots=True)
class Windows:
    """The pauses the sidecar runs with, in seconds."""

    settle_s: float = 2.0
    dangling_s: float = 6.0
    sweep_round_s: float = 5.0
    tick_s: float = 1.0
    live_window_s: float = 60.0

    def __str__(self) -> str:
        return (
            f"settle {self.settle_s:g} s · dangling {self.dangling_s:g} s ·"
            f" sweep round {self.sweep_round_s:g} s · tick {self.tick_s:g} s ·"
            f" live window {self.live_window_s:.0f} s"
        )


@dataclass(frozen=True, slots=True)
class Playing:
    """One recording and how far it is."""

    name: str
    executions: int
    rows: int
    written: int = 0
    open_now: int = 0


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment.  `written` counts every committed row, planted ones included."""

    speed: float
    windows: Windows
    metrics: str
    phase: str = "starting"
    elapsed_s: float = 0.0
    playing: Sequence[Playing] = ()
    written: int = 0
    entries: Mapping[int, Entry] = field(default_factory=dict)
    look: Look = field(default_factory=Look)
    pages: str = ""

    @property
    def verdicts(self) -> Counter[str]:
        """Latest verdicts, `unjudged` for executions that have none yet."""
        return Counter(verdict or UNJUDGED for verdict in self.look.verdicts.values())

    def planted(self) -> list[Planted]:
        """Every fault, in the order of planting."""
        return [Planted(fault, *self._of(fault)) for fault in FAULTS]

    def _of(self, fault: Fault) -> tuple[int, tuple[str, ...]]:
        mine = [entry for entry in self.entries.values() if entry.fault == fault.name]
        seen = tuple(self.look.verdicts.get(entry.execution_id) or UNJUDGED for entry in mine)
        return len(mine), seen


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, for how many executions it is announced, and their verdicts now."""

    fault: Fault
    announced: int
    seen: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return self.announced > 0 and set(self.seen) == {self.fault.verdict}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the demo ended.

    `published`: how many verdicts other than `match` were said on the way.  `settled`: the
    work list was empty and nothing moved any more.
    """

    scene: Scene
    agreement: Agreement
    published: int
    settled: bool
    lag_max_s: float
    horizon_age_max_s: float
    late_max_s: float
    open_max: int
    seconds: float

    @property
    def agrees(self) -> bool:
        return self.agreement.holds and self.scene.look.numbers_hold and self.settled
