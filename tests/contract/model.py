"""The chain store as plain dicts: spec section 2 written down once more, from its tables.

It shares the names of values with the program and none of its decisions, so that the same
suite over both says more than that the program agrees with itself.  Everything is slow and
obvious; a call works on a copy and the copy takes the old one's place when the call is good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sidecar.core.authority import Coverage, GuardedRead, Partition, Reason, StoredEvent, Watermark
from sidecar.core.due import Due
from sidecar.core.event import Event
from sidecar.core.evidence import Finding
from sidecar.core.horizon import Cursor
from sidecar.core.links import Ordered, order_by_links
from sidecar.core.populate import Diverged, InSync, LogRead, Outcome, Refused, StaleLog, Unreadable
from sidecar.core.ports import EpochSpan, ExecutionLog, Key, Populated
from sidecar.core.rejoin import Join
from sidecar.errors import Forked, GapAt, Invalid, NotHead, PartitionUnreadable, StoreError
from sidecar.store.findings import Kept


@dataclass
class Shelf:
    """Everything that is kept.

    `unreadable`: no record can be read.
    """

    partitions: dict[int, Partition] = field(default_factory=dict)
    rows: dict[int, dict[int, StoredEvent]] = field(default_factory=dict)
    due: dict[int, Due] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    epochs: dict[str, tuple[int, int]] = field(default_factory=dict)
    shards: dict[int, int] = field(default_factory=dict)
    gseq: int = 0
    unreadable: bool = False
    states: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    findings: list[Kept] = field(default_factory=list)
    commits: dict[Key, int] = field(default_factory=dict)
    joins: dict[Key, Join] = field(default_factory=dict)

    def copy(self) -> Shelf:
        return Shelf(
            dict(self.partitions),
            {e: dict(rows) for e, rows in self.rows.items()},
            dict(self.due),
            dict(self.cursors),
            dict(self.epochs),
            dict(self.shards),
            self.gseq,
            self.unreadable,
            dict(self.states),
            list(self.findings),
            dict(self.commits),
            dict(self.joins),
        )

    def joins_of(self, e: int) -> tuple[Join, ...]:
        kept = [each for (of, _), each in self.joins.items() if of == e]
        return tuple(sorted(kept, key=lambda each: (each.joined_at, each.root_event_id)))

    # Findings

    def note(self, found: Finding, now: int) -> None:
        """One open finding of a kind; an acknowledged one stands for its place alone."""
        for number, known in enumerate(self.findings):
            place = (known.position, known.log_event, known.store_event)
            same = (known.execution_id, known.verdict, known.kind, known.resolved_at) == (
                found.execution_id,
                found.verdict,
                found.kind,
                None,
            )
            here = place == (found.position, _text(found.log_event_id), _text(found.store_event_id))
            if not same or found.settled or (not here and (found.each_place or known.acknowledged_at)):
                continue
            self.findings[number] = replace(_kept(found, known.finding_id, now), found_at=known.found_at)
            return
        self.findings.append(_kept(found, len(self.findings) + 1, now))

    def resolve(self, e: int, now: int) -> None:
        self.findings = [
            replace(each, resolved_at=now) if each.execution_id == e and each.resolved_at is None else each
            for each in self.findings
        ]

    # Reading

    def record(self, e: int) -> Partition | None:
        """For one call alone, which a torn record ends."""
        p = self.any_record(e)
        if p is not None and p.torn is not None:
            raise PartitionUnreadable("half a marker")
        return p

    def any_record(self, e: int) -> Partition | None:
        """For a unit, which goes on with the others."""
        if self.unreadable:
            raise StoreError("the records cannot be read")
        return self.partitions.get(e)

    def chain(self, e: int) -> tuple[StoredEvent, ...]:
        return tuple(row for _, row in sorted(self.rows.get(e, {}).items()))

    def find(self, e: int, event_id: int) -> StoredEvent | None:
        return next((row for row in self.chain(e) if row.event.event_id == event_id), None)

    def guarded(self, e: int, *, ignore_held: bool = False) -> GuardedRead:
        """Spec 2.6, one `if` a row."""
        p, chain = self.record(e), self.chain(e)
        reason = None
        if p is None or p.watermark is None:
            return GuardedRead(None, Reason.NOT_POPULATED)
        due = self.due.get(e)
        waits = p.held > 0 or (due is not None and (due.reread, due.changed) != (None, None))
        if p.head_seq != p.watermark.through:
            reason = Reason.WATERMARK_MISMATCH
        elif waits and not ignore_held:
            reason = Reason.ROWS_HELD_BACK
        elif p.coverage is None:
            reason = Reason.NO_COVERAGE
        elif p.coverage.total != len(chain):
            reason = Reason.COVERAGE_TOTAL_MISMATCH
        elif p.coverage.root_event_id != (chain[0].event.event_id if chain else None):
            reason = Reason.COVERAGE_ROOT_MISMATCH
        elif not numbered(chain) or not linked(chain):
            reason = Reason.CHAIN_GAP
        return GuardedRead(None, reason) if reason else GuardedRead(tuple(r.event for r in chain), None)

    def walk(self, e: int) -> tuple[StoredEvent, ...]:
        p = self.record(e)
        steps: list[StoredEvent] = []
        wanted = None if p is None else p.head_event_id
        while wanted is not None:
            row = self.find(e, wanted)
            if row is None:
                raise GapAt(e, wanted)
            if row in steps:
                raise Invalid("a circle")
            steps.append(row)
            wanted = row.event.prev_event_id
        return tuple(steps)

    def is_complete(self, e: int) -> bool:
        p = self.record(e)
        span = max([0, *self.rows.get(e, {}), p.head_seq if p else 0])
        try:
            return len(self.walk(e)) == span
        except (GapAt, Invalid):
            return False

    # Single events

    def put(self, event: Event, seq: int, origin: str, now: int) -> None:
        rows = self.rows.setdefault(event.execution_id, {})
        if seq in rows or self.find(event.execution_id, event.event_id) is not None:
            raise Invalid("the key is taken: events are write-once")
        rows[seq] = StoredEvent(seq, event, origin, now)
        self.gseq += 1
        p = self.record(event.execution_id) or Partition(event.execution_id)
        if seq == 1:
            p = replace(p, parent_execution_id=event.parent_execution_id)
        if seq > p.head_seq:
            p = replace(p, head_seq=seq, head_event_id=event.event_id, head_anchor=None, head_epoch=None)
            p = replace(p, head_commit_lsn=None)
        self.partitions[event.execution_id] = replace(
            p, terminal=p.terminal or event.is_terminal, last_change_at=now
        )

    def append(self, event: Event, now: int) -> int:
        p = self.record(event.execution_id) or Partition(event.execution_id)
        if p.head_event_id != event.prev_event_id:
            raise NotHead(p.head_event_id, event.prev_event_id)
        self.put(event, p.head_seq + 1, "append", now)
        return p.head_seq + 1

    def apply(self, event: Event, seq: int, now: int) -> None:
        same_key = self.find(event.execution_id, event.event_id)
        if same_key is not None and (same_key.exec_seq, same_key.event) == (seq, event):
            return
        there = same_key or self.rows.get(event.execution_id, {}).get(seq)
        if there is not None:
            raise Forked(event.execution_id, event.prev_event_id, there.event.event_id, event.event_id)
        self.put(event, seq, "replicated", now)

    def mark(self, e: int, first: int, through: int) -> None:
        p = self.record(e) or Partition(e)
        self.partitions[e] = replace(p, watermark=Watermark(first, through))

    # A whole log

    def populate(self, log: ExecutionLog) -> Populated:
        assert log.events is not None
        e, read = log.execution_id, log.read
        before = self.any_record(e) or Partition(e)
        if before.torn is not None:
            failed = Unreadable(before.torn.what)
            return Populated(failed, order_by_links(log.events), before, (), written=False, cleared_bar=False)
        stored = self.chain(e)
        label, events = ordered(log.events)
        outcome = judged(stored, label, events, delivered=before.first_seen_at is not None)
        ids = {event.event_id for event in log.events}
        absent = tuple(row for row in stored if row.event.event_id not in ids)
        order = Ordered(tuple(events)) if label == "ordered" else order_by_links(log.events)
        bars = [at for at in (before.revoked_at, before.labelled_at) if at is not None]
        if any(read.began_at <= at for at in bars):
            said = outcome if before.label is None else Refused(before.label)
            return Populated(said, order, before, absent, written=False, cleared_bar=False)
        written = isinstance(outcome, InSync | Diverged)
        after = before
        if isinstance(outcome, Diverged):
            after = replace(before, coverage=None)
        elif isinstance(outcome, InSync):
            for seq, event in enumerate(events, start=1):
                if seq > len(stored):
                    self.put(event, seq, "log", read.began_at)
            after = agreed(self.record(e) or before, before, events, read, fresh=outcome.appended > 0)
        if after != before or e in self.partitions:
            self.partitions[e] = after
        cleared = bool(bars or before.label) and isinstance(outcome, InSync)
        return Populated(outcome, order, after, absent, written=written, cleared_bar=cleared)


def agreed(
    put: Partition, before: Partition, events: Sequence[Event], read: LogRead, *, fresh: bool
) -> Partition:
    """Rows 2 and 6-8: the marker spans the log, coverage is claimed, bars fall."""
    clean = replace(put, revoked_reason=None, revoked_at=None, label=None, labelled_at=None)
    if not events:
        return replace(clean, watermark=Watermark(0, 0), coverage=Coverage(None, 0))
    coverage = Coverage(events[0].event_id, len(events))
    had = before.coverage
    if had is not None and had.root_event_id == coverage.root_event_id and had.total > coverage.total:
        coverage = had
    known_head = not fresh and read.epoch is not None and before.head_epoch == read.epoch
    anchor = before.head_anchor if known_head and before.head_anchor is not None else read.anchor
    return replace(
        clean,
        parent_execution_id=events[0].parent_execution_id,
        head_seq=len(events),
        head_event_id=events[-1].event_id,
        watermark=Watermark(1, len(events)),
        coverage=coverage,
        head_epoch=read.epoch,
        head_anchor=anchor,
        head_commit_lsn=before.head_commit_lsn if known_head else None,
    )


def judged(stored: Sequence[StoredEvent], label: str, log: Sequence[Event], *, delivered: bool) -> Outcome:
    """The table of spec 2.8."""
    if label != "ordered":
        return Refused(label)
    if not numbered(stored):
        return Refused("store_gap")
    if not stored and not log and delivered:
        return Refused("log_pruned")
    for position in range(min(len(stored), len(log))):
        ours, theirs = stored[position].event, log[position]
        if ours.event_id != theirs.event_id:
            return Diverged(position, "conflict", ours, theirs)
        if ours.parent_execution_id != theirs.parent_execution_id:
            return Diverged(position, "parent", ours, theirs)
        if ours.prev_event_id != theirs.prev_event_id:
            return Diverged(position, "edge", ours, theirs)
        if (ours.body, ours.event_type) != (theirs.body, theirs.event_type):
            return Diverged(position, "payload", ours, theirs)
    if len(stored) > len(log):
        return StaleLog(len(stored), len(log))
    return InSync(len(log), len(log) - len(stored))


def ordered(rows: Sequence[Event]) -> tuple[str, list[Event]]:
    """The table of spec 2.7: the first fault by its label, else the order."""
    ids = [row.event_id for row in rows]
    prevs = [row.prev_event_id for row in rows if row.prev_event_id is not None]
    roots = [row for row in rows if row.prev_event_id is None]
    faults = {
        "duplicate_event": len(set(ids)) < len(ids),
        "dangling_prev": bool(set(prevs) - set(ids)),
        "no_root": bool(rows) and not roots,
        "multiple_roots": len(roots) > 1,
        "fork": len(set(prevs)) < len(prevs),
    }
    for label, found in faults.items():
        if found:
            return label, []
    chain = list(roots)
    while follower := [row for row in rows if chain and row.prev_event_id == chain[-1].event_id]:
        chain += follower
    return ("ordered", chain) if len(chain) == len(rows) else ("unreachable", [])


def numbered(chain: Sequence[StoredEvent]) -> bool:
    return [row.exec_seq for row in chain] == list(range(1, len(chain) + 1))


def linked(chain: Sequence[StoredEvent]) -> bool:
    return [row.event.prev_event_id for row in chain] == [None, *(row.event.event_id for row in chain)][:-1]


def spans(shelf: Shelf) -> tuple[EpochSpan, ...]:
    found = sorted(shelf.epochs.items(), key=lambda item: (item[1][0], item[0]))
    return tuple(EpochSpan(epoch, first, last) for epoch, (first, last) in found)


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _kept(found: Finding, number: int, now: int) -> Kept:
    return Kept(
        number,
        found.execution_id,
        found.verdict,
        found.kind,
        found.position,
        found.detail,
        _text(found.log_event_id),
        _text(found.store_event_id),
        None if found.evidence is None else dict(found.evidence),
        now,
        now if found.settled else None,
        None,
        None,
    )
