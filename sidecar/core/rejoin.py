"""Whether the pieces of a restarted execution stand in a row: by proof, never by guess.

A server that restarts goes on with a second root, and links alone can never say where that
stands.  What the tail saw can.  Every poll leaves an anchor: the next unassigned xid, read after
it.  A row whose xid is not smaller was inserted after everything that the poll saw was visible, if
both belong to one epoch of the server.

The pieces of an execution are its chains by links.  They are one chain if they can be put in a
row so that the root of each is proven to come after the tip of the piece before.  One proof that
is missing, one fork, one row that leads nowhere, one further row behind a tip: there is no row,
and the label of spec 2.7 stands.  A proof is a fact about two rows.  It becomes a join only where
the one is the tip of a piece and the other the root of the next in a complete read of the log.

A join is a finding of ours and never an edge: no event is changed by it.  This module never
compares two event ids to order them, and knows nothing of where anchors come from.
Source: spec 2.7, 2.13.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from sidecar.core.event import Event
from sidecar.core.links import LinkOrder, LinkRefusal, MultipleRoots, Ordered, order_by_links
from sidecar.core.lsn import lsn_text


class Missing(StrEnum):
    """Why one row is not proven to come after another."""

    UNKNOWN_XID = "unknown_xid"
    """The later row was read without a predicate or by a log read, is frozen, or was updated."""
    UNKNOWN_ANCHOR = "unknown_anchor"
    """Nothing was read after the earlier row was first seen that could bound it."""
    OTHER_EPOCH = "other_epoch"
    """The server was started anew in between: its xids prove nothing together."""
    PART_OF_A_POLL = "part_of_a_poll"
    """The poll that first saw the later row came in parts: an earlier piece's row may be in another."""
    BEFORE_ANCHOR = "before_anchor"
    """The later row's transaction had its xid before the earlier row was seen, as in one poll."""
    NO_PROOF = "no_proof"
    """No proof was kept when the row arrived."""
    NOT_THE_TIP = "not_the_tip"
    """What is proven is that it comes after a row which is not the tip of another piece."""
    AMBIGUOUS = "ambiguous"
    """Two roots are proven to come after one tip, and nothing says which comes first."""
    WITHDRAWN = "withdrawn"
    """It was proven, and a later row contradicted it."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """How a row was first seen.

    `xid`: of the transaction that inserted it, 64 bits.  `anchor`: the next unassigned xid, read
    after the row was seen, once everything seen together with it is at hand.  `commit_lsn`,
    `first_lsn`: where its transaction was committed, and where it had begun to write, in the
    write-ahead log.  Each is None where it is not known; `epoch` is the server's.
    """

    event_id: int
    xid: int | None
    anchor: int | None
    epoch: str | None
    commit_lsn: int | None = None
    first_lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """The root of a piece, proven to come after the tip of the piece before.

    The proof is one of two, both in one `epoch`.  `xid` >= `anchor`: the root's transaction got its
    xid after a poll had seen the tip.  `root_lsn` > `tip_lsn`: the root's transaction began to write
    behind the record that commits the tip.  The numbers of the other are None, but for the xid.
    Times are the store's; `withdrawn_at`: when a row contradicted it.
    """

    execution_id: int
    tip_event_id: int
    root_event_id: int
    xid: int
    anchor: int | None
    epoch: str
    joined_at: int
    withdrawn_at: int | None = None
    tip_lsn: int | None = None
    root_lsn: int | None = None

    @property
    def proven(self) -> bool:
        """Whether it holds by its own numbers."""
        if self.anchor is not None:
            return self.xid >= self.anchor
        return self.tip_lsn is not None and self.root_lsn is not None and self.root_lsn > self.tip_lsn

    @property
    def stands(self) -> bool:
        """Whether it holds by its own numbers, and nothing has contradicted it."""
        return self.withdrawn_at is None and self.proven

    def document(self) -> dict[str, str | int | None]:
        """JSON values: 64-bit numbers as decimal strings, positions as Postgres prints them, times in µs."""
        return {
            "tip_event_id": str(self.tip_event_id),
            "root_event_id": str(self.root_event_id),
            "xid": str(self.xid),
            "anchor": None if self.anchor is None else str(self.anchor),
            "tip_lsn": None if self.tip_lsn is None else lsn_text(self.tip_lsn),
            "root_lsn": None if self.root_lsn is None else lsn_text(self.root_lsn),
            "epoch": self.epoch,
            "joined_at": self.joined_at,
            "withdrawn_at": self.withdrawn_at,
        }


Joins = Sequence[Join]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one execution, contradicted ones too.

    `used`: their roots are stored, so something stood and was served over them; only these can be
    withdrawn.  `unused`: proofs that have joined nothing.  A row that speaks against one makes it
    unusable and takes nothing back.
    """

    used: Joins = ()
    unused: Joins = ()


