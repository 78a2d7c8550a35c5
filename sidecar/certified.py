"""Where stored events meet the certificate: handed to the store and the roller by one function.

Every row that the line stores goes through `populate` or `append` here, so nothing can be
stored unobserved.  The roller moves when the transaction commits, before the next one begins:
a transaction that is rolled back was never seen.  A fold reads the store's guarded chain in one
hold with the roller, so what was folded and what was observed are the same thing.

With the gate off nothing is observed and nothing is counted; a fold is a fold.

Source: spec 4.4, 4.5, 4.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from sidecar.core.authority import Partition, Reason, StoredEvent
from sidecar.core.certificate import Certificate, Certificates, Decision, Reconciled, Roller, Tally
from sidecar.core.digest import document
from sidecar.core.due import SECOND, Due
from sidecar.core.event import Event
from sidecar.core.jsonvalue import Json
from sidecar.core.misses import Watched, WatchList
from sidecar.core.populate import Diverged, InSync
from sidecar.core.ports import Batch, Clock, ExecutionLog, Key, Populated, Store, Unit
from sidecar.core.rejoin import InOrder
from sidecar.core.state import WorkflowState
from sidecar.core.workflow import Fold

LIVE: Final = frozenset({"live", "wal"})
"""The lanes that hand over everything new, each of its source."""
WAITING_MAX: Final = 200_000
"""Rows remembered that the live lane delivered and that wait in a pool: bounds memory only."""

Waits = Callable[[int, int], bool]
"""Whether a row, by execution and event id, waits in a pool."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of one execution, or why there is none.

    `decision`: None with the gate off.  `certificate`: of the chain that `state` is the fold of;
    None where it may not be certified.  `reason`: why the store does not answer; then there is no
    state.  `unreadable`: events that the fold could not read and the state lacks; such a state is
    never cached.
    """

    execution_id: int
    state: WorkflowState | None = None
    decision: Decision | None = None
    certificate: Certificate | None = None
    reason: Reason | None = None
    unreadable: tuple[int, ...] = ()

    def document(self) -> dict[str, Json]:
        """JSON values for `jsonvalue.rendered`; ids are decimal strings."""
        made = self.certificate
        return {
            "execution_id": str(self.execution_id),
            "state": None if self.state is None else document(self.state, ids_as_text=True),
            "decision": None if self.decision is None else self.decision.value,
            "certificate": None if made is None else {"n": made.n, "digest": made.digest},
            "reason": None if self.reason is None else self.reason.value,
            "unreadable": [str(event_id) for event_id in self.unreadable],
        }


class Certified:
    """Certificates over one store.  Used only inside its units, and from one event loop.

    Args:
        on: The gate NOETL_CHAIN_CERT.
        live_window: Microseconds; how far back the live lane looks.
    """

    def __init__(self, clock: Clock, *, on: bool, live_window: int = 60 * SECOND) -> None:
        self.on = on
        self._clock = clock
        self._live_window = live_window
        self._certificates = Certificates[WorkflowState]()
        self._watched = WatchList()
        self._waiting: dict[Key, None] = {}
        self._since = 0
        self._tree = ""

    async def begin(self, store: Store) -> None:
        """Go on where the process before ended.

        Rows written before its last live poll may have been shown to it alone, and what it knew
        of rows that waited has gone with it: of these nothing is asked.

        Raises:
            StoreError: the cursors could not be read.
        """
        cursors = await store.cursors()
        self._since = max((each.polled_at for lane, each in cursors.items() if lane in LIVE), default=0)

    @property
    def tracked(self) -> int:
        return len(self._certificates)

    def take(self) -> Tally:
        """What happened since the last call."""
        return self._certificates.take()

    # Events on their way into the store

    async def populate(self, unit: Unit, logs: Sequence[ExecutionLog], *, lane: str) -> dict[int, Populated]:
        """`Unit.populate`, observed.

        Args:
            lane: Whose batch it is; `comparator` for the comparator's own read.
        """
        populated = await unit.populate(logs)
        if self.on and populated:
            dues = {} if lane in LIVE else await unit.due(populated.keys())
            epochs = {log.execution_id: log.read.epoch for log in logs}
            unit.on_commit(partial(self._observe_populated, populated, dues, epochs, lane))
        return populated

    def append(self, unit: Unit, partition: Partition, rows: Sequence[StoredEvent], *, lane: str) -> None:
        """`Unit.append` of one execution's rows, observed.

        Args:
            partition: As it stands with the rows.
        """
        unit.append(rows)
        if self.on:
            unit.on_commit(partial(self._observe_appended, partition, rows, lane))

    def emitted(self, unit: Unit, batch: Batch, waits: Waits) -> None:
        """`unit` commits the last of `batch`: what the live lane has shown is no longer awaited."""
        if self.on and batch.lane in LIVE:
            unit.on_commit(partial(self._emitted, batch, waits))

    def _observe_populated(
        self,
        populated: Mapping[int, Populated],
        dues: Mapping[int, Due],
        epochs: Mapping[int, str | None],
        lane: str,
    ) -> None:
        for i, done in populated.items():
            if isinstance(done.outcome, Diverged):
                self._certificates.forget(i)
            new, first = _new(done)
            if not new:
                continue
            self._observe(i, first, new, ended=done.partition.terminal)
            due = dues.get(i)
            asked_again = done.cleared_bar or (due is not None and due.reread is not None)
            if lane not in LIVE and first > 1 and not asked_again:
                self._watch(new, epochs.get(i))

    def _observe_appended(self, partition: Partition, rows: Sequence[StoredEvent], lane: str) -> None:
        if partition.label is not None or partition.revoked_at is not None:
            self._certificates.forget(partition.execution_id)
        if not rows:
            return
        events = [row.event for row in rows]
        self._observe(partition.execution_id, rows[0].exec_seq, events, ended=partition.terminal)
        if lane not in LIVE:  # rows are appended behind a head, never to nothing
            self._watch(events, partition.head_epoch)

    def _observe(self, execution_id: int, first: int, events: Sequence[Event], *, ended: bool) -> None:
        if first == 1:  # the partition was empty: whatever was known of an earlier one is void
            self._certificates.forget(execution_id)
        self._certificates.observe(execution_id, first, [event.body for event in events], ended=ended)

    # Misses

    def _watch(self, events: Iterable[Event], epoch: str | None) -> None:
        now = self._clock.now()
        for event in events:
            key = (event.execution_id, event.event_id)
            if self._waiting.pop(key, key) is key:
                self._watched.watch(key, Watched(now, created_at(event.body), epoch))

    def _emitted(self, batch: Batch, waits: Waits) -> None:
        keys = [(row.event.execution_id, row.event.event_id) for row in batch.rows]
        self._watched.emitted(keys)
        self._waiting |= dict.fromkeys(key for key in keys if waits(*key))
        for key in tuple(islice(self._waiting, max(0, len(self._waiting) - WAITING_MAX))):
            del self._waiting[key]
        if batch.cursor is None:
            return
        # With another tree, or while it kept stored rows to itself, it may have passed rows by.
        moved, self._tree = batch.cursor.tree != self._tree, batch.cursor.tree
        if moved or batch.began_at is None:
            self._watched.clear()
            return
        floor = max(batch.server_now - self._live_window, self._since)
        for key in self._watched.polled(began_at=batch.began_at, floor=floor, epoch=batch.epoch):
            self._certificates.diverge(key[0])

    # Folds

    async def state(self, store: Store, execution_id: int) -> Answer:
        """The state of one execution, in a transaction of its own.

        Raises:
            StoreError: the store could not be read.
        """
        return await store.transact(lambda unit: self.rebuild_or_skip(unit, execution_id))

    async def rebuild_or_skip(self, unit: Unit, execution_id: int) -> Answer:
        """The cached state if the certificate says that it still is the state, else a fold."""
        decision = None
        if self.on:
            partition = (await unit.partitions((execution_id,))).get(execution_id)
            due = (await unit.due((execution_id,))).get(execution_id)
            if (skipped := self._skipped(execution_id, partition, due)).state is not None:
                return skipped
            decision = skipped.decision
        guarded = await unit.guarded_read(execution_id)
        if guarded.events is None:
            unit.on_commit(partial(self._certificates.forget, execution_id))
            return Answer(execution_id, decision=decision, reason=guarded.reason)
        ended = any(event.is_terminal for event in guarded.events)
        return self._folded(unit, execution_id, guarded.events, decision, ended=ended)

    def state_of(self, unit: Unit, done: Populated, due: Due | None, chain: Sequence[Event]) -> Answer:
        """The same for a chain that was read guarded in `unit` after the populate `done`."""
        i, decision = done.partition.execution_id, None
        if self.on:
            staged = [event.body for event in _new(done)[0]]
            if (skipped := self._skipped(i, done.partition, due, staged)).state is not None:
                return skipped
            decision = skipped.decision
        return self._folded(unit, i, chain, decision, ended=done.partition.terminal)

    def _skipped(
        self, execution_id: int, partition: Partition | None, due: Due | None, staged: Sequence[str] = ()
    ) -> Answer:
        """The cached state, or only the decision against it.

        Args:
            partition, due: The record as it stands in the running transaction.
            staged: Bodies that the transaction has appended.
        """
        made = self._certificates
        if partition is None:  # let go of, or never there
            made.forget(execution_id)
        held_back = _may_not_answer(partition, due) or self._moved(execution_id, partition, len(staged))
        decision = made.decide(execution_id, now=self._clock.now(), held_back=held_back, staged=staged)
        if decision is not Decision.SKIPPED:
            return Answer(execution_id, decision=decision)
        return Answer(execution_id, made.state(execution_id), decision, made.certificate(execution_id))

    def _moved(self, execution_id: int, partition: Partition | None, staged: int) -> bool:
        """Whether the record says another length than was observed: rows came past the roller."""
        observed = self._certificates.certificate(execution_id)
        return observed is not None and partition is not None and partition.head_seq != observed.n + staged

    def _folded(
        self, unit: Unit, execution_id: int, chain: Sequence[Event], decision: Decision | None, *, ended: bool
    ) -> Answer:
        fold = Fold(chain)
        if not self.on:
            return Answer(execution_id, fold.state, unreadable=fold.unreadable)
        if fold.state is None or fold.unreadable or ended:
            unit.on_commit(partial(self._certificates.forget, execution_id))
            return Answer(execution_id, fold.state, decision, unreadable=fold.unreadable)
        roller = Roller(event.body for event in chain)
        unit.on_commit(partial(self._keep, execution_id, roller, fold.state))
        return Answer(execution_id, fold.state, decision, roller.certificate)

    def _keep(self, execution_id: int, folded: Roller, state: WorkflowState) -> None:
        made, certificate = self._certificates, folded.certificate
        if made.reconcile(execution_id, folded) is Reconciled.DIVERGED or certificate is None:
            return
        made.record(execution_id, certificate, state, now=self._clock.now())


def _new(done: Populated) -> tuple[Sequence[Event], int]:
    """The events that a populate appended, and the position of the first."""
    outcome = done.outcome
    if not (done.written and isinstance(outcome, InSync) and isinstance(done.order, InOrder)):
        return (), 0
    before = outcome.total - outcome.appended
    return done.order.events[before:], before + 1


def _may_not_answer(partition: Partition | None, due: Due | None) -> bool:
    """Whether the roller stands still or the chain behind it may not be served.

    Source: spec 4.4 ("before row 1"); what a guarded read would ask of the record.
    """
    flagged = due is not None and (due.reread is not None or due.changed is not None)
    if flagged or partition is None:
        return flagged
    if partition.held > 0 or partition.label is not None or partition.revoked_at is not None:
        return True
    mark, cover = partition.watermark, partition.coverage
    return mark is None or cover is None or not mark.through == partition.head_seq == cover.total


class _Created(msgspec.Struct):
    timestamp: str


_CREATED: Final = msgspec.json.Decoder(_Created)


def created_at(body: str) -> int | None:
    """The row's created_at in microseconds since 1970 UTC; None when it cannot be told."""
    try:
        naive = datetime.fromisoformat(_CREATED.decode(body).timestamp)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError, ValueError):
        return None
    moment = naive if naive.tzinfo else naive.replace(tzinfo=UTC)
    whole = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * SECOND + whole.microseconds
