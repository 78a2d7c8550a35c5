"""Rows of a batch x partition -> drop, hold, label, extend.

The link is the proof: a row that names the stored head stands right behind it, so nothing
lies between.  A row that names something else waits in the pool.  A second root or a second
successor is a label at once, whatever else is allowed; but for a root that is proven to come
after the tip, where that is asked for (`proofs`).  Source: spec 2.12 steps 1-4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from sidecar.core.authority import Coverage, Partition, StoredEvent, Watermark
from sidecar.core.horizon import TailRow
from sidecar.core.links import Forked, MultipleRoots
from sidecar.core.proofs import Proofs

Pool = Mapping[int, TailRow]
"""Delivered rows of one execution that are not stored, by event_id."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Step 1: `fresh` rows are not stored; `changed` ones are stored with other bytes.

    `confirmed_head`: the anchor of a poll that delivered the stored head unchanged, so the
    head is known to stand in that poll's epoch; None when no row did.
    """

    fresh: tuple[TailRow, ...]
    changed: tuple[TailRow, ...]
    confirmed_head: TailRow | None


def admit(partition: Partition, rows: Iterable[TailRow], stored: Mapping[int, StoredEvent]) -> Admitted:
    """Tell known rows from new ones.

    Args:
        partition: The record as it stands in this transaction.
        rows: The batch's rows of this execution.
        stored: By event_id, every stored event among them.
    """
    fresh: list[TailRow] = []
    changed: list[TailRow] = []
    confirmed: TailRow | None = None
    for row in rows:
        known = stored.get(row.event.event_id)
        if known is None:
            fresh.append(row)
        elif known.event != row.event:
            changed.append(row)
        elif row.event.event_id == partition.head_event_id:
            confirmed = row
    return Admitted(tuple(fresh), tuple(changed), confirmed)


@dataclass(frozen=True, slots=True)
class Advance:
    """What the pool of one execution comes to.

    At most one of `label` and `run` is set.  `left` is the pool afterwards (everything when a
    label is set: the caller drops it).  `conflict`: the stored rows contradict the record
    (row 4, kind conflict).  `wants_read`: the log has to be read before these rows can stand.
    """

    run: tuple[TailRow, ...] = ()
    left: tuple[TailRow, ...] = ()
    label: str | None = None
    conflict: bool = False
    wants_read: bool = False


def advance(
    partition: Partition,
    pool: Pool,
    stored: Mapping[int, StoredEvent],
    *,
    stored_rows: int,
    max_seq: int,
    epoch: str | None,
    reread: bool,
    read_limit: int,
    proofs: Proofs | None = None,
) -> Advance:
    """Steps 3 and 4 on the pool of one execution.

    Args:
        pool: Rows that are not stored.
        stored: By event_id, every stored event that a pooled row names as its predecessor.
        stored_rows: How many event rows the store holds of this execution.
        max_seq: The greatest stored exec_seq, 0 for none.
        epoch: The server's epoch of the poll or log read at hand.  Only rows that were seen in
            it extend: one seen in an ended epoch may have been lost with it.
        reread: The execution's log must be read again.
        read_limit: A chain is extended up to `read_limit` - 1 rows.
        proofs: What the pool proves; None: a second root is a label, whatever could be proven.

    Source: spec 2.12 steps 3 and 4.
    """
    rows = tuple(pool.values())
    successors = _successors(rows)
    label = _label(partition, rows, successors, stored, proofs)
    if label is not None:
        return Advance(left=rows, label=label)

    if partition.head_seq == 0:
        return Advance(left=rows, wants_read=_fills_a_gap(rows, successors))

    run = _run(partition.head_event_id, successors) if proofs is None else proofs.run
    if not run:
        return Advance(left=rows)
    if partition.label is not None or partition.revoked_at is not None:
        return Advance(left=rows)
    if not stored_rows == max_seq == partition.head_seq:
        return Advance(left=rows, conflict=True)
    if not _would_answer(partition, stored_rows) or reread:
        return Advance(left=rows)
    if partition.head_epoch != epoch:
        return Advance(left=rows, wants_read=True)
    current = tuple(takewhile(lambda row: row.epoch == epoch, run))
    # Beyond the limit no read could help: it would be truncated, and the comparator says so.
    taken = current[: max(0, read_limit - 1 - partition.head_seq)]
    standing = {row.event.event_id for row in taken}
    left = tuple(row for row in rows if row.event.event_id not in standing)
    return Advance(run=taken, left=left, wants_read=len(current) < len(run))


def _successors(rows: Iterable[TailRow]) -> dict[int, list[TailRow]]:
    successors: dict[int, list[TailRow]] = {}
    for row in rows:
        if row.event.prev_event_id is not None:
            successors.setdefault(row.event.prev_event_id, []).append(row)
    return successors


def _label(
    partition: Partition,
    rows: Iterable[TailRow],
    successors: Mapping[int, list[TailRow]],
    stored: Mapping[int, StoredEvent],
    proofs: Proofs | None,
) -> str | None:
    """Step 3, in the order of spec 2.7, so that the order of arrival does not choose the label."""
    if proofs is not None and proofs.against.used:  # the log has several roots, whatever else it has
        return MultipleRoots.label
    placed = proofs is not None and proofs.placed
    if partition.head_seq > 0 and not placed and any(row.event.prev_event_id is None for row in rows):
        return MultipleRoots.label
    for prev, named_by in successors.items():
        predecessor = stored.get(prev)
        behind_head = predecessor is not None and predecessor.exec_seq < partition.head_seq
        if behind_head or len(named_by) > 1:
            return Forked.label
    return None


def _would_answer(partition: Partition, stored_rows: int) -> bool:
    return (
        partition.watermark is not None
        and partition.coverage is not None
        and partition.watermark.through == partition.head_seq == partition.coverage.total == stored_rows
    )


def _fills_a_gap(rows: Iterable[TailRow], successors: Mapping[int, list[TailRow]]) -> bool:
    # Nothing of this execution is stored: its log was refused once, and is worth reading
    # again when a root came, or a row that a waiting one names.
    return any(row.event.prev_event_id is None or row.event.event_id in successors for row in rows)


def _run(head: int | None, successors: Mapping[int, list[TailRow]]) -> tuple[TailRow, ...]:
    # Every row leaves `rest` when it is taken, so the walk ends whatever the links are.
    rest = {prev: named_by[0] for prev, named_by in successors.items()}
    run: list[TailRow] = []
    at = head
    while at is not None and (row := rest.pop(at, None)) is not None:
        run.append(row)
        at = row.event.event_id
    return tuple(run)


def extended(partition: Partition, run: tuple[TailRow, ...], now: int) -> Partition:
    """The partition after its chain grew by `run` (not empty).

    It is row 8 of spec 2.8 with the log read replaced by the link proof: it raises the total
    of an existing coverage, never creates one and never clears a revocation.  `held` is the
    caller's.
    """
    coverage, watermark, last = partition.coverage, partition.watermark, run[-1]
    through = partition.head_seq + len(run)
    return replace(
        partition,
        head_seq=through,
        head_event_id=last.event.event_id,
        watermark=watermark and Watermark(watermark.first, through),
        coverage=coverage and Coverage(coverage.root_event_id, coverage.total + len(run)),
        head_anchor=last.anchor,
        head_epoch=last.epoch,
        head_commit_lsn=last.commit_lsn,
        terminal=partition.terminal or any(row.event.is_terminal for row in run),
        last_change_at=now,
    )
