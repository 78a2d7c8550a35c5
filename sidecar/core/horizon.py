"""When a tail lane may keep its horizon, and what orders two rows.

A lane's cursor is the xmin horizon H of its last stored poll.  Every row that becomes visible
later has an xid >= H, as long as the server's epoch, the lane's scope and the partition tree
are the ones H was read under.  Any difference: no H, the lane reads without predicate.
Source: spec 1.8, 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.core.event import Event


@dataclass(frozen=True, slots=True)
class Cursor:
    """What the store keeps of a lane.  `horizon` None: read without predicate next time.

    `polled_at`: microseconds since 1970 UTC by Postgres's clock, of the last stored poll.
    """

    lane: str
    horizon: int | None
    epoch: str
    scope: str
    tree: str
    polled_at: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a poll's statement says of its own snapshot; xids are 64-bit."""

    horizon: int
    xmax: int
    epoch: str
    tree: str
    server_now: int


@dataclass(frozen=True, slots=True)
class TailRow:
    """A row as a lane saw it.

    `xmin`: the raw 32-bit value.  `xid`: its 64-bit value, None when it proves nothing
    (read without predicate, xmin < 3, emitted again with another xmin).  `anchor` and
    `epoch` are those of the poll that first saw it; `seen_at` is the store's clock, `ingested_at`
    Postgres's `ingest_time` in microseconds since 1970 UTC.
    """

    event: Event
    xmin: int
    xid: int | None
    epoch: str
    anchor: int | None
    seen_at: int
    ingested_at: int | None = None
