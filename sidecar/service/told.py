"""Outcomes become metrics, health and lines of the log: what is told, and to whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from sidecar.comparator.audit import AuditReport
from sidecar.comparator.report import ControlReport, Judged, TickReport
from sidecar.core.verdict import NOT_ELIGIBLE, RESOLVING, RETRY
from sidecar.feed import FeedReport
from sidecar.telemetry.health import Health, NotReady
from sidecar.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Instruments:
    """Where outcomes go: metrics, health, log."""

    metrics: Metrics
    health: Health
    log: FilteringBoundLogger


class Progress:
    """Something that moves on; whoever waits for a state looks again at every move."""

    def __init__(self) -> None:
        self._moved = asyncio.Event()

    def move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Return once `holds` answers True; it is asked now and after every move."""
        while True:
            moved = self._moved
            if await holds():
                return
            await moved.wait()


class Teller:
    """Tells what feed, comparator and audit did.

    Args:
        judged: Called with every recorded verdict.
    """

    def __init__(self, instruments: Instruments, judged: Callable[[Judged], None]) -> None:
        self._metrics = instruments.metrics
        self._health = instruments.health
        self._log = instruments.log
        self._tell = judged
        self._controls_failed: Mapping[str, str] = {}

    @property
    def controls_failed(self) -> bool:
        """Whether a self-control of the last tick did not do as expected."""
        return bool(self._controls_failed)

    def fed(self, lane: str, report: FeedReport) -> None:
        metrics = self._metrics
        metrics.tail_rows(lane, report.rows)
        for way, count in report.ways.items():
            metrics.fed(way, count)
        for outcome, count in report.outcomes.items():
            metrics.populate(outcome, count)
        for lag in report.lags:
            metrics.lag(lag)

    def controlled(self, report: ControlReport) -> None:
        self._metrics.controls(report.results)
        self._health.mark(NotReady.CONTROL_FAILED, bool(report.unexpected))
        for name, why in report.unexpected.items():
            if self._controls_failed.get(name) != why:
                self._log.error("control_failed", control=name, detail=why)
        if self._controls_failed and not report.unexpected:
            self._log.info("controls_hold_again")
        self._controls_failed = report.unexpected

    def judged(self, report: TickReport) -> None:
        metrics = self._metrics
        if report.controls is not None:
            self.controlled(report.controls)
        metrics.tail_rows("comparator", report.found)
        metrics.events_compared(report.compared)
        metrics.excluded(report.excluded)
        metrics.evidence_dropped(report.evidence_dropped)
        for outcome, count in report.outcomes.items():
            metrics.populate(outcome, count)
        for state, count in report.authority.items():
            metrics.authority(state, count)
        for decision, count in report.decisions.items():
            metrics.advance(decision, count)
        for seconds in report.reads:
            metrics.log_read(seconds)
        for judged in report.judged:
            self._tell(judged)
            judgement = judged.judgement
            metrics.verdict(judgement.verdict)
            for kind in judged.new_kinds:
                metrics.divergence(kind)
            if judgement.verdict not in RESOLVING:
                quiet = judgement.verdict in RETRY | NOT_ELIGIBLE
                say = self._log.info if quiet else self._log.warning
                say(
                    "verdict",
                    execution_id=str(judgement.execution_id),
                    verdict=judgement.verdict.value,
                    kinds=[kind.value for kind in judgement.kinds],
                    position=judgement.position,
                    log_rows=judgement.log_rows,
                    stored_rows=judgement.stored_rows,
                    detail=judgement.detail,
                )

    def audited(self, report: AuditReport) -> None:
        self._metrics.audited(
            equal=report.equal, different=report.different, read=report.read, progress=report.progress
        )
        if report.finished_at is not None:
            self._metrics.audit_finished(at=report.finished_at / 1e6)
        self.judged(TickReport(judged=report.judged, compared=report.compared))
        if report.different:
            self._log.info("audit_differs", executions=report.different, read=report.read)
