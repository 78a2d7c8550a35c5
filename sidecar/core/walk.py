"""Walk a stored chain from its head to its root, by its links.

The walk never looks at positions, so it finds what a contiguous numbering hides: a link to a
row that is not there.  Over a join it goes on at the tip that the root is proven to come after.  It
cannot see a missing beginning: a chain that starts at a row without predecessor is whole for it.
No walk takes more steps than there are rows.  Source: spec 2.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidecar.core.authority import NO_JOINS, Partition, StoredEvent


@dataclass(frozen=True, slots=True)
class Walked:
    """From the head to a root; newest first, empty without a head."""

    rows: tuple[StoredEvent, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """The chain, or the head itself, names `missing`, which is not stored."""

    missing: int


@dataclass(frozen=True, slots=True)
class Revisited:
    """The links lead back to `event_id`: there is no root on this way."""

    event_id: int


Walk = Walked | Gap | Revisited


def walk(
    partition: Partition | None, stored: Sequence[StoredEvent], joined: Mapping[int, int] = NO_JOINS
) -> Walk:
    """Follow the links from the head.

    Args:
        partition: The record, None when the store has none.
        stored: All rows of the partition, in any order.
        joined: For each root behind a tip, that tip.
    """
    rows = {row.event.event_id: row for row in stored}
    passed: dict[int, StoredEvent] = {}
    at = partition.head_event_id if partition is not None else None
    while at is not None:
        if at in passed:
            return Revisited(at)
        if at not in rows:
            return Gap(at)
        passed[at] = rows[at]
        prev = rows[at].event.prev_event_id
        at = joined.get(at) if prev is None else prev
    return Walked(tuple(passed.values()))


def is_complete(
    partition: Partition | None, stored: Sequence[StoredEvent], joined: Mapping[int, int] = NO_JOINS
) -> bool:
    """Whether the walk meets as many rows as the highest sequence says.

    The span, not the number of rows: two rows of three that link to each other are no whole
    chain.  An unknown execution is complete; a circle is not.  Source: spec 2.3.
    """
    head = partition.head_seq if partition is not None else 0
    span = max((row.exec_seq for row in stored), default=0)
    found = walk(partition, stored, joined)
    return isinstance(found, Walked) and len(found.rows) == max(span, head)
