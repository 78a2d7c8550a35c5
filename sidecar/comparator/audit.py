"""The audit: the whole history of log and store, compared by sums, at low priority.

It finds what no tail can: a row changed or deleted below every horizon, a row that somebody
wrote into the store, a row or an execution that the store lacks.  It judges nothing by itself but
executions that nobody has judged and whose sums agree; what differs twice goes into the durable
work list, in the transaction that moves the round on, and the comparator reads it.

One step is one slice.  What it worked, it rests in proportion; a round begins at most once in its
time, and goes on where it stopped.  Source: design 3.4, spec 3.3, 3.4.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sidecar.comparator.pace import Pace
from sidecar.comparator.record import recorded
from sidecar.comparator.report import Judged
from sidecar.comparator.slices import Slice, SliceSize, pairs, slices
from sidecar.core.audit import Found, Look, Round, confirmed, found
from sidecar.core.digest import canonical_json
from sidecar.core.due import SECOND, News, Windows, noted
from sidecar.core.event import ID_MAX, ID_MIN, Event
from sidecar.core.exclusion import NOBODY, Exclusion
from sidecar.core.ports import AuditBook, Clock, LogSummer, StoredSummer, Unit
from sidecar.core.sums import NOTHING, StoredSums, sums_of
from sidecar.core.verdict import Judgement
from sidecar.core.workflow import Fold
from sidecar.errors import SourceUnavailable

SLICE_ROWS: Final = 4000
"""Rows of both sides together: some tens of milliseconds on either."""
LOOK_AGAIN_S: Final = 1.0
"""Between two looks at what differs: a lane has stored by then what was under way."""


@dataclass(slots=True)
class AuditReport:
    """What one step came to.

    `rest_s`: what the caller has to wait before the next one.  `progress`: the part of the
    round that is done, 0 to 1.  `finished_at`: when a round was last finished, None for never;
    the store's clock.
    """

    equal: int = 0
    different: int = 0
    read: int = 0
    compared: int = 0
    judged: list[Judged] = field(default_factory=list)
    rest_s: float = 0.0
    progress: float = 0.0
    finished_at: int | None = None


@dataclass(frozen=True, slots=True)
class _Open:
    """A slice whose second look is still to come."""

    cut: Slice
    equal: tuple[int, ...]
    by_sums: dict[int, StoredSums]
    forgotten: tuple[int, ...]
    known: int
    first: dict[int, Look]


class Audit:
    """Walks round after round; `step` is called by one loop.

    Args:
        pace: How much of the time it may take.
        round_us: A round begins at most once in so many microseconds.
        exclusion: Executions that are left alone.
    """

    def __init__(
        self,
        log: LogSummer,
        store: StoredSummer,
        book: AuditBook,
        clock: Clock,
        windows: Windows,
        pace: Pace,
        *,
        round_us: int,
        exclusion: Exclusion = NOBODY,
    ) -> None:
        self._log = log
        self._store = store
        self._book = book
        self._clock = clock
        self._windows = windows
        self._pace = pace
        self._round_us = round_us
        self._exclusion = exclusion
        self._size = SliceSize(SLICE_ROWS)
        self._round: Round | None = None
        self._finished_at: int | None = None
        self._cuts: AsyncGenerator[Slice, None] | None = None
        self._open: _Open | None = None
        self._too_slow: set[int] = set()
        self._done = self._total = 0

    async def step(self) -> AuditReport:
        """Take one slice, or the second look at one.

        Raises:
            SourceError, StoreError: nothing was moved; the next step begins at the slice again.
        """
        with self._pace.working():
            try:
                report = await self._step()
            except BaseException:
                await self._begin_again()
                raise
        report.rest_s += self._pace.rest()
        report.finished_at = self._finished_at
        return report

    async def _step(self) -> AuditReport:
        if self._round is None:
            self._round, self._finished_at = await self._book.latest()
            await self._counted()
        due_at = self._due_at(self._round)
        now = self._clock.now()
        if now < due_at:
            return AuditReport(progress=1.0, rest_s=(due_at - now) / SECOND)
        if self._round is None or self._round.finished_at is not None:
            number = 1 if self._round is None else self._round.number + 1
            self._round = Round(number, None, now)
            await self._counted()
        if self._open is not None:
            return await self._looked_again(self._round, self._open)
        cut = await self._next_cut(self._round)
        return await self._looked(self._round, cut)

    def _due_at(self, last: Round | None) -> int:
        """When there is something to do: at once in a round, else when the next may begin."""
        if last is None or last.finished_at is None:
            return 0
        return last.started_at + self._round_us

    async def _counted(self) -> None:
        after = self._round.after_id if self._round is not None else None
        self._total = await self._book.executions(ID_MAX)
        self._done = 0 if after is None else await self._book.executions(after)

    async def _next_cut(self, this: Round) -> Slice:
        if self._cuts is None:
            low = ID_MIN if this.after_id is None else this.after_id + 1
            self._cuts = slices(self._log, self._store, self._size, low, ID_MAX)
        return await anext(self._cuts)

    async def _begin_again(self) -> None:
        self._open = None
        if self._cuts is not None:
            await self._cuts.aclose()
            self._cuts = None

    async def _looked(self, this: Round, cut: Slice) -> AuditReport:
        looks = await self._not_left_out(await self._looks(cut))
        self._size.rows = min(SLICE_ROWS, 2 * self._size.rows)
        by_outcome = {
            outcome: [i for i, look in looks.items() if found(look) is outcome] for outcome in Found
        }
        opened = _Open(
            cut,
            equal=tuple(by_outcome[Found.EQUAL]),
            by_sums={i: looks[i].stored for i in by_outcome[Found.BY_SUMS]},
            forgotten=tuple(
                i
                for i in by_outcome[Found.EQUAL]
                if looks[i].standing.seen not in (None, looks[i].fingerprint)
            ),
            known=len(by_outcome[Found.DIFFERENT]),
            first={i: looks[i] for i in by_outcome[Found.READ]},
        )
        if not opened.first:
            return await self._saved(this, opened, {})
        self._open = opened
        return AuditReport(progress=self._progress(), rest_s=LOOK_AGAIN_S)

    async def _looks(self, cut: Slice) -> dict[int, Look]:
        """The first look at every execution of a slice."""
        alone = cut.executions[0] if len(cut.executions) == 1 else None
        if alone is not None and alone in self._too_slow:
            cut = replace(cut, truncated=cut.executions)
        try:
            both = await pairs(self._log, self._store, cut)
        except SourceUnavailable:
            # The slice may have been too much for its deadline; one execution that is, is read.
            self._size.halve(cut.rows)
            if alone is not None:
                self._too_slow.add(alone)
            raise
        standings = await self._book.standings([pair.execution_id for pair in both])
        return {p.execution_id: Look(p.log, p.stored, standings[p.execution_id]) for p in both}

    async def _not_left_out(self, looks: dict[int, Look]) -> dict[int, Look]:
        """Without what is left out by its path, as the store holds it."""
        if not self._exclusion:
            return looks
        starts = await self._store.starts(looks)
        return {
            i: look
            for i, look in looks.items()
            if i not in starts or not self._exclusion.covers((starts[i],))
        }

    async def _looked_again(self, this: Round, opened: _Open) -> AuditReport:
        logged = await self._log.of([i for i, look in opened.first.items() if look.log is not None])
        stored = await self._store.of(opened.first.keys())
        # After the sums: an entry that came meanwhile says that it is in flight.
        standings = await self._book.standings(opened.first.keys())
        again = {
            i: Look(
                None if opened.first[i].log is None else logged.get(i, NOTHING),
                stored.get(i, StoredSums()),
                standings[i],
            )
            for i in opened.first
        }
        outcomes = {i: confirmed(opened.first[i], look) for i, look in again.items()}
        read = {i: look for i, look in again.items() if outcomes[i] is Found.READ}
        opened = replace(
            opened,
            equal=(*opened.equal, *(i for i, outcome in outcomes.items() if outcome is Found.EQUAL)),
            by_sums=opened.by_sums
            | {i: again[i].stored for i, outcome in outcomes.items() if outcome is Found.BY_SUMS},
            known=opened.known + sum(outcome is Found.DIFFERENT for outcome in outcomes.values()),
        )
        return await self._saved(this, opened, read)

    async def _saved(self, this: Round, opened: _Open, read: dict[int, Look]) -> AuditReport:
        """Hand over, judge by sums, and move the round on, in one transaction."""
        differing = sum(look.log != look.stored.sums or not look.stored.whole for look in read.values())
        report = AuditReport(different=opened.known + differing, read=len(read))
        ended = opened.cut.high >= ID_MAX
        now = self._clock.now()

        async def work(unit: Unit) -> list[Judged]:
            await self._hand_over(unit, list(read), now)
            return await self._judge_by_sums(unit, opened.by_sums, now)

        moved = replace(
            this,
            after_id=opened.cut.high,
            finished_at=now if ended else None,
            executions=this.executions + len(opened.equal) + len(opened.by_sums) + report.different,
            differing=this.differing + report.different,
        )
        seen = {i: look.fingerprint for i, look in read.items() if i not in self._too_slow}
        report.judged = await self._book.save(moved, seen, opened.forgotten, work)
        report.compared = sum(judged.judgement.log_rows for judged in report.judged)
        report.equal = len(opened.equal) + len(opened.by_sums) + len(read) - differing
        self._round, self._open = moved, None
        self._done += len(opened.cut.executions)
        if ended:
            self._finished_at = now
            self._too_slow.clear()
            await self._begin_again()
        report.progress = 1.0 if ended else self._progress()
        return report

    def _progress(self) -> float:
        return min(1.0, self._done / self._total) if self._total else 0.0

    async def _hand_over(self, unit: Unit, read: Sequence[int], now: int) -> None:
        dues, partitions = await unit.due(read), await unit.partitions(read)
        for i in read:
            verdict_at = partitions[i].verdict_at if i in partitions else None
            # As rows that came now: a verdict whose log read began earlier does not answer it.
            due = noted(dues.get(i), i, News(rows=1), now=now, verdict_at=verdict_at, windows=self._windows)
            unit.put_due(replace(due, due_at=min(due.due_at, now)))

    async def _judge_by_sums(self, unit: Unit, by_sums: dict[int, StoredSums], now: int) -> list[Judged]:
        """A match for what nobody has judged, if what would be served now has these sums.

        What would not be served, or has no record at all, is the comparator's to read: equal rows
        that nobody can serve are no match, and without a verdict they would be asked for ever.
        """
        judged: list[Judged] = []
        unsaid: list[int] = []
        partitions, waiting = await unit.partitions(by_sums), await unit.due(by_sums)
        for i, stored in by_sums.items():
            partition = partitions.get(i)
            if i in waiting or (partition is not None and partition.verdict is not None):
                continue
            served = (await unit.guarded_read(i)).events
            if partition is None or not served or sums_of(served) != stored.sums:
                unsaid.append(i)
                continue
            rows = stored.sums.rows
            judgement = Judgement(i, stored.verdict, log_rows=rows, stored_rows=rows)
            partition, kinds = recorded(partition, judgement, now)
            unit.put_partition(partition)
            await unit.record_state(i, judgement.verdict.value, _folded(served))
            judged.append(Judged(judgement, kinds))
        await self._hand_over(unit, unsaid, now)
        return judged


def _folded(served: Sequence[Event]) -> str:
    """The folded state that D3 keeps beside a match; empty where an event of it could not be read."""
    fold = Fold(served)
    return "" if fold.state is None or fold.unreadable else canonical_json(fold.state)
