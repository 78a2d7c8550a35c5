"""What the log side is told: where the log is, how often and how far back to look."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sidecar.core.shards import Shard

__all__ = ["Shard", "SourceOptions", "Tail"]

Tail = Literal["poll", "wal"]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Settings of the log side; the unit is last in each name.

    `read_limit`: rows; a log read that returns so many is refused as truncated.  `tail`: how the
    table is followed; `wal_slot` and `wal_publication` name what the WAL source reads from.
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
    shard: Shard = field(default_factory=Shard)
    tail: Tail = "poll"
    wal_slot: str = "noetl_chain"
    wal_publication: str = "noetl_chain"
