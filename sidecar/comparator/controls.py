"""Self-controls: before every tick the comparator judges chains whose verdicts are known.

One that must match, one with each kind of defect, and the ways out of a stale read, a second
root and a missing predecessor.  They go through the code that judges the real ones, with a
scripted log, on a scratch store, in one transaction that is taken back: nothing is kept, and
no counter of the real ones moves.

A comparator that swallows everything, a populate that agrees with everything, a resolution that
explains everything are seen here before their zero is believed.  With one unexpected result no
verdict of that tick can be relied on, so none is given.  A control that raises is unexpected.

The cases stand in `rehearsal`.  Source: spec 3.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from sidecar.comparator.loop import Comparator
from sidecar.comparator.nopools import NoPools
from sidecar.comparator.rehearsal import CONTROLS, Case, Control, Round
from sidecar.comparator.report import ControlReport, TickReport
from sidecar.core.authority import Coverage, GuardedRead, Partition, Watermark
from sidecar.core.due import Windows
from sidecar.core.horizon import Cursor
from sidecar.core.judge import REVOKING
from sidecar.core.populate import LogRead
from sidecar.core.ports import Clock, ExecutionLog, Key, Store, Unit
from sidecar.errors import StoreBusy, StoreFull

T = TypeVar("T")

CONTROL_NAMES: Final = tuple(control.name for control in CONTROLS)

EPOCH: Final = "control"
WINDOWS: Final = Windows()
"""Their lengths do not matter as long as nothing rehearsed outlasts them."""


class Controls:
    """Runs the controls on `scratch`, which holds nothing else and is left as it is."""

    def __init__(self, scratch: Store) -> None:
        self._scratch = scratch

    async def run(self) -> ControlReport:
        """Every control once.

        Raises:
            StoreFull, StoreBusy: the scratch store's disk; it says nothing of the comparator.
        """
        return ControlReport(await self._results(CONTROLS))

    async def _results(self, controls: Sequence[Control]) -> dict[str, str | None]:
        """Why a control's result was not the expected one by its name, None where it was."""
        task = asyncio.create_task(self._rehearsed(controls))
        try:
            await asyncio.wait({task})
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, StoreFull | StoreBusy):
            raise error
        if len(controls) == 1:
            return {controls[0].name: f"raised {type(error).__name__}"}
        # All in one transaction is cheap; which of them raised shows when each has its own.
        found: dict[str, str | None] = {}
        for control in controls:
            found |= await self._results((control,))
        return found

    async def _rehearsed(self, controls: Sequence[Control]) -> dict[str, str | None]:
        results: dict[str, str | None] = {}

        async def play(unit: Unit) -> None:
            results.update(await _Stage(controls, unit, self._scratch).play())
            raise _TakenBack

        with suppress(_TakenBack):
            await self._scratch.transact(play)
        return results


class _TakenBack(Exception):
    """How a rehearsal ends: its transaction is rolled back."""


