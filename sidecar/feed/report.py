"""What the feed made of one batch: plain values for telemetry."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


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
