"""The line of one execution in memory: a log, a tail, a pool, a partition, late log reads.

Only what the core decides is real here; each step keeps the order that the feed and the
comparator keep.  Every row that was delivered or stored is known; whatever is served must be
the link order of everything known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sidecar.core.authority import Partition, StoredEvent, guarded_read, labelled
from sidecar.core.event import Event
from sidecar.core.horizon import TailRow
from sidecar.core.intake import admit, advance, extended
from sidecar.core.links import ABSORBING_LABELS, Ordered, order_by_links
from sidecar.core.populate import InSync, LogRead, Outcome, Refused, may_write, plan, populated
from tests.unit.core.build import E, by_id, placed, tail


@dataclass
class Line:
    """`reads`: log reads on their way, taken at some moment and not yet written."""

    partition: Partition = field(default_factory=lambda: Partition(E))
    log: list[Event] = field(default_factory=list)
    stored: list[Event] = field(default_factory=list)
    pool: dict[int, TailRow] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    known: dict[int, Event] = field(default_factory=dict)
    reads: list[tuple[LogRead, tuple[Event, ...]]] = field(default_factory=list)
    reread: int | None = None
    epoch: int = 0
    clock: int = 0
    extensions: int = 0
    old_reads_refused: int = 0

    def now(self) -> int:
        self.clock += 1
        return self.clock

    # -- what can happen

    def commit(self, event: Event) -> None:
        self.log.append(event)

    def poll(self, most: int) -> None:
        new = [event for event in self.log if event.event_id not in self.delivered][:most]
        if not new:
            return
        if self.partition.first_seen_at is None:
            self.begin_read()
            self._populate(*self.reads.pop())
        self._take([tail(event, epoch=str(self.epoch), at=self.now()) for event in new])

    def begin_read(self) -> None:
        self.reads.append((LogRead(self.now(), str(self.epoch), 1), tuple(self.log)))

    def end_read(self) -> None:
        if self.reads:
            self._populate(*self.reads.pop(0))
            self._take([])

    def restart_sidecar(self) -> None:
        self.pool.clear()
        self.reads.clear()
        if self.partition.held:
            self.reread = self.now()

    def restart_server(self) -> None:
        """No row is lost; the lane has no horizon any more and delivers everything again."""
        self.epoch += 1
        self.reads.clear()
        self.delivered.clear()

    # -- what the program does

    def _take(self, rows: Sequence[TailRow]) -> None:
        now = self.now()
        for row in rows:
            self.delivered.add(row.event.event_id)
            self.known[row.event.event_id] = row.event
        stored = by_id(placed(self.stored))
        admitted = admit(self.partition, rows, stored)
        assert not admitted.changed
        if admitted.confirmed_head is not None:
            self.partition = replace(self.partition, head_epoch=admitted.confirmed_head.epoch)
        self.pool = {key: row for key, row in self.pool.items() if key not in stored}
        unpooled = self._pooled(admitted.fresh)
        self._step(stored, now)
        self.partition = replace(
            self.partition,
            held=len(self.pool) + unpooled,
            first_seen_at=self.partition.first_seen_at or now,
        )

    def _pooled(self, fresh: Iterable[TailRow]) -> int:
        missing = [key for key in self.known if key not in {event.event_id for event in self.stored}]
        if self.partition.label is None and self.partition.revoked_at is None:
            self.pool |= {row.event.event_id: row for row in fresh}
        else:
            self.pool.clear()
        return len([key for key in missing if key not in self.pool])

    def _step(self, stored: dict[int, StoredEvent], now: int) -> None:
        step = advance(
            self.partition,
            self.pool,
            stored,
            stored_rows=len(self.stored),
            max_seq=len(self.stored),
            epoch=str(self.epoch),
            reread=self.reread is not None,
            read_limit=1_000,
        )
        assert not step.conflict
        if step.label is not None:
            self.partition = labelled(self.partition, step.label, now)
            self.pool.clear()
        if step.run:
            self.extensions += 1
            self.stored += [row.event for row in step.run]
            self.partition = extended(self.partition, step.run, now)
            self.pool = {row.event.event_id: row for row in step.left}
        if step.wants_read:
            self.reread = now

    def _populate(self, read: LogRead, log: tuple[Event, ...]) -> None:
        outcome: Outcome = plan(self.stored, order_by_links(log))
        if not may_write(self.partition, read):
            self.old_reads_refused += 1
            return
        order = order_by_links(log)
        if isinstance(outcome, InSync) and isinstance(order, Ordered):
            self.partition = populated(self.partition, outcome, order.events, read)
            self.stored += order.events[len(self.stored) :]
            self.known |= {event.event_id: event for event in self.stored}
            if self.reread is not None and self.reread < read.began_at:
                self.reread = None
        if isinstance(outcome, Refused) and outcome.label in ABSORBING_LABELS:
            self.partition = labelled(self.partition, outcome.label, self.now())
            self.known |= {event.event_id: event for event in log}

    # -- what a reader gets

    def served(self) -> tuple[Event, ...] | None:
        held_back = self.partition.held > 0 or self.reread is not None
        return guarded_read(self.partition, placed(self.stored), held_back=held_back).events

    def check(self) -> None:
        served = self.served()
        if served is not None:
            assert order_by_links(self.known.values()) == Ordered(served)

    def drain(self) -> None:
        self.poll(len(self.log))
        self.check()
        for _ in range(2):
            self.begin_read()
            while self.reads:
                self.end_read()
                self.check()
