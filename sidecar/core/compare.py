"""Compare the chain as served with the log in link order: which axes differ, and where first.

Agreement means: the same ids in the same order, each with the same edge, parent and body,
the same state after the last event, and every body readable.  Each kind is reported once
however many rows show it, in the order of spec 3.2.  An execution that is missing whole is
one fact: `missing_execution` alone.

The order axis looks at the ids that both sides hold, each at its first place; a lost or a
doubled row is a fact of the other axes.  The axis `state` compares the digests of the two
folds.  Equal events fold to equal states, so the folds are taken only where the sides differ:
the axis holds at every comparison and costs nothing at nearly all of them.  Events that cannot
be read take no part in a fold; that one cannot be read is the axis `unidentified`.

This module knows no windows and gives no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sidecar.core.deepjson import names_event
from sidecar.core.digest import digest
from sidecar.core.event import Event
from sidecar.core.verdict import Kind
from sidecar.core.workflow import fold


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one comparison found.

    `position`: from 0, the first place at which the sides differ, or else the first whose
    body cannot be read; None when everything holds.  The first to differ by its type alone
    counts only for `state`, which has no other place.  `served` and `ordered` count rows.
    """

    kinds: tuple[Kind, ...]
    position: int | None
    served: int
    ordered: int

    @property
    def holds(self) -> bool:
        return not self.kinds


class _Identity(msgspec.Struct):
    """All that is read of a body; everything else in it is only checked to be JSON."""

    event_id: int | str


_IDENTITY = msgspec.json.Decoder(_Identity)


def compare(served: Sequence[Event], ordered: Sequence[Event]) -> Comparison:
    """Hold the served chain against the log.  Total: every input has an answer.

    Args:
        served: What the store answered, in its order.
        ordered: The log in link order; no id stands in it twice.

    Source: spec 3.2.
    """
    kinds = tuple(_kinds(served, ordered))
    position = _first_difference(served, ordered)
    if position is None and Kind.STATE in kinds:
        position = _first_of_another_type(served, ordered)
    if position is None and kinds:
        position = _first_unreadable(served)
    return Comparison(kinds, position, len(served), len(ordered))


def _kinds(served: Sequence[Event], ordered: Sequence[Event]) -> Iterator[Kind]:
    if ordered and not served:
        yield Kind.MISSING_EXECUTION
        return
    ours = {event.event_id: event for event in served}
    theirs = {event.event_id: event for event in ordered}
    if len(served) != len(ordered):
        yield Kind.COUNT
    if theirs.keys() - ours.keys():
        yield Kind.MISSING_EVENT
    if ours.keys() - theirs.keys():
        yield Kind.EXTRA_EVENT
    if _shared(ours, theirs) != _shared(theirs, ours):
        yield Kind.ORDER
    yield from _differences(served, theirs)
    if _states_differ(served, ordered):
        yield Kind.STATE
    if _first_unreadable(served) is not None:
        yield Kind.UNIDENTIFIED


def _shared(ids: Iterable[int], others: Mapping[int, Event]) -> list[int]:
    return [event_id for event_id in ids if event_id in others]


def _differences(served: Iterable[Event], theirs: Mapping[int, Event]) -> Iterator[Kind]:
    pairs = [(ours, theirs[ours.event_id]) for ours in served if ours.event_id in theirs]
    if any(ours.prev_event_id != log.prev_event_id for ours, log in pairs):
        yield Kind.EDGE
    if any(ours.parent_execution_id != log.parent_execution_id for ours, log in pairs):
        yield Kind.PARENT
    if any(ours.body != log.body for ours, log in pairs):
        yield Kind.PAYLOAD


def _states_differ(served: Sequence[Event], ordered: Sequence[Event]) -> bool:
    if tuple(served) == tuple(ordered):
        return False
    ours, log = fold(served), fold(ordered)
    # No event, no state: then other axes have said so.
    return ours is not None and log is not None and digest(ours) != digest(log)


def _first_of_another_type(served: Sequence[Event], ordered: Sequence[Event]) -> int | None:
    pairs = enumerate(zip(served, ordered, strict=False))
    return next((at for at, (ours, log) in pairs if ours.event_type != log.event_type), None)


def _first_difference(served: Sequence[Event], ordered: Sequence[Event]) -> int | None:
    for position, (ours, log) in enumerate(zip(served, ordered, strict=False)):
        if _content(ours) != _content(log):
            return position
    return min(len(served), len(ordered)) if len(served) != len(ordered) else None


def _content(event: Event) -> tuple[int, int | None, int | None, str]:
    return event.event_id, event.prev_event_id, event.parent_execution_id, event.body


def _first_unreadable(served: Iterable[Event]) -> int | None:
    return next((position for position, event in enumerate(served) if not is_identified(event.body)), None)


def is_identified(body: str) -> bool:
    """Whether `body` is a JSON object with an event_id, as a number or as a string."""
    try:
        _IDENTITY.decode(body)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    except RecursionError:
        return names_event(body)
    return True
