"""What a partition may claim: watermark, coverage, revocation, the guarded read.

"Cannot answer" is a reason, never an empty list; an empty list means that the log was read
and held nothing.  A failed call must leave no authority that was not there before.

This module holds the record of one partition, the truth table of spec 2.6, and what the
per-event calls change in the record.  What a populate or an extension changes in it stands in
`populate` and `intake`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Final, Literal, NamedTuple

import msgspec

from sidecar.core.event import Event
from sidecar.errors import PartitionUnreadable


class Reason(StrEnum):
    """Why a guarded read cannot answer.  Source: spec 2.6."""

    NOT_POPULATED = "not_populated"
    WATERMARK_MISMATCH = "watermark_mismatch"
    NO_COVERAGE = "no_coverage"
    COVERAGE_TOTAL_MISMATCH = "coverage_total_mismatch"
    COVERAGE_ROOT_MISMATCH = "coverage_root_mismatch"
    CHAIN_GAP = "chain_gap"
    ROWS_HELD_BACK = "rows_held_back"


@dataclass(frozen=True, slots=True)
class Watermark:
    """Sequences the partition claims to hold, both ends included; 0:0 claims "none exist"."""

    first: int
    through: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The partition was built from the log: its root (None: the log was empty) and its size."""

    root_event_id: int | None
    total: int


@dataclass(frozen=True, slots=True)
class NotPopulated:
    """No watermark: the store cannot say anything about this execution."""

    label: ClassVar[str] = "not_populated"
    first: ClassVar[None] = None
    through: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class Authoritative:
    """A watermark stands, an empty one (0:0) included."""

    first: int
    through: int
    label: ClassVar[str] = "authoritative"


Authority = NotPopulated | Authoritative


