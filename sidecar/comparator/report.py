"""What the comparator found: plain values for telemetry and people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.core.acceptance import Controls as ControlTotals
from sidecar.core.authority import StoredEvent
from sidecar.core.verdict import Judgement, Kind


@dataclass(frozen=True, slots=True)
class Judged:
    """One recorded verdict.  `new_kinds`: those not counted since the last match."""

    judgement: Judgement
    new_kinds: tuple[Kind, ...]


@dataclass(slots=True)
class Held:
    """What one hold came to.

    `questions`: executions with stored rows that the log read lacked; they have no verdict
    yet (spec 3.4).  `found`: rows that no lane had delivered.  `states`: of the
    executions that held every axis, as D3 keeps them.  `decisions`: of spec 3.9, where asked for.
    `evidence_dropped`: pieces that had to go.
    """

    judged: list[Judged] = field(default_factory=list)
    questions: dict[int, tuple[StoredEvent, ...]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    authority: Counter[str] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)
    found: int = 0
    compared: int = 0
    excluded: int = 0
    evidence_dropped: int = 0


@dataclass(frozen=True, slots=True)
class ControlReport:
    """What the controls came to: by name, None where the result was the expected one, else why not."""

    results: Mapping[str, str | None]

    @property
    def unexpected(self) -> dict[str, str]:
        """Why, by the control's name; empty: the comparator can be believed."""
        return {name: why for name, why in self.results.items() if why is not None}

    def added_to(self, totals: ControlTotals) -> ControlTotals:
        """The totals after these."""
        failed = len(self.unexpected)
        return ControlTotals(totals.expected + len(self.results) - failed, totals.unexpected + failed)


@dataclass(slots=True)
class TickReport:
    """What one tick came to.

    `reads`: seconds of each log read.  `controls`: None when there are none; with an unexpected
    one nothing was judged.
    """

    judged: list[Judged] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    authority: Counter[str] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)
    found: int = 0
    compared: int = 0
    excluded: int = 0
    evidence_dropped: int = 0
    reads: list[float] = field(default_factory=list)
    controls: ControlReport | None = None

    def join(self, part: TickReport) -> None:
        """Take over what a part of the same tick came to."""
        self.add(part)
        self.reads += part.reads

    def add(self, held: Held | TickReport) -> None:
        self.judged += held.judged
        self.outcomes += held.outcomes
        self.authority += held.authority
        self.decisions += held.decisions
        self.found += held.found
        self.compared += held.compared
        self.excluded += held.excluded
        self.evidence_dropped += held.evidence_dropped