class _Stage:
    """Controls played side by side inside one unit, each case as an execution of its own."""

    def __init__(self, controls: Sequence[Control], unit: Unit, scratch: Store) -> None:
        self._controls = controls
        cases = [case for control in controls for case in control.cases]
        self._cases = dict(enumerate(cases, start=1))
        self._unit = unit
        self._clock = scratch.clock
        self._log = _ScriptedLog(self._cases, unit, scratch.clock)
        served = {i: case.serve for i, case in self._cases.items() if case.serve is not None}
        store = _OpenUnit(scratch, cast("Unit", _Misread(unit, served)))
        self._comparator = Comparator(store, self._log, NoPools(), WINDOWS)

    async def play(self) -> dict[str, str | None]:
        wrong: dict[int, str] = {}
        for i, case in self._cases.items():
            self._plant(i, case)
        for number in range(max(len(case.rounds) for case in self._cases.values())):
            playing = {i: case.rounds[number] for i, case in self._cases.items() if number < len(case.rounds)}
            wrong = await self._round(playing) | wrong
        results: dict[str, str | None] = {}
        ids = iter(self._cases)
        for control in self._controls:
            found = [wrong.get(next(ids)) for _ in control.cases]
            results[control.name] = next((why for why in found if why is not None), None)
        return results

    def _plant(self, execution_id: int, case: Case) -> None:
        now = self._clock.now()
        rows = tuple(case.stored(execution_id, now))
        record = Partition(execution_id, first_seen_at=now if case.young else None)
        if rows:
            self._unit.append(rows)
            record = Partition(
                execution_id,
                head_seq=len(rows),
                head_event_id=rows[-1].event.event_id,
                watermark=Watermark(1, len(rows)),
                coverage=Coverage(rows[0].event.event_id, len(rows)),
                first_seen_at=now if case.young else None,
            )
        self._unit.put_partition(record)

    async def _round(self, playing: Mapping[int, Round]) -> dict[int, str]:
        report = TickReport()
        self._log.open(playing)
        await self._comparator.judge(tuple(playing), report)
        records = await self._unit.partitions(playing)
        found = {judged.judgement.execution_id: judged for judged in report.judged}
        wrong: dict[int, str] = {}
        for i, expected in playing.items():
            if len(report.judged) != len(playing) or i not in found:
                wrong[i] = "no verdict, or more than one"
                continue
            judged, record = found[i], records[i]
            seen = (judged.judgement.verdict.value, *judged.judgement.kinds)
            told = (expected.verdict.value, *expected.kinds)
            revoked = expected.verdict.value if expected.verdict in REVOKING else None
            if seen != told:
                wrong[i] = f"{' '.join(seen)} for {' '.join(told)}"
            elif expected.met not in (None, judged.judgement.log_event_id):
                wrong[i] = "left to the axes by populate"
            elif judged.new_kinds != expected.kinds or record.counted_kinds != set(expected.kinds):
                wrong[i] = "counted other kinds than it found"
            elif (record.coverage is not None) != expected.served or record.revoked_reason != revoked:
                wrong[i] = "claims what its verdict does not allow"
            elif (reads := self._log.reads[i]) != len(expected.reads):
                wrong[i] = f"{reads} log reads for {len(expected.reads)}"
        return wrong


class _ScriptedLog:
    """A log that answers by the script of the round that is open."""

    def __init__(self, cases: Mapping[int, Case], unit: Unit, clock: Clock) -> None:
        self.reads: dict[int, int] = {}
        self._playing: Mapping[int, Round] = {}
        self._cases = cases
        self._unit = unit
        self._clock = clock

    def open(self, playing: Mapping[int, Round]) -> None:
        self._playing = playing
        self.reads = dict.fromkeys(playing, 0)

    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        return [self._answer(i) for i in execution_ids]

    def _answer(self, execution_id: int) -> ExecutionLog:
        script, number = self._playing[execution_id].reads, self.reads[execution_id]
        self.reads[execution_id] += 1
        if number:
            self._unit.append(tuple(self._cases[execution_id].grown(execution_id, self._clock.now())))
        read = LogRead(self._clock.now(), EPOCH)
        return ExecutionLog(execution_id, script[min(number, len(script) - 1)](execution_id), read)


class _Misread:
    """The unit, where what is read back of some executions is not what is stored."""

    def __init__(self, unit: Unit, served: Mapping[int, Callable[[Any], Any]]) -> None:
        self._unit = unit
        self._served = served

    async def guarded_read(self, execution_id: int, *, ignore_held: bool = False) -> GuardedRead:
        answer = await self._unit.guarded_read(execution_id, ignore_held=ignore_held)
        if answer.events is None or execution_id not in self._served:
            return answer
        return GuardedRead(self._served[execution_id](answer.events), None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._unit, name)


class _OpenUnit:
    """A store of which a transaction is open already: what is transacted happens in it."""

    def __init__(self, store: Store, unit: Unit) -> None:
        self._store = store
        self._unit = unit

    @property
    def clock(self) -> Clock:
        return self._store.clock

    @property
    def rejoining(self) -> bool:
        return self._store.rejoining

    async def transact(self, work: Callable[[Unit], Awaitable[T]]) -> T:
        return await work(self._unit)

    async def cursors(self) -> dict[str, Cursor]:
        return await self._store.cursors()

    async def due_now(self, now: int, limit: int) -> list[int]:
        return await self._store.due_now(now, limit)

    async def missing(self, keys: Sequence[Key]) -> list[Key]:
        return await self._store.missing(keys)

    async def sums(self, low: int, high: int) -> Mapping[int, tuple[int, int]]:
        return await self._store.sums(low, high)
