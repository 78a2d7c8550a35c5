"""One execution as a picture: its events by their links, whatever is wrong with them.

Where `links` refuses a set, somebody has to look at it.  So nothing is refused here: every event
of either side is drawn once, from its root, from the gap before it, or from the circle it
stands on, and what both sides hold of it is marked.  The edges are the log's; the store's where
the log has no such event.  Ids are compared only to draw the same set the same way every time.

A picture says nothing of who is right; that is the verdict's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import msgspec

from sidecar.core.authority import StoredEvent
from sidecar.core.event import Event
from sidecar.core.rejoin import Join, Joins
from sidecar.errors import broken

FIRST_SHOWN: Final = 5
LAST_SHOWN: Final = 4
"""Of a long linear run; what is between them is folded."""


@dataclass(frozen=True, slots=True)
class Node:
    """One event id.

    `in_log`, `in_store`: None where that side was not read.  `position`: its place in the store,
    from 0.  `differs`: edge, parent, payload.  `copies`: rows of the log with this id.
    """

    event_id: int
    prev_event_id: int | None
    event_type: str
    name: str
    in_log: bool | None
    in_store: bool | None
    position: int | None
    differs: tuple[str, ...]
    copies: int
    terminal: bool

    @property
    def marks(self) -> tuple[str, ...]:
        """What is to be said of it; empty for an event like any other."""
        alone = ("log only",) if self.in_store is False else ("store only",) if self.in_log is False else ()
        times = (f"{self.copies} times in the log",) if self.copies > 1 else ()
        return (*alone, *(f"{kind} differs" for kind in self.differs), *times)


@dataclass(frozen=True, slots=True)
class AtRoot:
    """The run begins at an event without a predecessor."""


@dataclass(frozen=True, slots=True)
class AtGap:
    """The run begins behind an event that neither side has."""

    missing: int


@dataclass(frozen=True, slots=True)
class AtFork:
    """The run is one of several behind `event_id`."""

    event_id: int


@dataclass(frozen=True, slots=True)
class AtCircle:
    """The run begins on a circle: the first event's predecessor stands behind it."""

    previous: int


@dataclass(frozen=True, slots=True)
class AtJoin:
    """The run begins at a root that is proven to come after `tip_event_id`; no event names it."""

    tip_event_id: int


Entry = AtRoot | AtGap | AtFork | AtCircle | AtJoin


