"""One log x one partition -> what populating it comes to, and the rows to append.

The plan is core's; this puts it together with the age of the read, and says which stored rows
the read lacks.  It writes nothing.  Source: spec 2.8, 2.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.core.authority import Partition, StoredEvent, is_contiguous
from sidecar.core.event import Event
from sidecar.core.populate import (
    Diverged,
    InSync,
    LogRead,
    Outcome,
    Refused,
    Unreadable,
    may_write,
    plan,
    populated,
)
from sidecar.core.ports import ExecutionLog, Populated
from sidecar.core.rejoin import InOrder, Joins, chain_order, is_withdrawn, parted, spoken_against
from sidecar.errors import invariant


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer, and what has to be written for it.  `new` in link order, behind the head."""

    result: Populated
    read: LogRead
    new: Sequence[Event]
    changed: bool


def settle(
    log: ExecutionLog,
    events: Sequence[Event],
    partition: Partition,
    stored: Sequence[StoredEvent],
    joins: Joins = (),
) -> Settled:
    """Decide one populate.

    Args:
        log: The log read.
        events: Its events, known to be complete.
        partition: The record as it stands, a fresh one when there is none.
        stored: The partition's rows in ascending exec_seq.
        joins: What is kept of the execution, withdrawn ones too.
    """
    invariant({e.execution_id for e in events} <= {log.execution_id}, "a log holds another execution's event")
    order = chain_order(events, joins)
    if partition.torn is not None:
        # Nothing is asked about its rows either: what stands beside the damage proves nothing.
        failed = Unreadable(partition.torn.what)
        unstored = _unstored(stored, events)
        return Settled(Populated(failed, order, partition, (), False, False, unstored), log.read, (), False)
    outcome = plan(
        [row.event for row in stored],
        order,
        delivered=partition.first_seen_at is not None,
        gap=not is_contiguous(stored),
    )
    absent = _absent(stored, events)
    kept = parted(joins, {row.event.event_id for row in stored} if joins else ())
    against, withdrawn = spoken_against(events, order, kept), is_withdrawn(events, order, kept)
    if not may_write(partition, log.read):
        outcome = Refused(partition.label) if partition.label is not None else outcome
        unstored = _unstored(stored, events)
        unwritten = Populated(outcome, order, partition, absent, False, False, unstored, against, withdrawn)
        return Settled(unwritten, log.read, (), False)
    ordered = order.events if isinstance(order, InOrder) else ()
    after = populated(partition, outcome, ordered, log.read)
    result = Populated(
        outcome,
        order,
        after,
        absent,
        isinstance(outcome, InSync | Diverged),
        _barred(partition) > _barred(after),
        frozenset() if isinstance(outcome, InSync) else _unstored(stored, events),
        against,
        withdrawn,
    )
    return Settled(result, log.read, _new(outcome, ordered), after != partition)


def _new(outcome: Outcome, ordered: Sequence[Event]) -> Sequence[Event]:
    if isinstance(outcome, InSync) and outcome.appended:
        return ordered[-outcome.appended :]
    return ()


def _unstored(stored: Sequence[StoredEvent], events: Sequence[Event]) -> frozenset[int]:
    have = {row.event.event_id for row in stored}
    return frozenset(event.event_id for event in events if event.event_id not in have)


def _absent(stored: Sequence[StoredEvent], events: Sequence[Event]) -> tuple[StoredEvent, ...]:
    if not stored:
        return ()
    present = {event.event_id for event in events}
    return tuple(row for row in stored if row.event.event_id not in present)


def _barred(partition: Partition) -> bool:
    return partition.label is not None or partition.revoked_at is not None
