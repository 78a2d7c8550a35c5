"""One execution in one transaction: known rows, pool, label, extension, and what is held.

Feed and comparator both end here, the feed with rows of a batch, the comparator with none:
after every populate the pool is asked again, otherwise rows that came meanwhile would lie
unstored until the next one.  Source: spec 2.12.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sidecar.core.authority import Partition, StoredEvent, labelled
from sidecar.core.due import News
from sidecar.core.horizon import TailRow
from sidecar.core.intake import Advance, Pool, admit, advance, extended
from sidecar.core.links import ABSORBING_LABELS, MultipleRoots
from sidecar.core.populate import Refused
from sidecar.core.ports import Key, Populated
from sidecar.core.proofs import Proofs, prove
from sidecar.core.rejoin import NOTHING_KEPT, Join, Kept
from sidecar.core.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Limits:
    """Row counts.  `pool`: of one execution; `pool_total`: of all; `read`: a log read's."""

    read: int = 10_000
    pool: int = 1_000
    pool_total: int = 100_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is at hand for one execution inside the transaction.

    `partition`: as it stands (after a populate in this transaction, if there was one).
    `stored`: by event_id, the stored events among the ids and predecessors of rows and pool.
    `stored_rows`, `max_seq`: as the store counts them now.  `reread`: the flag of its entry,
    if no populate here cleared it.
    `room`: how many more rows all pools together may take.  `log_rows`: how many rows the
    log read at hand returned (the limit for a truncated one), 0 without one; `log_began_at`:
    when it began.  `kept`: proofs and joins of the execution; None: nothing is to be joined.
    `remembered_since`: which version of a row came first is known of all that came since then.
    """

    partition: Partition
    rows: tuple[TailRow, ...]
    pool: Pool
    stored: Mapping[int, StoredEvent]
    stored_rows: int
    max_seq: int
    reread: bool
    room: int
    populated: Populated | None = None
    log_rows: int = 0
    log_began_at: int | None = None
    kept: Kept | None = None
    remembered_since: int | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What to write: the partition, the rows to append behind the head, the pool afterwards.

    `fresh`: rows of the batch that were not stored before this transaction.  `shown`: how
    many rows only the log read at hand has shown; they are neither stored nor pooled.  `seen`: how
    many rows were seen for the first time, as `rows_seen` counts them.  `joins`:
    what was proven now; `against`: what was contradicted.
    """

    partition: Partition
    run: tuple[TailRow, ...]
    pool: Mapping[int, TailRow]
    news: News
    fresh: tuple[TailRow, ...]
    shown: int = 0
    seen: int = 0
    joins: tuple[Join, ...] = ()
    against: Kept = NOTHING_KEPT


def settle(arrival: Arrival, *, epoch: str | None, now: int, limits: Limits) -> Settled:
    """Decide steps 1 to 4 of spec 2.12 for one execution.  Nothing is kept between calls."""
    synced = arrival.populated is not None and arrival.populated.synced
    admitted = admit(arrival.partition, arrival.rows, arrival.stored)
    fresh = arrival.rows if arrival.populated is not None else admitted.fresh
    partition = _known_head(_confirmed(arrival.partition, admitted.confirmed_head), arrival)
    unstored = {key: row for key, row in arrival.pool.items() if key not in arrival.stored}
    changed = (*admitted.changed, *_changed_in_pool(arrival))
    # A row seen in an epoch that has ended may be lost with it: it proves nothing any more.
    waiting = {key: row for key, row in unstored.items() if epoch is None or row.epoch == epoch}
    pool, dropped, overflow = _pooled(partition, waiting, admitted.fresh, arrival.room, limits)
    outlived = len(unstored) - len(waiting)
    dropped, overflow = dropped + outlived, overflow or outlived > 0

    proofs = _proofs(partition, arrival, pool, now, synced=synced)
    step = advance(
        partition,
        pool,
        arrival.stored,
        stored_rows=arrival.stored_rows,
        max_seq=arrival.max_seq,
        epoch=epoch,
        reread=arrival.reread,
        read_limit=limits.read,
        proofs=proofs,
    )
    against = _against(arrival.populated, proofs)
    withdrawn = bool(against.used)
    # A revoked execution has no pool that would say so; after a restart nobody knows that the root came.
    unplaced = proofs is not None and not proofs.placed
    several = MultipleRoots.label if withdrawn or unplaced else None
    label = _refusal_label(arrival.populated) or step.label or several
    newly_labelled = label is not None and partition.label is None
    if label is not None:
        partition = labelled(partition, label, now)
        if withdrawn:
            partition = replace(partition, revoked_reason=Verdict.REJOIN_WITHDRAWN.value)
        dropped, pool = dropped + len(pool), {}
    elif step.run:
        partition = extended(partition, step.run, now)
        pool = {row.event.event_id: row for row in step.left}

    shown = _shown(arrival, partition, pool)
    came = bool(fresh) or _is_news(arrival, shown)
    partition = replace(
        partition,
        held=len(pool) + _in_no_pool(arrival, dropped, shown, synced=synced),
        rows_seen=max(partition.rows_seen + len(fresh), arrival.log_rows),
        first_seen_at=partition.first_seen_at or (now if arrival.rows or arrival.log_rows else None),
        last_change_at=now if came else partition.last_change_at,
    )
    run = () if label is not None else step.run
    news = _news(arrival, fresh, step, newly_labelled or withdrawn, overflow, changed)
    joins = () if proofs is None else proofs.joins
    seen = partition.rows_seen - arrival.partition.rows_seen
    return Settled(partition, run, pool, news, fresh, shown, seen, joins, against)


