"""Decide in which order an execution's events stand.

Ids are minted before commit, so neither id order nor arrival order is the chain.  The links
are: each event names its predecessor.  This module walks them and refuses every set that is
not one path.  It never compares two ids to order events; it sorts ids only to report them
the same way every time.

The checks run in the order of spec 2.7, because a set can show several faults and only the
first is reported.  O(n): one index pass, one walk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from sidecar.core.event import Event


@dataclass(frozen=True, slots=True)
class Ordered:
    """One path from the one root; `events` stand in link order (empty for an empty set)."""

    events: tuple[Event, ...]
    label: ClassVar[str] = "ordered"


@dataclass(frozen=True, slots=True)
class DuplicateEvent:
    """One event_id stands twice (with equal or other content); the smallest such id."""

    event_id: int
    label: ClassVar[str] = "duplicate_event"


@dataclass(frozen=True, slots=True)
class DanglingPrev:
    """An event names a predecessor outside the set; the event with the smallest id."""

    event_id: int
    prev_event_id: int
    label: ClassVar[str] = "dangling_prev"


@dataclass(frozen=True, slots=True)
class NoRoot:
    """No event has a NULL predecessor: the genesis is outside the set, or it is one cycle."""

    total: int
    label: ClassVar[str] = "no_root"


@dataclass(frozen=True, slots=True)
class MultipleRoots:
    """More than one event has a NULL predecessor; ids ascending."""

    event_ids: tuple[int, ...]
    label: ClassVar[str] = "multiple_roots"


@dataclass(frozen=True, slots=True)
class Forked:
    """Two events name the same predecessor; neither branch is chosen.  The smallest such `at`."""

    at: int
    successors: tuple[int, ...]
    label: ClassVar[str] = "fork"


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The walk from the root met `reached` of `total` events: islands, cycles, self-links."""

    reached: int
    total: int
    label: ClassVar[str] = "unreachable"


LinkRefusal = DuplicateEvent | DanglingPrev | NoRoot | MultipleRoots | Forked | Unreachable
LinkOrder = Ordered | LinkRefusal

ABSORBING_LABELS = frozenset({MultipleRoots.label, Forked.label, Unreachable.label, DuplicateEvent.label})
"""Refusals that more rows cannot heal.  Source: spec 2.12 step 3."""


def order_by_links(events: Iterable[Event]) -> LinkOrder:
    """Put the events of one execution in link order, or say why they have none.

    Args:
        events: The rows of one successful, complete read, in any order.

    Returns:
        `Ordered` with every event exactly once, or the first refusal of spec 2.7.

    Source: spec 2.7.
    """
    rows = tuple(events)
    by_id = {event.event_id: event for event in rows}
    if len(by_id) != len(rows):
        return DuplicateEvent(_smallest_repeated(event.event_id for event in rows))

    dangling: Event | None = None
    roots: list[int] = []
    successor: dict[int, Event] = {}
    forked: dict[int, list[int]] = {}
    for event in rows:
        prev = event.prev_event_id
        if prev is None:
            roots.append(event.event_id)
        elif prev not in by_id:
            if dangling is None or event.event_id < dangling.event_id:
                dangling = event
        elif prev in successor:
            forked.setdefault(prev, [successor[prev].event_id]).append(event.event_id)
        else:
            successor[prev] = event

    if not rows:
        return Ordered(())
    if dangling is not None and dangling.prev_event_id is not None:
        return DanglingPrev(dangling.event_id, dangling.prev_event_id)
    if not roots:
        return NoRoot(len(rows))
    if len(roots) > 1:
        return MultipleRoots(tuple(sorted(roots)))
    if forked:
        at = min(forked)
        return Forked(at, tuple(sorted(forked[at])))
    return _walk(by_id[roots[0]], successor, len(rows))


def _walk(root: Event, successor: dict[int, Event], total: int) -> Ordered | Unreachable:
    # Each event has at most one successor and the root has no predecessor, so the walk
    # cannot meet an event twice.
    path = [root]
    while (event := successor.get(path[-1].event_id)) is not None:
        path.append(event)
    if len(path) != total:
        return Unreachable(len(path), total)
    return Ordered(tuple(path))


def _smallest_repeated(ids: Iterable[int]) -> int:
    return min(event_id for event_id, times in Counter(ids).items() if times > 1)
