"""Whether a replication slot still holds everything since the lane's stored position.

A slot hands out every commit behind its confirmed position.  So nothing is missing as long as
that position has not passed the one that is stored with the rows, in the same history of the
server and under the same publication; whether the slot itself is still the same one does not
matter.  Anything else is a gap, and has a name: it is repaired by a round of the sweep.
Source: spec 1.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.core.horizon import Cursor

WAL_LANE: Final = "wal"


class Gap(StrEnum):
    """Why rows may have been passed by; the values of the metric label `reason`."""

    FIRST = "first"
    """The lane has no cursor: a first start, or the poll was the source before."""
    SCOPE = "scope"
    """The cursor is another table's, shard's, slot's or publication's."""
    TIMELINE = "timeline"
    """Another system, or a promotion: positions before and after have no order."""
    PUBLICATION = "publication"
    """It was changed or made anew: for a while it may have left rows out."""
    SLOT_MISSING = "slot_missing"
    SLOT_LOST = "slot_lost"
    """The server has removed WAL that the slot needs."""
    SLOT_AHEAD = "slot_ahead"
    """It was made anew, or somebody else has read from it."""
    OWED = "owed"
    """An earlier gap was not yet repaired when the process ended."""
    TRUNCATED = "truncated"
    """The table was truncated: what is stored has to be counted again."""
    UNREADABLE = "unreadable"
    """A row was too large to be carried, and its key does not stand in front."""


NEEDS_A_NEW_SLOT: Final = frozenset(
    {Gap.FIRST, Gap.SCOPE, Gap.TIMELINE, Gap.PUBLICATION, Gap.SLOT_MISSING, Gap.SLOT_LOST}
)
"""After these a slot that was made before may still lack rows: its stream begins too early or too late."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A logical slot.  `confirmed`: commits behind this position are handed out.

    `restart`: WAL from here on is kept for it.  `lost`: it can hand out nothing any more.
    `size_left`: bytes of WAL until the server gives it up, None without a bound.
    """

    confirmed: int
    restart: int
    lost: bool = False
    size_left: int | None = None


def gap_of(
    cursor: Cursor | None,
    position: int | None,
    slot: Slot | None,
    *,
    epoch: str,
    scope: str,
    publication: str,
) -> Gap | None:
    """Name the gap, None if there is none.

    Args:
        cursor: What the last batch left behind; its `tree` is the publication's fingerprint.
        position: Up to where everything is stored; None while a gap is being repaired.
    """
    if cursor is None:
        return Gap.FIRST
    if cursor.scope != scope:
        return Gap.SCOPE
    if history(cursor.epoch) != history(epoch):
        return Gap.TIMELINE
    if cursor.tree != publication:
        return Gap.PUBLICATION
    if slot is None:
        return Gap.SLOT_MISSING
    if slot.lost:
        return Gap.SLOT_LOST
    if position is None:
        return Gap.OWED
    return Gap.SLOT_AHEAD if slot.confirmed > position else None


def history(epoch: str) -> tuple[str, ...]:
    """The parts of an epoch in which positions are comparable: system and timeline.

    What a slot hands out has been flushed, so a crash or a restart takes none of it back.
    """
    return tuple(epoch.split("/")[:2])
