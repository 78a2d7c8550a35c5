"""What arriving rows prove about the order of pieces, and which joins they contradict.

A proof can be had once: when the root arrives, against the tip as it was seen.  So it is looked
for in every batch, also where the rows cannot be stored now, and kept.  Where the row goes is not
decided by that: a root is only put behind a tip when every row of the execution that was
delivered has its place.  Source: spec 2.12 step 3, 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sidecar.core.authority import Partition, StoredEvent
from sidecar.core.horizon import TailRow
from sidecar.core.rejoin import NOTHING_KEPT, Join, Joins, Kept, Sighting, contradicted, join


@dataclass(frozen=True, slots=True)
class Proofs:
    """What the delivered, unstored rows of one execution come to.

    `run`: the rows that stand behind the head, by links and over joins.  `joins`: proofs found now.
    `against`: what a row speaks against.  `placed`: every root has its place in `run`; False asks
    for the label of 2.7, until a log read finds it.
    """

    run: tuple[TailRow, ...]
    joins: tuple[Join, ...] = ()
    against: Kept = NOTHING_KEPT
    placed: bool = True


def prove(
    partition: Partition,
    rows: Sequence[TailRow],
    stored: Mapping[int, StoredEvent],
    kept: Kept,
    now: int,
    *,
    missing: bool = False,
) -> Proofs:
    """Look at delivered rows behind a head that is stored.

    Args:
        rows: Delivered and not stored; no id twice.
        stored: By event_id, every stored event that one of `rows` names as its predecessor.
        kept: What is kept of the execution.
        now: The store's clock.
        missing: More rows are known of than these, and they are not stored.
    """
    after = {row.event.prev_event_id: row for row in rows if row.event.prev_event_id is not None}
    roots = [row for row in rows if row.event.prev_event_id is None]
    head = partition.head_event_id
    run = list(_behind(head, after))
    against = _against(partition, rows, stored, kept)
    if _forked(partition, rows, stored):
        return Proofs(tuple(run), (), against, placed=not roots)
    if missing:
        return Proofs(tuple(run), (), against, placed=not roots)  # one of them may stand behind any tip
    ahead = {row.event.event_id for row in run}
    for root in roots:
        ahead |= {row.event.event_id for row in _piece(root, after)}
    waiting = [row for row in rows if row.event.event_id not in ahead]
    found: list[Join] = []
    if waiting:
        # A predecessor is still to come.  Then the tip will be the last of those that wait, if
        # they are one chain; the proof is kept for when a log read shows that it is.
        ends = [row for row in waiting if row.event.event_id not in after]
        if len(ends) == len(roots) == 1 and isinstance(one := _joined(ends[0], roots[0], now), Join):
            found.append(one)
        return Proofs(tuple(run), tuple(found), against, placed=not roots)
    tip = _sighted(run[-1]) if run else _head(partition)
    # Of two roots the one with the greater xid cannot stand before the other: a tip of its piece was
    # seen after it had its xid, and the other would have to be newer than that.
    for root in sorted(roots, key=lambda row: -1 if row.xid is None else row.xid):
        one = join(partition.execution_id, tip, _sighted(root), now)
        if not isinstance(one, Join):
            return Proofs(tuple(run), tuple(found), against, placed=False)
        found.append(one)
        run += _piece(root, after)
        tip = _sighted(run[-1])
    # A position says nothing of who is still writing: an anchor lies a poll behind the tip, a commit
    # may be a moment old.  So a complete log read decides, when it has settled.
    placed = all(one.anchor is not None for one in found)
    return Proofs(tuple(run), tuple(found), against, placed=placed)


def asks(partition: Partition, rows: Sequence[TailRow], stored: Mapping[int, StoredEvent]) -> bool:
    """Whether delivered rows may prove or contradict anything: they nearly never do, and then cost nothing.

    A proof that joined nothing is only kept beside a root that is not stored, which a label, a
    revocation or `held` tells of.

    Args:
        rows: Of the batch and the pool.
        stored: By event_id, the stored events among them and their predecessors.
    """
    if partition.head_seq == 0 or partition.torn is not None:
        return False
    new = [row for row in rows if row.event.event_id not in stored]
    if new and (partition.label is not None or partition.revoked_at is not None or partition.held > 0):
        return True
    return any(row.event.prev_event_id is None for row in new) or _forked(partition, new, stored)


def _against(
    partition: Partition, rows: Sequence[TailRow], stored: Mapping[int, StoredEvent], kept: Kept
) -> Kept:
    """What the rows contradict: behind a joined tip that join; where they fork all, for no order is left.

    Behind a joined tip stands no stored row by its link, so one new row that names it is no fork.
    """
    if not kept.used and not kept.unused:
        return kept
    tips = {each.tip_event_id for each in kept.used}
    if _forked(partition, [row for row in rows if row.event.prev_event_id not in tips], stored):
        return Kept(_standing(kept.used), _standing(kept.unused))
    events = [row.event for row in rows]
    return Kept(contradicted(events, kept.used), contradicted(events, kept.unused))


def _standing(joins: Joins) -> tuple[Join, ...]:
    return tuple(each for each in joins if each.stands)


def _forked(partition: Partition, rows: Iterable[TailRow], stored: Mapping[int, StoredEvent]) -> bool:
    """Whether two rows name one predecessor, stored or not."""
    named: set[int] = set()
    for row in rows:
        prev = row.event.prev_event_id
        if prev is None:
            continue
        behind_head = prev in stored and stored[prev].exec_seq < partition.head_seq
        if behind_head or prev in named:
            return True
        named.add(prev)
    return False


def _joined(tip: TailRow, root: TailRow, now: int) -> object:
    return join(root.event.execution_id, _sighted(tip), _sighted(root), now)


def _head(partition: Partition) -> Sighting:
    return Sighting(
        partition.head_event_id or 0,
        None,
        partition.head_anchor,
        partition.head_epoch,
        partition.head_commit_lsn,
    )


def _sighted(row: TailRow) -> Sighting:
    return Sighting(row.event.event_id, row.xid, row.anchor, row.epoch, row.commit_lsn, row.first_lsn)


def _piece(root: TailRow, after: Mapping[int, TailRow]) -> Iterator[TailRow]:
    yield root
    yield from _behind(root.event.event_id, after)


def _behind(at: int | None, after: Mapping[int, TailRow]) -> Iterator[TailRow]:
    """The rows in a row behind an event; each is met once, so it ends whatever the links are."""
    passed: set[int] = set()
    while at is not None and at not in passed and (row := after.get(at)) is not None:
        passed.add(at)
        yield row
        at = row.event.event_id