def _proofs(partition: Partition, arrival: Arrival, pool: Pool, now: int, *, synced: bool) -> Proofs | None:
    """What delivered rows prove, those that find no place included; None: nobody asks."""
    if arrival.kept is None:
        return None
    delivered = {row.event.event_id: row for row in arrival.rows if row.event.event_id not in arrival.stored}
    rows = tuple((delivered | dict(pool)).values())
    # A root that found no proof has set the label.  Whoever has forgotten since that it came would
    # take the xid of an UPDATE for the one that inserted it.
    labelled_at, since = arrival.partition.labelled_at, arrival.remembered_since
    forgotten = labelled_at is not None and since is not None and labelled_at < since
    missing = forgotten or _beyond_pool(arrival, synced=synced) > len(delivered)
    return prove(partition, rows, arrival.stored, arrival.kept, now, missing=missing)


def _against(populated: Populated | None, proofs: Proofs | None) -> Kept:
    read = NOTHING_KEPT if populated is None else populated.against
    rows = NOTHING_KEPT if proofs is None else proofs.against
    return Kept(
        tuple(dict.fromkeys((*read.used, *rows.used))), tuple(dict.fromkeys((*read.unused, *rows.unused)))
    )


def known_commits(arrival: Arrival, settled: Settled) -> dict[Key, int]:
    """Where the rows at hand were committed, of those that are stored as they were handed over."""
    stored = {row.event.event_id: row.event for row in settled.run}
    stored |= {event_id: row.event for event_id, row in arrival.stored.items()}
    return {
        (row.event.execution_id, row.event.event_id): row.commit_lsn
        for row in (*arrival.rows, *arrival.pool.values())
        if row.commit_lsn is not None and stored.get(row.event.event_id) == row.event
    }


def _changed_in_pool(arrival: Arrival) -> tuple[TailRow, ...]:
    """Pooled rows that a log read has stored with other bytes: a newer version waited here."""
    return tuple(
        row
        for key, row in arrival.pool.items()
        if key in arrival.stored and arrival.stored[key].event != row.event
    )


def _shown(arrival: Arrival, after: Partition, pool: Mapping[int, TailRow]) -> int:
    """How many rows a log read has shown that stand neither in the store nor in the pool.

    No lane has to hand them over for them to exist: a chain without them is short.
    """
    if arrival.populated is not None:
        delivered = {row.event.event_id for row in arrival.rows}
        return len(arrival.populated.unstored - pool.keys() - delivered)
    return max(0, arrival.log_rows - after.head_seq)  # truncated: at least so many


def _is_news(arrival: Arrival, shown: int) -> bool:
    """Whether rows that a log read has shown may have come since they were last counted.

    A log that is cut shows the same rows at every look; that is no change, and would keep an
    execution that ended long ago in every window of coverage.
    """
    cut = arrival.populated is None
    return shown > (arrival.partition.held if cut else 0)


def _in_no_pool(arrival: Arrival, dropped: int, shown: int, *, synced: bool) -> int:
    """How many delivered rows are neither stored nor pooled, counted with the new ones."""
    return max(_beyond_pool(arrival, synced=synced) + dropped, shown)


def _beyond_pool(arrival: Arrival, *, synced: bool) -> int:
    """How many rows were known of before that are neither stored nor pooled.

    A populate that was written ends them, if its log read began after the last of them came.
    """
    came_at, began_at = arrival.partition.last_change_at, arrival.log_began_at
    if synced and (came_at is None or began_at is None or began_at >= came_at):
        return 0
    return max(0, arrival.partition.held - len(arrival.pool))


def _refusal_label(populated: Populated | None) -> str | None:
    if populated is None or not isinstance(populated.outcome, Refused):
        return None
    label = populated.outcome.label
    return label if label in ABSORBING_LABELS else None


def _confirmed(partition: Partition, head: TailRow | None) -> Partition:
    if head is None or head.epoch == partition.head_epoch:
        return partition
    return replace(partition, head_epoch=head.epoch, head_anchor=head.anchor, head_commit_lsn=head.commit_lsn)


def _known_head(partition: Partition, arrival: Arrival) -> Partition:
    """With the position of the head's commit, where a log read was first to store it and the WAL shows it."""
    head = partition.head_event_id
    if head is None or partition.head_commit_lsn is not None:
        return partition
    for row in (*arrival.rows, *arrival.pool.values()):
        if row.event.event_id == head and row.commit_lsn is not None:
            stored = arrival.stored.get(head)
            same = stored is not None and stored.event == row.event and row.epoch == partition.head_epoch
            return replace(partition, head_commit_lsn=row.commit_lsn) if same else partition
    return partition


def _pooled(
    partition: Partition, waiting: dict[int, TailRow], fresh: tuple[TailRow, ...], room: int, limits: Limits
) -> tuple[dict[int, TailRow], int, bool]:
    """The pool with the new rows, how many rows found no place in it, and whether for lack of room."""
    if partition.label is not None or partition.revoked_at is not None:
        return {}, len(waiting) + len(fresh), False
    pool = dict(waiting)
    for row in fresh:
        if row.event.event_id in pool or (len(pool) < limits.pool and len(pool) - len(waiting) < room):
            pool[row.event.event_id] = row
    dropped = len({row.event.event_id for row in fresh} - pool.keys())
    return pool, dropped, dropped > 0


def _news(
    arrival: Arrival,
    fresh: tuple[TailRow, ...],
    step: Advance,
    newly_labelled: bool,
    overflow: bool,
    changed: tuple[TailRow, ...],
) -> News:
    # With nothing stored the feed itself reads the log again when a row fills the gap.
    wants_read = step.wants_read and arrival.partition.head_seq > 0
    return News(
        rows=len(fresh),
        terminal=any(row.event.is_terminal for row in fresh),
        reread=overflow or wants_read,
        changed=bool(changed) or step.conflict,
        labelled=newly_labelled,
    )
