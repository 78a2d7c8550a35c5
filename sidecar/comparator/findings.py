"""The sum of a one-shot verification: counts that carry their denominator, and findings.

Every label and every kind is present, zeros included; every execution that is no match has a
finding.  Ids are decimal strings.  Source: design 4 (`verify --json`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sidecar.comparator.report import ControlReport
from sidecar.core.verdict import NOT_ELIGIBLE, Judgement, Kind, Verdict

FOUND: Final = frozenset({Verdict.DIVERGENT, Verdict.SECOND_WRITER, Verdict.LOG_LOST})
GOOD: Final = frozenset({Verdict.MATCH, Verdict.MATCH_REJOINED, Verdict.EMPTY})
"""Verdicts that leave nothing open.  All others are findings or an incomplete answer."""


@dataclass(slots=True)
class Verification:
    """What a verification saw.  `against`: which store was compared with the log."""

    against: Literal["temporary", "store"]
    executions: int = 0
    events: int = 0
    eligible: int = 0
    covered: int = 0
    covered_events: int = 0
    behind_events: int = 0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    divergences: Counter[Kind] = field(default_factory=Counter)
    findings: list[Judgement] = field(default_factory=list)
    controls: ControlReport = field(default_factory=lambda: ControlReport({}))

    def add(self, judgements: Iterable[Judgement]) -> None:
        for judgement in judgements:
            verdict = judgement.verdict
            self.executions += 1
            self.events += judgement.log_rows
            self.verdicts[verdict] += 1
            self.eligible += verdict not in NOT_ELIGIBLE
            self.divergences.update(judgement.kinds)
            if verdict is Verdict.MATCH:
                self.covered += 1
                self.covered_events += judgement.log_rows
            else:
                self.findings.append(judgement)
            if verdict is Verdict.BEHIND:
                self.behind_events += judgement.log_rows - judgement.stored_rows

    @property
    def exit_code(self) -> int:
        """0 good, 1 findings or a failed control, 3 incomplete or nothing eligible; 1 outranks 3."""
        if self.controls.unexpected or any(self.verdicts[verdict] for verdict in FOUND):
            return 1
        if self.eligible == 0 or any(self.verdicts[v] for v in Verdict if v not in GOOD):
            return 3
        return 0

    def document(self, seconds: float) -> dict[str, Any]:
        """The object of `verify --json`."""
        return {
            "against": self.against,
            "executions": self.executions,
            "events": self.events,
            "eligible_executions": self.eligible,
            "covered_executions": self.covered,
            "covered_events": self.covered_events,
            "behind_events": self.behind_events,
            "verdicts": {verdict.value: self.verdicts[verdict] for verdict in Verdict},
            "divergences": {kind.value: self.divergences[kind] for kind in Kind},
            "findings": [
                *(_failed_control(name, why) for name, why in self.controls.unexpected.items()),
                *(_finding(judgement) for judgement in self.findings),
            ],
            "seconds": round(seconds, 3),
        }


def _failed_control(name: str, why: str) -> dict[str, Any]:
    """A finding about the comparator itself: of no execution, and no verdict of spec 3.3."""
    return {
        "execution_id": None,
        "verdict": "control_failed",
        "kind": None,
        "position": None,
        "log": None,
        "store": None,
        "detail": f"control {name}: {why}",
    }


def _finding(judgement: Judgement) -> dict[str, Any]:
    return {
        "execution_id": str(judgement.execution_id),
        "verdict": judgement.verdict.value,
        "kind": judgement.kinds[0].value if judgement.kinds else None,
        "position": judgement.position,
        "log": side(judgement.log_rows, judgement.log_event_id),
        "store": side(judgement.stored_rows, judgement.stored_event_id),
        "detail": judgement.detail,
    }


def side(rows: int, event_id: int | None) -> dict[str, Any]:
    """What one side holds: its rows, and the event at the finding's position."""
    return {"rows": rows, "event_id": None if event_id is None else str(event_id)}