@dataclass(frozen=True, slots=True)
class Run:
    """Events in a row, each the only successor of the one before.

    `rails`: for each level from the outside, whether another run of that level follows.
    """

    entry: Entry
    nodes: tuple[Node, ...]
    rails: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Events between two of a run that are left out, all alike."""

    nodes: tuple[Node, ...]

    @property
    def marks(self) -> tuple[str, ...]:
        return self.nodes[0].marks


@dataclass(frozen=True, slots=True)
class Picture:
    """Runs in drawing order; an inner one stands behind the one it branches from.

    `roots`, `gaps` (the missing id, who names it), `forks` (the event, its successors),
    `duplicates` and `circles` (their first event) name what is irregular, ids ascending.  `joins`:
    what is kept of proofs between two of these events, in the order given.
    """

    runs: tuple[Run, ...]
    roots: tuple[int, ...]
    gaps: tuple[tuple[int, tuple[int, ...]], ...]
    forks: tuple[tuple[int, tuple[int, ...]], ...]
    duplicates: tuple[int, ...]
    circles: tuple[int, ...]
    joins: tuple[Join, ...]

    @property
    def nodes(self) -> Iterator[Node]:
        return (node for run in self.runs for node in run.nodes)


def picture(log: Sequence[Event] | None, stored: Sequence[StoredEvent] | None, joins: Joins = ()) -> Picture:
    """Draw what log and store hold of one execution.

    Args:
        log: Every row of a complete read, in any order; None: it was not read.
        stored: Every stored row; None: no store was read.
        joins: What is kept of the execution; a piece whose root a standing one puts behind a tip is
            drawn there.
    """
    copies = Counter(event.event_id for event in log or ())
    nodes = _nodes(log, stored, copies)
    after: dict[int | None, list[int]] = {}
    for event_id in sorted(nodes):
        after.setdefault(nodes[event_id].prev_event_id, []).append(event_id)
    roots = tuple(after.get(None, ()))
    gaps = tuple(
        (missing, tuple(named_by))
        for missing, named_by in sorted((p, each) for p, each in after.items() if p is not None)
        if missing not in nodes
    )
    behind = _behind(joins, nodes, after)
    drawing = _Drawing(nodes, after, behind)
    for root in roots:
        if root not in behind.values():
            drawing.draw(AtRoot(), root, ())
    for root in roots:  # behind tips that lead back to them
        if root not in drawing.drawn:
            drawing.draw(AtRoot(), root, ())
    for missing, named_by in gaps:
        for number, event_id in enumerate(named_by, start=1):
            drawing.draw(AtGap(missing), event_id, (number < len(named_by),))
    circles = []
    for event_id in nodes:
        if event_id not in drawing.drawn:
            first, previous = _on_circle(event_id, nodes)
            circles.append(first)
            drawing.draw(AtCircle(previous), first, ())
    return Picture(
        tuple(drawing.runs),
        roots,
        gaps,
        tuple((at, tuple(each)) for at, each in sorted(_forks(nodes, after))),
        tuple(sorted(event_id for event_id, times in copies.items() if times > 1)),
        tuple(circles),
        tuple(each for each in joins if each.tip_event_id in nodes and each.root_event_id in nodes),
    )


def folded(nodes: Sequence[Node]) -> list[Node | Fold]:
    """A run to be read: of many alike in a row, the first and the last ones."""
    shown: list[Node | Fold] = []
    for _, group in groupby(nodes, key=lambda node: (node.marks, node.terminal)):
        alike = tuple(group)
        if len(alike) <= FIRST_SHOWN + LAST_SHOWN + 1:
            shown += alike
        else:
            shown += [*alike[:FIRST_SHOWN], Fold(alike[FIRST_SHOWN:-LAST_SHOWN]), *alike[-LAST_SHOWN:]]
    return shown


def _forks(nodes: dict[int, Node], after: dict[int | None, list[int]]) -> Iterator[tuple[int, list[int]]]:
    return ((at, each) for at, each in after.items() if at is not None and at in nodes and len(each) > 1)


def _behind(joins: Joins, nodes: dict[int, Node], after: dict[int | None, list[int]]) -> dict[int, int]:
    """Tip to root, where a standing join says so and nothing else of this picture speaks against it."""
    standing = [
        each
        for each in joins
        if each.stands
        and each.tip_event_id in nodes
        and each.tip_event_id not in after
        and each.root_event_id in after.get(None, ())
    ]
    times = Counter(each.tip_event_id for each in standing)
    return {each.tip_event_id: each.root_event_id for each in standing if times[each.tip_event_id] == 1}


class _Drawing:
    """Runs as they are drawn; without recursion, a chain may be long."""

    def __init__(
        self, nodes: dict[int, Node], after: dict[int | None, list[int]], behind: dict[int, int]
    ) -> None:
        self.runs: list[Run] = []
        self.drawn: set[int] = set()
        self._nodes = nodes
        self._after = after
        self._behind = behind

    def draw(self, entry: Entry, first: int, rails: tuple[bool, ...]) -> None:
        waiting: list[tuple[Entry, int, tuple[bool, ...]]] = [(entry, first, rails)]
        while waiting:
            start, at, rails = waiting.pop()
            run, branches = self._run(at)
            self.runs.append(Run(start, tuple(run), rails))
            tip = run[-1].event_id
            joined = self._behind.get(tip)
            if joined is not None and joined not in self.drawn:
                waiting.append((AtJoin(tip), joined, rails))
            fork = AtFork(tip)
            last = len(branches) - 1
            waiting += [
                (fork, event_id, (*rails, number < last))
                for number, event_id in reversed(list(enumerate(branches)))
            ]

    def _run(self, at: int) -> tuple[list[Node], list[int]]:
        """The events in a row from `at`, and the branches behind the last one."""
        run = []
        while True:
            self.drawn.add(at)
            run.append(self._nodes[at])
            behind = [event_id for event_id in self._after.get(at, ()) if event_id not in self.drawn]
            if len(behind) != 1 or len(self._after[at]) > 1:
                return run, behind
            at = behind[0]


def _on_circle(event_id: int, nodes: dict[int, Node]) -> tuple[int, int]:
    """The smallest event of the circle that the links before `event_id` lead to, and its predecessor.

    Every event that no root and no gap leads to has one before it.
    """
    links = {at: node.prev_event_id for at, node in nodes.items() if node.prev_event_id is not None}
    met: dict[int, None] = {}
    at = event_id
    while at not in met:
        met[at] = None
        at = links[at]
    path = list(met)
    first = min(path[path.index(at) :])
    return first, links[first]


def _nodes(
    log: Sequence[Event] | None, stored: Sequence[StoredEvent] | None, copies: Counter[int]
) -> dict[int, Node]:
    theirs = {event.event_id: event for event in log or ()}
    ours = {row.event.event_id: row for row in stored or ()}
    return {
        event_id: _node(
            theirs.get(event_id),
            ours.get(event_id),
            copies[event_id],
            log is not None,
            stored is not None,
        )
        for event_id in sorted({*theirs, *ours})
    }


def _node(log: Event | None, row: StoredEvent | None, copies: int, log_read: bool, store_read: bool) -> Node:
    event = log if log is not None else row.event if row is not None else None
    if event is None:
        broken("an event of neither side")
    return Node(
        event_id=event.event_id,
        prev_event_id=event.prev_event_id,
        event_type=event.event_type,
        name=_name(event.body),
        in_log=log is not None if log_read else None,
        in_store=row is not None if store_read else None,
        position=None if row is None else row.exec_seq - 1,
        differs=tuple(_differences(log, row)),
        copies=copies,
        terminal=event.is_terminal,
    )


def _differences(log: Event | None, row: StoredEvent | None) -> Iterable[str]:
    if log is None or row is None:
        return
    ours = row.event
    if ours.prev_event_id != log.prev_event_id:
        yield "edge"
    if ours.parent_execution_id != log.parent_execution_id:
        yield "parent"
    if ours.body != log.body:
        yield "payload"


class _Named(msgspec.Struct):
    node_name: str | None = None


_NAMED = msgspec.json.Decoder(_Named)


def _name(body: str) -> str:
    """The step's name; "" where the body has none or cannot be read."""
    try:
        return _NAMED.decode(body).node_name or ""
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ""
