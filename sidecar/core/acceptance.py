"""May this run be accepted?  A judgement with its reasons, for an operator who has to decide.

A clean count of divergences is green too when the source refuses everything, when the comparator
is broken, off or has been looking for ten minutes, and when nothing happened.  So acceptance asks
for all of it at once: no open finding, coverage above its floor, enough executions, enough
observation, controls that ran and failed as they should, and no pile of pending questions.
Coverage and pending share must hold for the last 24 hours and since the start: a long good past
does not hide a comparator that broke yesterday.  And somebody must be watching now:
while the log is away, or a start catches up, a run that was accepted says nothing of what comes.
Source: spec 3.6 (last paragraph), 11.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.core.coverage import Coverage
from sidecar.core.verdict import Verdict

PENDING_SHARE_MAX: Final = 0.5

OPEN: Final = (Verdict.DIVERGENT, Verdict.SECOND_WRITER, Verdict.LOG_LOST)
"""Verdicts whose findings stand against acceptance until they are resolved or acknowledged."""


class Reason(StrEnum):
    """Why a run is not accepted."""

    DIVERGENCE = "divergence"
    COVERAGE = "coverage"
    EXECUTIONS = "executions"
    ELAPSED = "elapsed"
    CONTROLS = "controls"
    PENDING_SHARE = "pending_share"


@dataclass(frozen=True, slots=True)
class Floors:
    """What a run must reach.  `elapsed_s`: seconds of observation."""

    coverage: float = 0.95
    executions: int = 1000
    elapsed_s: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Controls:
    """Self-controls since the start of the process: as expected, and not."""

    expected: int = 0
    unexpected: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of a run.

    `open_findings`: those of `OPEN` that are neither resolved nor acknowledged.  `day`, `start`:
    coverage of the last 24 hours and since observation began.  `watched`: the last tick is recent
    and can be relied on; a store file does not know, and its controls stand against it anyway.
    `rejoining`: what is covered over proven joins counts, for somebody has asked for them.
    """

    open_findings: int
    day: Coverage
    start: Coverage
    elapsed_s: float
    controls: Controls
    watched: bool = True
    rejoining: bool = False


@dataclass(frozen=True, slots=True)
class Blocked:
    """One reason against, and in words what was found and what is asked for."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Accepted when nothing stands against it; `blocked` in the order of `Reason`.

    `counted`: the verdicts that counted as covered.
    """

    blocked: tuple[Blocked, ...]
    counted: tuple[Verdict, ...] = (Verdict.MATCH,)

    @property
    def accepted(self) -> bool:
        return not self.blocked

    @property
    def reasons(self) -> frozenset[Reason]:
        return frozenset(blocked.reason for blocked in self.blocked)


def accept(run: Run, floors: Floors) -> Acceptance:
    """Judge a run."""
    counted = (Verdict.MATCH, Verdict.MATCH_REJOINED) if run.rejoining else (Verdict.MATCH,)
    return Acceptance(tuple(_against(run, floors)), counted)


def _against(run: Run, floors: Floors) -> Iterator[Blocked]:
    if run.open_findings:
        yield Blocked(Reason.DIVERGENCE, f"{run.open_findings} open")
    windows = (run.start, run.day)
    ratios = [each.ratio_with_rejoined if run.rejoining else each.ratio for each in windows]
    # Since the start there must be something; a day in which nothing happened is no fault.
    if ratios[0] is None:
        yield Blocked(Reason.COVERAGE, "nothing was eligible")
    elif (lowest := min(ratio for ratio in ratios if ratio is not None)) < floors.coverage:
        yield Blocked(Reason.COVERAGE, f"{lowest:.4f} of the eligible events, asked {floors.coverage:g}")
    if run.start.eligible_executions < floors.executions:
        yield Blocked(
            Reason.EXECUTIONS, f"{run.start.eligible_executions} eligible, asked {floors.executions}"
        )
    if run.elapsed_s < floors.elapsed_s:
        yield Blocked(Reason.ELAPSED, f"{run.elapsed_s:.0f} s observed, asked {floors.elapsed_s:.0f} s")
    elif not run.watched:
        yield Blocked(Reason.ELAPSED, f"{run.elapsed_s:.0f} s observed, and nothing is being observed now")
    if not run.controls.expected or run.controls.unexpected:
        yield Blocked(Reason.CONTROLS, f"{run.controls.expected} as expected, {run.controls.unexpected} not")
    waiting = max(each.pending_share or 0.0 for each in (run.start, run.day))
    if waiting > PENDING_SHARE_MAX:
        yield Blocked(Reason.PENDING_SHARE, f"{waiting:.4f} pending, at most {PENDING_SHARE_MAX:g}")
