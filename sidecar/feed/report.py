"""What the feed made of one batch: plain values for telemetry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.core.ports import Populated
from sidecar.core.settle import Settled
from sidecar.feed.step import Step


@dataclass(slots=True)
class FeedReport:
    """What one batch came to.  `lags`: seconds from ingest_time to stored, Postgres's clock."""

    lane: str
    rows: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    lags: list[float] = field(default_factory=list)

    def add(self, other: FeedReport) -> None:
        self.rows += other.rows
        self.ways += other.ways
        self.outcomes += other.outcomes
        self.lags += other.lags


def reported(step: Step, settled: Mapping[int, Settled], populated: Mapping[int, Populated]) -> FeedReport:
    """What a step came to once it is stored."""
    report = FeedReport(lane_label(step.batch.lane))
    for i, result in settled.items():
        done = populated.get(i)
        if done is not None:
            report.outcomes[done.outcome.label] += 1
            report.ways["populate"] += 1
        if result.run:
            report.outcomes["extended"] += 1
            report.ways["extend"] += 1
        if result.news.labelled and result.partition.label is not None and done is None:
            report.outcomes[result.partition.label] += 1
        report.rows += result.seen
        report.lags += [
            (step.batch.server_now - row.ingested_at) / 1e6
            for row in result.fresh
            if row.ingested_at is not None and row.event.event_id not in result.pool
        ]
    return report


def lane_label(lane: str) -> str:
    return lane.partition(":")[0]
