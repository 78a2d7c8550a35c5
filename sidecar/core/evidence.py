"""What a finding keeps, so that it can be understood when log and store have moved on.

Both sides at and around the first difference: for a position the rows beside it, for rows that
the log lacks each of them with its neighbours and whatever the log has in its place, for a
refusal the rows that it is about.  A row is its place, ids, origin and hash; its body is kept
while there is room.  One shape for every finding.  Ids are decimal strings.

Whether a finding is a new one or the same again is decided here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any, Final

from sidecar.core.authority import Partition, StoredEvent
from sidecar.core.event import Event
from sidecar.core.links import (
    DanglingPrev,
    DuplicateEvent,
    Forked,
    MultipleRoots,
    NoRoot,
    Ordered,
    Unreachable,
)
from sidecar.core.populate import LogRead
from sidecar.core.rejoin import ChainOrder, InOrder, Joined, Joins
from sidecar.core.verdict import EVIDENCED, Judgement, Verdict

BODIES_MAX_BYTES: Final = 1024 * 1024
"""Of bodies in one finding; what does not fit stands there by hash and length."""
BODY_MAX_BYTES: Final = 256 * 1024
"""Of one body; of a longer one only hash and length are kept."""
SHOWN_MAX: Final = 24
"""Rows of one side."""
NAMED_MAX: Final = 8
"""Rows that one question is shown by."""

REBUILT: Final = "rebuilt"
"""A partition that was filled anew; its finding is what stood there, and never open."""
FORKED: Final = "forked"
"""A replica's: an event that met another one in its place or under its id."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found.

    `evidence`: `{"log": side, "store": side, …}`, JSON values only, None for none.
    `partition`: the record that was judged.  `settled`: it is no open question.  `each_place`:
    another place is another finding; else it is the same one, which has moved.
    """

    execution_id: int
    verdict: str
    evidence: Mapping[str, Any] | None = None
    partition: Partition | None = None
    kind: str | None = None
    position: int | None = None
    detail: str = ""
    log_event_id: int | None = None
    store_event_id: int | None = None
    settled: bool = False
    each_place: bool = False

    @property
    def place(self) -> tuple[int | None, int | None, int | None]:
        return self.position, self.log_event_id, self.store_event_id


@dataclass(frozen=True, slots=True)
class Standing:
    """A finding of the same execution, verdict and kind that no match has resolved yet."""

    finding_id: int
    place: tuple[int | None, int | None, int | None]
    acknowledged: bool
    detail: str = ""


def same_finding(found: Finding, standing: Sequence[Standing]) -> Standing | None:
    """The finding that `found` is again; None: it is a new one.

    What was acknowledged was acknowledged for its place and its words: the same kind elsewhere is
    news, and so is a further row that the log lacks behind the first one.
    """
    if found.settled:
        return None
    known = (each for each in standing if not each.acknowledged or each.detail == found.detail)
    here = (each for each in known if each.place == found.place)
    moved = (each for each in standing if not each.acknowledged and not found.each_place)
    return next(here, None) or next(moved, None)


class Rows:
    """Rows as evidence: each by place, ids and hash, bodies while there is room."""

    def __init__(self) -> None:
        self._room = BODIES_MAX_BYTES

    def row(
        self,
        event: Event,
        position: int | None,
        *,
        origin: str | None = None,
        seen_at: int | None = None,
        bodies: bool = True,
    ) -> dict[str, Any]:
        """One row.

        Args:
            position: From 0; None where the side has no order.
        """
        body = event.body.encode()
        told: dict[str, Any] = {
            "position": position,
            "event_id": str(event.event_id),
            "prev_event_id": _text(event.prev_event_id),
            "parent_execution_id": _text(event.parent_execution_id),
            "event_type": event.event_type,
            "origin": origin,
            "seen_at": seen_at,
            "bytes": len(body),
            "sha256": sha256(body).hexdigest(),
        }
        if bodies and len(body) <= min(self._room, BODY_MAX_BYTES):
            self._room -= len(body)
            told["body"] = event.body
        return told

    def stored(self, row: StoredEvent, *, bodies: bool = True) -> dict[str, Any]:
        """A stored row; its position is its sequence, from 0."""
        return self.row(row.event, row.exec_seq - 1, origin=row.origin, seen_at=row.seen_at, bodies=bodies)


def side(
    rows: int, read_at: int | None, shown: Iterable[Mapping[str, Any]], *, order: str | None = None
) -> dict[str, Any]:
    """One side of a finding.

    Args:
        rows: How many it has, shown or not.
        read_at: When it was read, microseconds of the store's clock; the log's: when the
            read began.
        order: What its links come to.
    """
    return {"rows": rows, "read_at": read_at, "order": order, "shown": list(shown)}


def finding(
    judgement: Judgement,
    log: Sequence[Event],
    read: LogRead,
    order: ChainOrder,
    stored: Sequence[StoredEvent],
    partition: Partition,
    now: int,
    joins: Joins = (),
) -> Finding:
    """The finding of a verdict that leaves one.

    Args:
        log: The events of the complete read that was judged.
        read: When and against what it ran.
        order: Its events by their links.
        stored: The chain in ascending exec_seq, as it stood at `now`.
        partition: The record before the verdict.
        joins: What is kept of the execution.
    """
    theirs = _in_some_order(log, order)
    at = order if isinstance(order, InOrder) else None
    shown_log, shown_store = _shown(judgement, order, theirs, stored)
    rows = Rows()
    evidence: dict[str, Any] = {
        "kinds": [kind.value for kind in judgement.kinds],
        "epoch": read.epoch,
        "anchor": _text(read.anchor),
        "log": side(
            len(theirs),
            read.began_at,
            (rows.row(theirs[i], i if at else None) for i in shown_log),
            order=order.label,
        ),
        "store": side(len(stored), now, (rows.stored(stored[i]) for i in shown_store)),
        "only_log": _few(_without(theirs, (row.event for row in stored))),
        "only_store": _few(_without((row.event for row in stored), theirs)),
    }
    if joins:
        evidence["joins"] = [each.document() for each in joins[:SHOWN_MAX]]
    return Finding(
        judgement.execution_id,
        judgement.verdict.value,
        evidence,
        partition,
        judgement.kinds[0].value if judgement.kinds else None,
        judgement.position,
        _detail(judgement, log, order, stored),
        judgement.log_event_id,
        judgement.stored_event_id,
    )


def _detail(
    judgement: Judgement, log: Sequence[Event], order: ChainOrder, stored: Sequence[StoredEvent]
) -> str:
    """The verdict's words, and what tells this fault from the next one of its kind.

    An acknowledgement covers the same words.  So a second root or branch is named; and of a
    divergence, of which only the first difference has a place, the stored rows that differ are counted
    and marked.  What the log has besides is left out: an execution that goes on is the same finding.
    """
    match order:
        case MultipleRoots(ids) if judgement.verdict is Verdict.REFUSED_MULTIPLE_ROOTS:
            return f"{judgement.detail}: {_listed(ids)}"
        case Forked(at, ids) if judgement.verdict is Verdict.REFUSED_FORK:
            return f"{judgement.detail}: {_listed(ids)} behind {at}"
        case _:
            pass
    theirs = {event.event_id: event for event in log}
    pairs = [(row.event, theirs.get(row.event.event_id)) for row in stored]
    differing = [(ours, other) for ours, other in pairs if ours != other]
    if judgement.verdict is not Verdict.DIVERGENT or not differing:
        return judgement.detail
    mark = sha256("\n".join(ascii(pair) for pair in differing).encode()).hexdigest()[:12]
    return f"{judgement.detail}; {len(differing)} stored rows differ ({mark})"


def _listed(ids: Sequence[int]) -> str:
    more = len(ids) - NAMED_MAX
    return ", ".join(str(each) for each in ids[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def leaves_finding(verdict: Verdict) -> bool:
    return verdict in EVIDENCED


def _in_some_order(log: Sequence[Event], order: ChainOrder) -> Sequence[Event]:
    """In link order; where there is none, by id, so that the same set reads the same."""
    if isinstance(order, InOrder):
        return order.events
    return sorted(log, key=lambda event: event.event_id)


def _shown(
    judgement: Judgement, order: ChainOrder, log: Sequence[Event], stored: Sequence[StoredEvent]
) -> tuple[list[int], list[int]]:
    """Indexes of the rows to keep, ascending."""
    ours = [row.event for row in stored]
    log_at, store_at = set[int](), set[int]()
    if judgement.position is not None:
        log_at |= _around(judgement.position)
        store_at |= _around(judgement.position)
    absent = list(islice(_missing(ours, log), NAMED_MAX))
    for index in absent:
        store_at |= _around(index)
    named = _named(order, log) | {judgement.log_event_id, judgement.stored_event_id}
    beside = {ours[index].prev_event_id for index in absent}
    log_at |= {i for i, event in enumerate(log) if event.event_id in named}
    log_at |= set(islice((i for i, e in enumerate(log) if absent and e.prev_event_id in beside), NAMED_MAX))
    store_at |= {i for i, event in enumerate(ours) if event.event_id in named}
    if judgement.verdict is Verdict.REFUSED_STORE_GAP:
        store_at |= _around(_hole(stored))
    log_at.add(len(log) - 1)
    store_at.add(len(ours) - 1)
    return _within(log_at, len(log)), _within(store_at, len(ours))


def _around(index: int) -> set[int]:
    return {index - 1, index, index + 1}


def _within(indexes: set[int], length: int) -> list[int]:
    return [index for index in sorted(indexes) if 0 <= index < length][:SHOWN_MAX]


def _missing(events: Sequence[Event], others: Sequence[Event]) -> Iterator[int]:
    known = {event.event_id for event in others}
    return (index for index, event in enumerate(events) if event.event_id not in known)


def _named(order: ChainOrder, log: Sequence[Event]) -> set[int | None]:
    """The ids that a refusal is about."""
    match order:
        case Ordered() | Joined():
            return set()
        case DuplicateEvent(event_id):
            return {event_id}
        case DanglingPrev(event_id):
            return {event_id}
        case NoRoot():
            return {event.event_id for event in log[:NAMED_MAX]}
        case MultipleRoots(event_ids):
            return set(event_ids[:NAMED_MAX])
        case Forked(at, successors):
            return {at, *successors[:NAMED_MAX]}
        case Unreachable():
            return {event.event_id for event in islice(_unreached(log), NAMED_MAX)}


def _unreached(log: Sequence[Event]) -> Iterator[Event]:
    """The events that the walk from the one root does not meet."""
    after = {event.prev_event_id: event for event in log}
    met = set[int]()
    at = after.get(None)
    while at is not None and at.event_id not in met:
        met.add(at.event_id)
        at = after.get(at.event_id)
    return (event for event in log if event.event_id not in met)


def _hole(stored: Sequence[StoredEvent]) -> int:
    """The index of the first row that does not stand where it counts."""
    return next((i for i, row in enumerate(stored) if row.exec_seq != i + 1), len(stored))


def _without(events: Iterable[Event], others: Iterable[Event]) -> list[int]:
    known = {event.event_id for event in others}
    return [event.event_id for event in events if event.event_id not in known]


def _few(ids: Sequence[int]) -> dict[str, Any]:
    """The first ids, and how many there are."""
    return {"count": len(ids), "first": [str(each) for each in ids[:NAMED_MAX]]}


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)
