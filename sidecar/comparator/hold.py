"""One hold: populate and guarded read of several executions in one transaction, then verdicts.

Releasing the store between populate and read lets the feed move the chain, and the
comparison would then be of two instants.  So everything that one verdict rests on happens
inside one unit: populate, the entry test of spec 3.4, guarded read, comparison, the pool's
steps, the record.  Source: spec 2.8 (atomicity), 2.12, 3.1-3.4.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from sidecar.certified import Answer, Certified
from sidecar.comparator.record import recorded, set_aside
from sidecar.comparator.report import Held, Judged
from sidecar.core.advance import decide
from sidecar.core.authority import GuardedRead, Partition, StoredEvent, is_contiguous
from sidecar.core.compare import Comparison, compare
from sidecar.core.digest import canonical_json, digest
from sidecar.core.due import Asked, Due, News, Ruled, Windows, updated
from sidecar.core.event import Event
from sidecar.core.evidence import Finding, finding, leaves_finding
from sidecar.core.exclusion import EXCLUDED, NOBODY, Exclusion
from sidecar.core.horizon import TailRow
from sidecar.core.judge import Hold, Ruling, judge, judge_absent
from sidecar.core.links import DanglingPrev, order_by_links
from sidecar.core.populate import InSync, StaleLog
from sidecar.core.ports import Clock, ExecutionLog, Populated, Unit, save_due
from sidecar.core.rejoin import InOrder
from sidecar.core.resolve import Explained, resolve
from sidecar.core.settle import Settled
from sidecar.core.verdict import RESOLVING, RETRY, Judgement, Kind, Verdict
from sidecar.core.workflow import fold

UNTOLD: Final = "rows are absent, and a partition was being attached or detached"


class Pools(Protocol):
    """The feed, as far as a hold needs it."""

    async def settle(
        self,
        unit: Unit,
        rows: Mapping[int, tuple[TailRow, ...]],
        logs: Mapping[int, ExecutionLog],
        populated: Mapping[int, Populated],
        *,
        epoch: str | None,
        now: int,
    ) -> dict[int, Settled]: ...

    def drop_pool(self, unit: Unit, execution_id: int) -> None: ...

    def pool(self, execution_id: int) -> Mapping[int, TailRow]: ...


@dataclass(frozen=True, slots=True)
class HoldUnit:
    """The transaction of one log read over several executions.

    `entries`: None in the first hold; in the second, the stored rows that were absent at
    the entry of spec 3.4, and `logs` is then the one re-read.  `projecting`: final verdicts
    and the folded states of what matched go to D3.  `exclusion`: what gets no verdict.
    `advancing`: for every served chain the decision of spec 3.9 is counted; nothing follows from it.
    """

    pools: Pools
    certified: Certified
    windows: Windows
    clock: Clock
    logs: Mapping[int, ExecutionLog]
    entries: Mapping[int, tuple[StoredEvent, ...]] | None = None
    projecting: bool = False
    exclusion: Exclusion = NOBODY
    advancing: bool = False

    async def __call__(self, unit: Unit) -> Held:
        now = self.clock.now()
        held = Held()
        untold = await self._untold(unit)
        resolved = await self._resolved(unit, untold)
        unread = resolved.keys() | untold
        readable = {i: log for i, log in self.logs.items() if log.events is not None and i not in unread}
        populated = await self.certified.populate(unit, list(readable.values()), lane="comparator")
        if self.entries is None:
            held.questions = {i: done.absent for i, done in populated.items() if done.absent}

        dues = await unit.due(self.logs.keys())
        aside = await self._left_out(unit)
        nowhere = Held()
        rulings: dict[int, Ruling] = {}
        for i, log in self.logs.items():
            if i in untold:
                rulings[i] = Ruling(Judgement(i, Verdict.LOG_READ_FAILED, detail=UNTOLD))
                held.outcomes["log_read_failed"] += 1
            elif i in resolved:
                rulings[i] = Ruling(resolved[i])
            elif log.events is None:
                rulings[i] = Ruling(Judgement(i, Verdict.LOG_TRUNCATED))
                held.outcomes["log_truncated"] += 1
            elif i not in held.questions:
                counting = nowhere if i in aside else held
                rulings[i] = await self._judged(unit, populated[i], log, dues.get(i), now, counting)
        self._count(populated, held)

        epoch = _epoch(self.logs)
        shown = {i: log for i, log in self.logs.items() if i not in unread}
        settled = await self.pools.settle(unit, {}, shown, populated, epoch=epoch, now=now)
        partitions = await unit.partitions(self.logs.keys())
        open_to_all = {i: ruling for i, ruling in rulings.items() if i not in aside}
        findings = await self._findings(unit, open_to_all, populated, partitions, now)
        for i, log in self.logs.items():
            partition = partitions.get(i) or Partition(i)
            news = settled[i].news if i in settled else News()
            if (ruling := rulings.get(i)) is not None:
                partition = partition if i in untold else _counted(partition, log, dues.get(i))
                if i in aside:
                    held.excluded += partition.verdict != EXCLUDED
                    partition = set_aside(partition, ruling.judgement, now)
                else:
                    partition, kinds = recorded(partition, ruling.judgement, now)
                    held.judged.append(Judged(ruling.judgement, kinds))
                    await self._project(unit, ruling.judgement, held.states.get(i, ""))
                unit.put_partition(partition)
                self._drop_pool(unit, ruling.judgement)
            done = populated.get(i)
            due = updated(
                dues.get(i),
                i,
                news,
                now=now,
                verdict_at=partition.verdict_at,
                windows=self.windows,
                asked=Asked(log.read.began_at) if done is None else done.asked(log.read),
                ruled=_ruled(ruling),
            )
            save_due(unit, i, dues.get(i), due)
        matched = [i for i, ruling in rulings.items() if ruling.judgement.verdict in RESOLVING]
        held.evidence_dropped = await unit.note_findings(findings, matched)
        for log in self.logs.values():
            if log.read.epoch is not None:
                await unit.see_epoch(log.read.epoch, log.read.began_at)
        return held

    async def _left_out(self, unit: Unit) -> frozenset[int]:
        if not self.exclusion:
            return frozenset()
        partitions = await unit.partitions(self.logs.keys())
        return frozenset(
            i
            for i, log in self.logs.items()
            if self.exclusion.covers(log.events, partitions[i].verdict if i in partitions else None)
        )

    async def _untold(self, unit: Unit) -> set[int]:
        """Executions of which rows are absent, or all, while the partition tree was moving."""
        moving = [i for i, log in self.logs.items() if not log.read.whole]
        return {i for i in moving if self.logs[i].untold(await unit.chain(i))}

    async def _resolved(self, unit: Unit, untold: Collection[int]) -> dict[int, Judgement]:
        """Spec 3.4 step 3, before the fresh read's link order is judged or anything is written."""
        if self.entries is None:
            return {}
        epochs = await unit.epochs()
        resolved: dict[int, Judgement] = {}
        for i, log in self.logs.items():
            if log.events is None or i in untold:
                continue
            chain = await unit.chain(i)
            fresh = {event.event_id for event in log.events}
            root = (chain or self.entries[i])[0].event.event_id
            answer = resolve(self.entries[i], fresh, root=root, epochs=epochs, read_epoch=log.read.epoch)
            if not isinstance(answer, Explained):
                resolved[i] = judge_absent(i, answer, log_rows=len(fresh), stored_rows=len(chain))
        return resolved

    async def _findings(
        self,
        unit: Unit,
        rulings: Mapping[int, Ruling],
        populated: Mapping[int, Populated],
        partitions: Mapping[int, Partition],
        now: int,
    ) -> list[Finding]:
        """Both sides as they stand in this hold, for every verdict that leaves a finding."""
        found = []
        for i, ruling in rulings.items():
            log = self.logs[i]
            if not leaves_finding(ruling.judgement.verdict) or log.events is None:
                continue
            order = populated[i].order if i in populated else order_by_links(log.events)
            partition = partitions.get(i) or Partition(i)
            stored = await unit.chain(i)
            kept = (await unit.joins((i,))).get(i, ())
            found.append(
                finding(ruling.judgement, log.events, log.read, order, stored, partition, now, joins=kept)
            )
        return found

    async def _judged(
        self, unit: Unit, done: Populated, log: ExecutionLog, due: Due | None, now: int, held: Held
    ) -> Ruling:
        guarded: GuardedRead | None = None
        comparison: Comparison | None = None
        if isinstance(done.outcome, InSync) and isinstance(done.order, InOrder):
            guarded = await unit.guarded_read(log.execution_id, ignore_held=True)
            held.authority[done.partition.authority.label] += 1
            if guarded.events is None:
                held.outcomes["guarded_read_refused"] += 1
            else:
                comparison = compare(guarded.events, done.order.events)
                held.compared += len(guarded.events)
                if self.advancing:
                    held.decisions[decide(guarded.events).label] += 1
                if self.projecting and comparison.holds:
                    answer = self.certified.state_of(unit, done, due, guarded.events)
                    comparison = _kept_state(comparison, answer, done, done.order.events)
                    held.states[log.execution_id] = _projected(answer)
        refused = not isinstance(done.order, InOrder)
        hold = Hold(
            populated=done,
            guarded=guarded,
            comparison=comparison,
            log_rows=len(log.events or ()),
            read_began_at=log.read.began_at,
            now=now,
            resolution=Explained() if done.absent else None,
            due=due,
            first_saw=self._first_saw(done, due),
            gap=refused and not is_contiguous(await unit.chain(log.execution_id)),
        )
        return judge(hold, self.windows)

    def _first_saw(self, done: Populated, due: Due | None) -> int | None:
        if isinstance(done.order, DanglingPrev):
            row = self.pools.pool(done.partition.execution_id).get(done.order.event_id)
            if row is not None:
                return row.seen_at
            if done.partition.revoked_reason == Verdict.REFUSED_DANGLING_PREV and done.partition.revoked_at:
                # Refused for this before: the window is over, a new row does not open it again.
                return done.partition.revoked_at - self.windows.dangling
            return None
        return None if due is None else due.first_seen_at

    def _count(self, populated: Mapping[int, Populated], held: Held) -> None:
        for i, done in populated.items():
            again = self.entries is not None and isinstance(done.outcome, StaleLog)
            held.outcomes["stale_log_unresolved" if again else done.outcome.label] += 1
            if done.written and isinstance(done.outcome, InSync) and isinstance(done.order, InOrder):
                new = done.order.events[done.outcome.total - done.outcome.appended :]
                pooled = self.pools.pool(i)
                held.found += sum(event.event_id not in pooled for event in new)

    async def _project(self, unit: Unit, judgement: Judgement, state: str) -> None:
        """Record a final verdict, and with a match the folded state of what was served.

        No state beside another verdict: a state that nobody may be served is none.
        """
        if not self.projecting or judgement.verdict in RETRY:
            return
        data = state if judgement.verdict in RESOLVING else ""
        await unit.record_state(judgement.execution_id, judgement.verdict.value, data)

    def _drop_pool(self, unit: Unit, judgement: Judgement) -> None:
        # After a match what is left in the pool came after the log read and still waits.
        if judgement.verdict not in RETRY | RESOLVING:
            self.pools.drop_pool(unit, judgement.execution_id)


