"""What a replicated event meets in the partition it comes to.

The follower's path does not ask for the head, so rows may come in any order and more than
once.  A key and a place are each given once: the same event again changes nothing, anything
else is a fork, and what stood there first stays.  Source: spec 2.3.
"""

from __future__ import annotations

from enum import Enum

from sidecar.core.authority import StoredEvent
from sidecar.core.event import Event


class Arrival(Enum):
    """What comes of an event that did not meet another one."""

    NEW = "new"
    KNOWN = "known"


def arrival(
    event: Event, exec_seq: int, under_key: StoredEvent | None, in_place: StoredEvent | None
) -> Arrival | StoredEvent:
    """Whether `event` is new, known, or stands against the stored row that is returned.

    Args:
        under_key: The stored row with this execution and event id.
        in_place: The stored row at this execution's `exec_seq`.
    """
    if under_key is None:
        return Arrival.NEW if in_place is None else in_place
    if under_key.event == event and under_key.exec_seq == exec_seq:
        return Arrival.KNOWN
    return under_key
