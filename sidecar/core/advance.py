"""Where a chain would be driven on from: a second opinion on what a reader of it would do next.

One of five decisions, each of which says by itself what to do; none of them asks for a blind
retry.  The head is the event that no other names as its predecessor; of several, as a partial
replica may hold them, the one that stands last.  The order of the chain is used for nothing else:
the links are walked anew.

It serves nobody and moves nothing.  Source: spec 3.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.core.event import Event


@dataclass(frozen=True, slots=True)
class Empty:
    """No event: nothing has begun."""

    label: ClassVar[str] = "empty"


@dataclass(frozen=True, slots=True)
class Forked:
    """Two events name `at` as their predecessor, or the links run in a circle through it."""

    at: int
    successors: tuple[int, ...]
    label: ClassVar[str] = "forked"


@dataclass(frozen=True, slots=True)
class BlockedAtGap:
    """`missing` is named by `detected_at` and is not there."""

    missing: int
    detected_at: int
    label: ClassVar[str] = "blocked_at_gap"


@dataclass(frozen=True, slots=True)
class Terminal:
    """The chain is whole and its head ends the execution."""

    at: int
    label: ClassVar[str] = "terminal"


@dataclass(frozen=True, slots=True)
class Advance:
    """The chain is whole; the next step follows the event `at`."""

    at: int
    label: ClassVar[str] = "advance"


Decision = Empty | Forked | BlockedAtGap | Terminal | Advance

DECISIONS: Final = (Empty.label, Forked.label, BlockedAtGap.label, Terminal.label, Advance.label)
"""Every label, in the order in which they are tested."""


def decide(chain: Sequence[Event]) -> Decision:
    """What would be done with this chain.  Total, O(n).

    Args:
        chain: The events of one execution in ascending exec_seq, each id once.

    Source: spec 3.9.
    """
    if not chain:
        return Empty()
    by_id = {event.event_id: event for event in chain}
    successor: dict[int, int] = {}
    for event in chain:
        if event.prev_event_id is None:
            continue
        first = successor.setdefault(event.prev_event_id, event.event_id)
        if first != event.event_id:
            return Forked(event.prev_event_id, tuple(sorted((first, event.event_id))))
    head = next((event for event in reversed(chain) if event.event_id not in successor), None)
    if head is None:
        return _circle(chain[-1], successor)
    return _walked(head, by_id) or (Terminal(head.event_id) if head.is_terminal else Advance(head.event_id))


def _walked(head: Event, by_id: dict[int, Event]) -> BlockedAtGap | None:
    """The first gap between the head and a root.

    A revisit needs an event with two successors, which is a fork, or a head that has one.
    """
    event = head
    while event.prev_event_id is not None:
        before = by_id.get(event.prev_event_id)
        if before is None:
            return BlockedAtGap(event.prev_event_id, event.event_id)
        event = before
    return None


def _circle(event: Event, successor: dict[int, int]) -> Forked:
    """Every event has a successor: whoever walks passes the last one twice."""
    return Forked(event.event_id, (successor[event.event_id],))