NOTHING_KEPT: Final = Kept()


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that follow each other by their links, from a row without predecessor to a tip."""

    events: tuple[Event, ...]

    @property
    def root(self) -> int:
        return self.events[0].event_id

    @property
    def tip(self) -> int:
        return self.events[-1].event_id


@dataclass(frozen=True, slots=True)
class Joined:
    """Every event once, piece behind piece; `joins` in the same order, one fewer than pieces."""

    events: tuple[Event, ...]
    joins: tuple[Join, ...]
    label: ClassVar[str] = "rejoined"


@dataclass(frozen=True, slots=True)
class Unjoined:
    """The pieces stand in no proven row.

    `missing`: for each root without a usable proof why; the first piece's needs none, and which one
    is the first nobody can say.  Empty where `refusal` is not about roots alone.
    """

    refusal: LinkRefusal
    missing: Mapping[int, Missing]


ChainOrder = LinkOrder | Joined
InOrder = Ordered | Joined
"""Both hold every event once, in the order of the chain."""


def join(execution_id: int, tip: Sighting, root: Sighting, now: int) -> Join | Missing:
    """The join of two rows of one execution, or why `root` is not proven to come after `tip`.

    Source: spec 2.13.
    """
    if root.xid is None:
        return Missing.UNKNOWN_XID
    why = _not_by_anchor(tip, root)
    if why is None:
        epoch = root.epoch or ""
        return Join(execution_id, tip.event_id, root.event_id, root.xid, tip.anchor, epoch, now)
    if not _behind_the_commit(tip, root):
        return why
    return Join(
        execution_id,
        tip.event_id,
        root.event_id,
        root.xid,
        None,
        root.epoch or "",
        now,
        tip_lsn=tip.commit_lsn,
        root_lsn=root.first_lsn,
    )


def _not_by_anchor(tip: Sighting, root: Sighting) -> Missing | None:
    if root.anchor is None:
        return Missing.PART_OF_A_POLL
    if tip.anchor is None or tip.epoch is None:
        return Missing.UNKNOWN_ANCHOR
    if root.epoch != tip.epoch:
        return Missing.OTHER_EPOCH
    if root.xid is None or root.xid < tip.anchor:
        return Missing.BEFORE_ANCHOR
    return None


def _behind_the_commit(tip: Sighting, root: Sighting) -> bool:
    """Whether all that the root's transaction wrote stands behind the tip's commit in one log."""
    return (
        tip.commit_lsn is not None
        and root.first_lsn is not None
        and tip.epoch is not None
        and tip.epoch == root.epoch
        and root.first_lsn > tip.commit_lsn
    )


def pieces(events: Iterable[Event]) -> tuple[Piece, ...] | None:
    """The chains that the links alone make, in no particular order.

    Returns:
        None where a row leads nowhere, two rows name one predecessor, an id stands twice, or a
        circle is left: then nothing may be joined, whatever is proven.
    """
    rows = tuple(events)
    roots = [event for event in rows if event.prev_event_id is None]
    after = {event.prev_event_id: event for event in rows if event.prev_event_id is not None}
    found = tuple(Piece(_from(root, after)) for root in roots)
    # Of two rows behind one only one is met, a row behind none and a circle are not, and no row is
    # met twice: a set in which every id is met as often as it stands there has no such fault.
    met = sum(len(piece.events) for piece in found)
    return found if met == len(rows) == len({event.event_id for event in rows}) else None


def _from(root: Event, after: Mapping[int, Event]) -> tuple[Event, ...]:
    path = [root]
    while (event := after.get(path[-1].event_id)) is not None:
        path.append(event)
    return tuple(path)


def chain_order(events: Sequence[Event], joins: Joins) -> ChainOrder:
    """Put the rows of one complete log read in order: by links, and over joins where they are proven.

    Args:
        joins: What is kept of this execution; those that no longer stand join nothing.

    Returns:
        What `order_by_links` says, or `Joined` in place of `MultipleRoots`.
    """
    order = order_by_links(events)
    if not joins or not isinstance(order, MultipleRoots):
        return order
    found = rejoined(events, order, joins)
    return found if isinstance(found, Joined) else order


def rejoined(events: Sequence[Event], refusal: MultipleRoots, joins: Joins) -> Joined | Unjoined:
    """Put the pieces of a log with several roots in a row, or say which proofs are missing."""
    parts = pieces(events)
    if parts is None:
        return Unjoined(refusal, {})
    by_root = {piece.root: piece for piece in parts}
    tips = {piece.tip for piece in parts}
    missing: dict[int, Missing] = {}
    behind: defaultdict[int, list[Join]] = defaultdict(list)
    kept = {each.root_event_id: each for each in joins}
    for root in by_root:
        why = _unusable(kept.get(root), tips)
        if why is not None:
            missing[root] = why
        else:
            behind[kept[root].tip_event_id].append(kept[root])
    for standing in behind.values():
        if len(standing) > 1:
            missing |= {each.root_event_id: Missing.AMBIGUOUS for each in standing}
    # The first piece needs no proof, and every other one does.  A circle of joins has no first; and
    # a root of which something was proven once, but not what is needed, begins nothing.
    if list(missing.values()) != [Missing.NO_PROOF]:
        return Unjoined(refusal, missing)
    row = _row(by_root[next(iter(missing))], by_root, behind)
    if len(row) != len(parts):
        return Unjoined(refusal, missing)
    used = tuple(kept[piece.root] for piece in row[1:])
    return Joined(tuple(event for piece in row for event in piece.events), used)


def _unusable(kept: Join | None, tips: set[int]) -> Missing | None:
    if kept is None:
        return Missing.NO_PROOF
    if kept.withdrawn_at is not None:
        return Missing.WITHDRAWN
    if not kept.stands:
        return Missing.BEFORE_ANCHOR
    if kept.tip_event_id not in tips:
        return Missing.NOT_THE_TIP
    return None


def _row(first: Piece, by_root: Mapping[int, Piece], behind: Mapping[int, list[Join]]) -> list[Piece]:
    """From the first piece on; each tip has at most one join behind it, and each root one before it."""
    row = [first]
    while (following := behind.get(row[-1].tip)) is not None:
        row.append(by_root[following[0].root_event_id])
    return row


def contradicted(events: Iterable[Event], joins: Joins) -> tuple[Join, ...]:
    """Standing joins that these rows speak against; the rows need not be all there are.

    A row behind the tip of a join says that the piece went on: whatever came after the tip may
    stand before or behind it.  Where two rows name one predecessor, somebody else was writing, and
    no order of pieces is to be had at all.
    """
    standing = tuple(each for each in joins if each.stands)
    if not standing:
        return ()
    after: dict[int, int] = {}
    for event in events:
        prev = event.prev_event_id
        if prev is not None and after.setdefault(prev, event.event_id) != event.event_id:
            return standing
    return tuple(each for each in standing if each.tip_event_id in after)


def parted(joins: Joins, stored: Collection[int]) -> Kept:
    """Tell joins in use from proofs that joined nothing.

    Args:
        joins: All that are kept of an execution.
        stored: Its stored event ids, or those of them that are roots of `joins`.
    """
    return Kept(
        tuple(each for each in joins if each.root_event_id in stored),
        tuple(each for each in joins if each.root_event_id not in stored),
    )


def spoken_against(events: Iterable[Event], order: ChainOrder, kept: Kept) -> Kept:
    """What a complete read in this order contradicts, and nothing has before."""
    if isinstance(order, InOrder) or not (kept.used or kept.unused):
        return NOTHING_KEPT
    rows = tuple(events)
    return Kept(contradicted(rows, kept.used), contradicted(rows, kept.unused))


def is_withdrawn(events: Iterable[Event], order: ChainOrder, kept: Kept) -> bool:
    """Whether a join in use was contradicted, before or by a complete read in this order."""
    if any(each.withdrawn_at is not None for each in kept.used):
        return True
    return bool(spoken_against(events, order, kept).used)


def predecessors(joins: Joins) -> dict[int, int]:
    """For each root that a standing join puts behind a tip, that tip."""
    return {each.root_event_id: each.tip_event_id for each in joins if each.stands}