@dataclass(frozen=True, slots=True)
class Torn:
    """A part of the record that is malformed.  It is damage, never "absent".

    `raw`: watermark and coverage as they stand, so that whoever saves the record leaves them so.
    """

    what: Literal["watermark", "coverage", "label"]
    raw: tuple[int | None, int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class GuardedRead:
    """Exactly one of `events` and `reason` is None."""

    events: tuple[Event, ...] | None
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Partition:
    """The store's record of one execution, beside its events.

    Times are microseconds of the store's clock (strictly increasing, see store.clock).
    `held` counts delivered rows that are not stored.  `label` is an absorbing refusal.
    `verdict` is the comparator's latest, `verdict_rows` the rows of the log read behind it;
    `counted_kinds` are the divergence kinds already counted since the last match.
    `head_anchor` and `head_epoch` say when the head was seen (spec 2.13), `head_commit_lsn` where
    it was committed, where the WAL showed it in that epoch.  While it is `torn` nothing more may be
    claimed for it.  Source: design 5, spec 2.4-2.12.
    """

    execution_id: int
    parent_execution_id: int | None = None
    head_seq: int = 0
    head_event_id: int | None = None
    watermark: Watermark | None = None
    coverage: Coverage | None = None
    held: int = 0
    rows_seen: int = 0
    head_anchor: int | None = None
    head_epoch: str | None = None
    label: str | None = None
    labelled_at: int | None = None
    revoked_reason: str | None = None
    revoked_at: int | None = None
    terminal: bool = False
    verdict: str | None = None
    verdict_at: int | None = None
    counted_kinds: frozenset[str] = frozenset()
    first_seen_at: int | None = None
    last_change_at: int | None = None
    verdict_rows: int = 0
    head_commit_lsn: int | None = None
    torn: Torn | None = None

    @property
    def authority(self) -> Authority:
        """What it claims.

        Raises:
            PartitionUnreadable: the record is torn.
        """
        check_whole(self)
        if self.watermark is None:
            return NotPopulated()
        return Authoritative(self.watermark.first, self.watermark.through)


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What of a Partition the guarded read asks for, under the same names; made for every read."""

    execution_id: int
    head_seq: int
    watermark: Watermark | None
    coverage: Coverage | None
    torn: Torn | None


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event at its place in the partition; `exec_seq` counts from 1.  A Struct, as Event is."""

    exec_seq: int
    event: Event
    origin: str | None = None
    seen_at: int | None = None


class Columns(NamedTuple):
    """Of rows in ascending exec_seq: their exec_seq, their event, and the event that they name."""

    places: Sequence[int]
    ids: Sequence[int]
    named: Sequence[int | None]


NO_JOINS: Final[Mapping[int, int]] = MappingProxyType({})


def guarded_read(
    partition: Partition | None,
    stored: Sequence[StoredEvent],
    *,
    held_back: bool,
    joined: Mapping[int, int] = NO_JOINS,
) -> GuardedRead:
    """Answer with the chain if the partition may, else with the first reason of spec 2.6.

    Args:
        partition: The record, None when the store has never heard of the execution.
        stored: Its rows in ascending exec_seq.
        held_back: Rows of it are delivered and not stored, or its log must be read again,
            or a changed body awaits judgement.  The comparator's own read passes False: it
            answers for the log that was just read.
        joined: For each root that may stand behind a tip, that tip (`rejoin.predecessors`).

    Raises:
        PartitionUnreadable: watermark or coverage is torn (rows 2 and 5); no row asks for the label.

    Source: spec 2.6, rows in order.
    """
    events = tuple([row.event for row in stored])
    columns = Columns(
        [row.exec_seq for row in stored],
        [event.event_id for event in events],
        [event.prev_event_id for event in events],
    )
    return answered(partition, columns, events, held_back=held_back, joined=joined)


def answered(
    partition: Partition | Claim | None,
    columns: Columns,
    events: tuple[Event, ...],
    *,
    held_back: bool,
    joined: Mapping[int, int] = NO_JOINS,
) -> GuardedRead:
    """`guarded_read` for rows whose columns are at hand already."""
    if partition is not None and partition.torn is not None and partition.torn.what != "label":
        check_whole(partition)
    reason = _first_reason(partition, columns, held_back=held_back, joined=joined)
    return GuardedRead(events, None) if reason is None else GuardedRead(None, reason)


def check_whole(partition: Partition | Claim) -> None:
    """Refuse a torn record.

    Raises:
        PartitionUnreadable: it is one.
    """
    if partition.torn is not None:
        raise PartitionUnreadable(
            f"the {partition.torn.what} of execution {partition.execution_id} is malformed",
            hint="somebody else wrote into the store: keep the file, rebuild this partition from the log",
        )


def _first_reason(
    partition: Partition | Claim | None, columns: Columns, *, held_back: bool, joined: Mapping[int, int]
) -> Reason | None:
    if partition is None or partition.watermark is None:
        return Reason.NOT_POPULATED
    if partition.head_seq != partition.watermark.through:
        return Reason.WATERMARK_MISMATCH
    if held_back:
        return Reason.ROWS_HELD_BACK
    if partition.coverage is None:
        return Reason.NO_COVERAGE
    if len(columns.ids) != partition.coverage.total:
        return Reason.COVERAGE_TOTAL_MISMATCH
    root = columns.ids[0] if columns.ids else None
    if root != partition.coverage.root_event_id:
        return Reason.COVERAGE_ROOT_MISMATCH
    if not _one_to_n(columns.places) or not links_hold(columns, joined):
        return Reason.CHAIN_GAP
    return None


def is_contiguous(stored: Sequence[StoredEvent]) -> bool:
    """Whether the sequences are exactly 1..n."""
    return _one_to_n([row.exec_seq for row in stored])


def _one_to_n(places: Sequence[int]) -> bool:
    return list(places) == list(range(1, len(places) + 1))


def links_hold(columns: Columns, joined: Mapping[int, int] = NO_JOINS) -> bool:
    """Whether each stored edge names the row before it, and the first names none.

    Args:
        joined: A root names none, wherever it stands; this says behind which row it may.
    """
    named, before = list(columns.named), [None, *columns.ids][:-1]
    # Nearly every chain needs no join, and two lists are compared faster than their items in turn.
    return named == before or all(
        edge == tip or (edge is None and joined.get(event_id) == tip)
        for event_id, edge, tip in zip(columns.ids, named, before, strict=True)
    )


def revoked(partition: Partition, reason: str, at: int) -> Partition:
    """Withdraw coverage; events and watermark stay as evidence.  Source: spec 2.9."""
    return replace(partition, coverage=None, revoked_reason=reason, revoked_at=at)


def labelled(partition: Partition, label: str, at: int) -> Partition:
    """Set an absorbing label and revoke.  A label already set stays.  Source: spec 2.12 step 3."""
    if partition.label is not None:
        return partition
    return replace(revoked(partition, label, at), label=label, labelled_at=at)


def placed(partition: Partition, event: Event, exec_seq: int, now: int) -> Partition:
    """The record after `event` was put at `exec_seq`; it claims nothing more than before.

    The head moves only forward, so that a late row of a replica leaves it.  The anchor spoke of
    the old head.  Source: spec 2.3.
    """
    after = replace(
        partition,
        parent_execution_id=event.parent_execution_id if exec_seq == 1 else partition.parent_execution_id,
        terminal=partition.terminal or event.is_terminal,
        last_change_at=now,
    )
    if exec_seq <= partition.head_seq:
        return after
    return replace(
        after,
        head_seq=exec_seq,
        head_event_id=event.event_id,
        head_anchor=None,
        head_epoch=None,
        head_commit_lsn=None,
    )


def advanced(current: Watermark | None, through: int) -> Watermark:
    """The marker of the per-event path: it ends at `through`.

    It begins where it began; an empty one names no sequence to begin at.  Source: spec 2.4.
    """
    return Watermark((current.first if current else 0) or through, through)


def widened(current: Watermark | None, exec_seq: int) -> Watermark:
    """The marker of the replicated path: it takes `exec_seq` in, in either direction.

    Source: spec 2.4.
    """
    if current is None or not current.first:
        return Watermark(exec_seq, exec_seq)
    return Watermark(min(current.first, exec_seq), max(current.through, exec_seq))
