"""Stored chain x ordered log -> which outcome, what to write, what the partition may claim.

Content decides, not ids alone and never length alone: a changed payload under known ids is a
divergence.  A longer store is an open question (StaleLog), judged by the comparator, never
here.  Source: spec 2.8, every row of its table; the rows are named in the comments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from sidecar.core.authority import Coverage, Partition, Watermark
from sidecar.core.event import TERMINAL_EVENT_TYPES, Event
from sidecar.core.rejoin import ChainOrder, InOrder

ConflictKind = Literal["conflict", "parent", "edge", "payload"]


@dataclass(frozen=True, slots=True)
class LogRead:
    """When and against what a log read ran.

    `began_at`: microseconds of the store's clock, taken before the statement was sent.
    `epoch`: the server's epoch as the statement itself saw it.  `anchor`: the next
    unassigned xid, read after the log read (spec 2.13).  None: unknown.  `whole`: False when the
    partition tree moved under the read or a partition was leaving it: rows that it lacks
    are then not known to be gone.
    """

    began_at: int
    epoch: str | None = None
    anchor: int | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class InSync:
    """Store and log agree on `total` events, the last `appended` of which are new to the store."""

    total: int
    appended: int

    @property
    def label(self) -> str:
        return "extended" if self.appended else "in_sync"


@dataclass(frozen=True, slots=True)
class Diverged:
    """At `position` (from 0) both sides hold an event and they differ in `kind`."""

    position: int
    kind: ConflictKind
    stored: Event
    log: Event
    label: ClassVar[str] = "diverged"


@dataclass(frozen=True, slots=True)
class StaleLog:
    """The store holds more than this read of the log; who is right is not decided here."""

    stored: int
    log: int
    label: ClassVar[str] = "stale_log"


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was written: a link refusal (spec 2.7), `store_gap` or `log_pruned`."""

    label: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Nothing was written: the record is torn, and a populate over it would hide that.

    The coverage is what populating has to read (spec 2.5), the watermark what the guarded read
    has to (2.6, row 2); `label` says whose failure it is.
    """

    what: Literal["watermark", "coverage", "label"]

    @property
    def label(self) -> str:
        return "guarded_read_failed" if self.what == "watermark" else "populate_failed"


Outcome = InSync | Diverged | StaleLog | Refused | Unreadable


def plan(
    stored: Sequence[Event], ordered: ChainOrder, *, delivered: bool = False, gap: bool = False
) -> Outcome:
    """Decide what populating `stored` from one complete log read comes to.

    Args:
        stored: The partition's events in ascending exec_seq.
        ordered: What `order_by_links`, or `chain_order` with the execution's joins, made of the log read.
        delivered: The tail once delivered a row of this execution (row 2b).
        gap: The stored sequences have holes (row 10).

    Returns:
        The outcome.  `InSync` with `appended` > 0 asks for the last `appended` events of
        the order to be appended; no other outcome writes an event.

    Source: spec 2.8.
    """
    if not isinstance(ordered, InOrder):  # row 1
        return Refused(ordered.label)
    if gap:  # row 10, before anything that compares positions
        return Refused("store_gap")
    log = ordered.events
    if not log and not stored and delivered:  # row 2b
        return Refused("log_pruned")
    for position, (ours, theirs) in enumerate(zip(stored, log, strict=False)):
        kind = difference(ours, theirs)
        if kind is not None:  # row 4
            return Diverged(position, kind, ours, theirs)
    if len(stored) > len(log):  # rows 3 and 5
        return StaleLog(len(stored), len(log))
    return InSync(len(log), len(log) - len(stored))  # rows 2, 6, 7, 8


def difference(stored: Event, log: Event) -> ConflictKind | None:
    """The first kind in which two events at one position differ.  Source: spec 2.8 row 4."""
    if stored == log:
        return None
    if stored.event_id != log.event_id or stored.execution_id != log.execution_id:
        return "conflict"
    if stored.parent_execution_id != log.parent_execution_id:
        return "parent"
    if stored.prev_event_id != log.prev_event_id:
        return "edge"
    # event_type is part of the body; a stored type that differs was not taken from it.
    return "payload"


def may_write(partition: Partition, read: LogRead) -> bool:
    """Whether a log read is young enough to touch this partition.

    A read that began before a revocation or a label was set writes nothing.
    Source: spec 2.9, 2.12 step 3.
    """
    bars = (partition.revoked_at, partition.labelled_at)
    return all(bar is None or read.began_at > bar for bar in bars)


def populated(partition: Partition, outcome: Outcome, log: Sequence[Event], read: LogRead) -> Partition:
    """The partition after `outcome`; unchanged where the table says so.

    Call only when `may_write`.  `held` is not touched: what is left in the pool is the
    feed's to say (spec 2.12).

    Source: spec 2.8 (watermark, coverage), 2.9 and 2.12 step 3 (what rows 6-8 clear), 2.13.
    """
    match outcome:
        case Diverged():
            return replace(partition, coverage=None)
        case InSync():
            return _in_sync(partition, outcome, log, read)
        case _:
            return partition


def _in_sync(partition: Partition, outcome: InSync, log: Sequence[Event], read: LogRead) -> Partition:
    if not log:  # row 2
        return replace(
            partition,
            watermark=Watermark(0, 0),
            coverage=Coverage(None, 0),
            revoked_reason=None,
            revoked_at=None,
            label=None,
            labelled_at=None,
        )
    first, last = log[0], log[-1]
    new = log[len(log) - outcome.appended :]
    same_head = not outcome.appended and read.epoch is not None and partition.head_epoch == read.epoch
    known = partition.head_anchor if same_head else None
    return replace(
        partition,
        parent_execution_id=first.parent_execution_id,
        head_seq=outcome.total,
        head_event_id=last.event_id,
        watermark=Watermark(1, outcome.total),
        coverage=_monotone(partition.coverage, Coverage(first.event_id, outcome.total)),
        # An InSync confirms the head in the read's epoch; an anchor already known for that
        # head and epoch is the earlier, stronger one.
        head_epoch=read.epoch,
        head_anchor=read.anchor if known is None else known,
        head_commit_lsn=partition.head_commit_lsn if same_head else None,
        terminal=partition.terminal or not TERMINAL_EVENT_TYPES.isdisjoint(event.event_type for event in new),
        revoked_reason=None,
        revoked_at=None,
        label=None,
        labelled_at=None,
        last_change_at=max(read.began_at, partition.last_change_at or 0)
        if outcome.appended
        else partition.last_change_at,
    )


def _monotone(current: Coverage | None, claimed: Coverage) -> Coverage:
    """Coverage never shrinks under one root.  Source: spec 2.5."""
    if (
        current is not None
        and current.root_event_id == claimed.root_event_id
        and current.total > claimed.total
    ):
        return current
    return claimed
