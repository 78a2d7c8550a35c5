"""When a tail lane may keep its horizon, and what orders two rows.

A lane's cursor is the xmin horizon H of its last stored poll.  Every row that becomes visible
later has an xid >= H, as long as the server's epoch, the lane's scope and the partition tree
are the ones H was read under.  Any difference: no H, the lane reads without predicate.
Source: spec 1.8, 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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


LEAVING: Final = "+"
"""Ends the fingerprint of a tree from which a partition is being detached."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a poll's statement says of its own snapshot; xids are 64-bit."""

    horizon: int
    xmax: int
    epoch: str
    tree: str
    server_now: int

    @property
    def leaving(self) -> bool:
        """A partition is being detached: its rows are no longer read, and they are not gone."""
        return self.tree.endswith(LEAVING)


@dataclass(frozen=True, slots=True)
class TailRow:
    """A row as a lane saw it.

    `xmin`: the raw 32-bit value.  `xid`: its 64-bit value, None when it proves nothing
    (read without predicate, xmin < 3, emitted again with another xmin).  `anchor` and
    `epoch` are those of the poll that first saw it; `seen_at` is the store's clock, `ingested_at`
    Postgres's `ingest_time` in microseconds since 1970 UTC.  `commit_lsn`: the position of the
    commit that inserted it, None where that is not known.  `first_lsn`: of the first record of the
    transaction that inserted it, or of an earlier one of its own; None where that is not known, or
    rows that were committed before it may still be handed over.
    """

    event: Event
    xmin: int
    xid: int | None
    epoch: str
    anchor: int | None
    seen_at: int
    ingested_at: int | None = None
    commit_lsn: int | None = None
    first_lsn: int | None = None


XID_SPAN: Final = 2**32
FIRST_NORMAL_XID: Final = 3
DISTANCE_MAX: Final = 2**31 - 10**6
"""How many xids a kept H may lie behind the poll's xmax: age() turns negative at 2^31."""


def keeps_horizon(cursor: Cursor | None, facts: Facts, scope: str) -> bool:
    """Whether rows filtered by the cursor's H are all that this poll had to see.

    Args:
        cursor: The lane's stored cursor, None for none.
        facts: The poll's own.
        scope: The lane's scope now.

    False: discard what a filtered poll returned and repeat it without predicate.
    Source: spec 1.8 ("What H covers", the epoch, "ahead of the poll's own xmax").
    """
    return (
        cursor is not None
        and cursor.horizon is not None
        and cursor.epoch == facts.epoch
        and cursor.scope == scope
        and 0 <= facts.xmax - cursor.horizon <= DISTANCE_MAX
    )


def left_behind(cursor: Cursor | None, facts: Facts, *, lane: str, scope: str) -> Cursor:
    """The cursor a complete poll leaves behind.

    It has an H only if the tree in the poll's snapshot is the one an earlier poll stored: a
    poll plans before it takes its snapshot, so the first one that shows a new tree may still
    have read the old list of partitions.  No stored tree counts as another one.

    Args:
        cursor: The lane's stored cursor before the poll.
        facts: The poll's own; of a read of several statements, those of its first.

    Source: spec 1.8 ("The partition tree").
    """
    same_tree = (
        cursor is not None
        and cursor.epoch == facts.epoch
        and cursor.scope == scope
        and cursor.tree == facts.tree
    )
    horizon = facts.horizon if same_tree else None
    return Cursor(lane, horizon, facts.epoch, scope, facts.tree, facts.server_now)


def horizon_parameter(horizon: int) -> str:
    """H as the statement wants it: modulo 2^32, as text."""
    return str(horizon % XID_SPAN)


def xid_of(xmin: int, xmax: int) -> int | None:
    """The 64-bit xid of a visible row, None for xmin < 3.

    Args:
        xmin: The row's raw 32-bit value.
        xmax: The 64-bit xmax of the poll's snapshot.

    Right only for a row found with a predicate: a frozen row can be older than 2^32 xids.
    Source: spec 2.13.
    """
    if xmin < FIRST_NORMAL_XID:
        return None
    return xmax - (xmax - xmin) % XID_SPAN


def widened_anchor(next_xid: int, xmax: int) -> int:
    """The 64-bit anchor: the next unassigned xid, read after a snapshot with this xmax.

    Source: spec 2.13.
    """
    return xmax + (next_xid - xmax) % XID_SPAN
