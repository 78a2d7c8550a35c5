"""What the log side is told: where the log is, how often and how far back to look."""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.errors import invariant


@dataclass(frozen=True, slots=True)
class Shard:
    """Which executions are ours: hashint8extended(execution_id, 0) modulo `count`."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        invariant(0 <= self.index < self.count, "a shard's index lies below the count")

    def filter_sql(self, column: str) -> str:
        """A condition on an execution_id column, empty for a single shard."""
        if self.count == 1:
            return ""
        # % keeps the sign of a negative hash.
        hashed = f"hashint8extended({column}, 0) % {self.count}"
        return f" and ({hashed} + {self.count}) % {self.count} = {self.index}"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Settings of the log side; the unit is last in each name.

    `read_limit`: rows; a log read that returns so many is refused as truncated.
    """

    dsn: str = field(repr=False)
    schema: str = "noetl"
    poll_ms: int = 150
    live_window_s: float = 60.0
    late_window_s: float = 3600.0
    late_poll_s: float = 15.0
    sweep_round_s: float = 600.0
    query_timeout_s: float = 10.0
    read_limit: int = 10_000
    shard: Shard = Shard()