STATE_SHARE: Final = 10
"""One change in so many has its state held against a fold of the log, and every terminal one."""


def _kept_state(
    comparison: Comparison, answer: Answer, done: Populated, ordered: Sequence[Event]
) -> Comparison:
    """The axis `state` where the events agree: what is given as their state against a fold of the log.

    `compare` takes the folds of both sides where the events differ; equal events fold to equal
    states, so behind them only a state that was kept, and not folded, can be another one.
    """
    asked = done.partition.terminal or (done.partition.execution_id + len(ordered)) % STATE_SHARE == 0
    if not asked or answer.state is None or answer.unreadable:
        return comparison
    fresh = fold(ordered)
    if fresh is not None and digest(fresh) == digest(answer.state):
        return comparison
    return replace(comparison, kinds=(*comparison.kinds, Kind.STATE), position=len(ordered) - 1)


def _projected(answer: Answer) -> str:
    """The state as D3 keeps it; empty where an event of it could not be read."""
    return "" if answer.state is None or answer.unreadable else canonical_json(answer.state)


def _ruled(ruling: Ruling | None) -> Ruled | None:
    if ruling is None:
        return None
    return Ruled(ruling.judgement.verdict, ruling.pending_key, ruling.pending_since)


def _counted(partition: Partition, log: ExecutionLog, due: Due | None) -> Partition:
    """The partition with as many rows seen as there are.

    A lane's count is an estimate: a row that a log read stored first does not count when it is
    delivered, and one that a lane delivers again after a restart counts again.  A complete
    log read that began after the last row says how many there are.
    """
    rows_came = due is not None and due.last_row_at is not None and due.last_row_at >= log.read.began_at
    if log.events is None or rows_came:
        return partition
    return replace(partition, rows_seen=len(log.events))


def _epoch(logs: Mapping[int, ExecutionLog]) -> str | None:
    """The epoch of these reads; None, and nothing is extended, when a restart lies between two."""
    epochs = {log.read.epoch for log in logs.values()}
    return epochs.pop() if len(epochs) == 1 else None


def by_execution(logs: Sequence[ExecutionLog]) -> dict[int, ExecutionLog]:
    return {log.execution_id: log for log in logs}
