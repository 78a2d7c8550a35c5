"""The comparator's tick: work off what is due, a bounded batch at a time.

The log is read before a hold and never inside one; a hold never waits for Postgres.  A read
that fails is a verdict of its own and says nothing about the log.  Where stored rows are
absent from the read, exactly one re-read on the primary follows (spec 3.4).

Nor does one execution whose stored state cannot be read hide the others: the hold that met it
is taken apart, and what fails alone is judged as failed.  A store that fails as a whole raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from sidecar.certified import Certified
from sidecar.comparator.failed import Failed
from sidecar.comparator.hold import HoldUnit, Pools, by_execution
from sidecar.comparator.report import ControlReport, Held, TickReport
from sidecar.core.acceptance import Controls as ControlTotals
from sidecar.core.authority import StoredEvent
from sidecar.core.due import Windows
from sidecar.core.exclusion import NOBODY, Exclusion
from sidecar.core.ports import ExecutionLog, LogReader, Store, Unit
from sidecar.core.verdict import Verdict
from sidecar.errors import Invalid, PartitionUnreadable, SidecarError, SourceError

Entries = Mapping[int, tuple[StoredEvent, ...]]

EXECUTIONS_MAX = 64
ROWS_MAX = 10_000
"""What one log read and one hold may take; between two of them the feed has its turn."""


class SelfControls(Protocol):
    """`controls.Controls`, as far as a tick needs them."""

    async def run(self) -> ControlReport: ...


class Comparator:
    """Judges executions of the durable work list.

    Args:
        projecting: Final verdicts and folded states go to D3 (not in a one-shot verification).
        certified: Observes what is stored; None: nobody does.
        exclusion: Executions that are stored and get no verdict.
        advancing: Count the decision of spec 3.9 for every served chain.
        controls: Run before every tick; what they came to so far is in `control_totals`.
    """

    def __init__(
        self,
        store: Store,
        reader: LogReader,
        pools: Pools,
        windows: Windows,
        *,
        projecting: bool = False,
        certified: Certified | None = None,
        exclusion: Exclusion = NOBODY,
        advancing: bool = False,
        controls: SelfControls | None = None,
    ) -> None:
        self._store = store
        self._reader = reader
        self._pools = pools
        self._windows = windows
        self._projecting = projecting
        self._certified = certified or Certified(store.clock, on=False)
        self._exclusion = exclusion
        self._advancing = advancing
        self._controls = controls
        self.control_totals = ControlTotals()

    async def tick(self, tell: Callable[[TickReport], None] = lambda _: None) -> TickReport:
        """Judge everything that is due now, each execution at most once.

        Nothing is judged when a control failed: the report says which.

        Args:
            tell: Called with the controls, then with every batch: a divergence is counted once, so
                what stands is told also when the rest of its tick fails.

        Raises:
            StoreError: what was judged before it stands; the rest stays due.
        """
        report = TickReport()
        if self._controls is not None:
            report.controls = await self._controls.run()
            self.control_totals = report.controls.added_to(self.control_totals)
            tell(TickReport(controls=report.controls))
            if report.controls.unexpected:
                return report
        began = self._store.clock.now()
        done: set[int] = set()
        lingering = 0
        while True:
            # Entries that were judged in this tick and are due again stand in front.
            most = lingering + EXECUTIONS_MAX
            fetched = await self._store.due_now(began, most)
            fresh = [i for i in fetched if i not in done]
            lingering = len(fetched) - len(fresh)
            if not fresh and len(fetched) < most:
                break
            if not fresh:
                continue
            batch = await self._bounded(fresh)
            done.update(batch)
            part = TickReport()
            try:
                await self.judge(batch, part)
            finally:
                report.join(part)
                tell(part)
        return report

    async def judge(self, executions: Sequence[int], report: TickReport) -> None:
        """Read, hold, and where a question is open read once more and hold again."""
        logs = await self._read(executions, report)
        if logs:
            await self.judge_logs(logs, report)

    async def judge_logs(self, logs: Sequence[ExecutionLog], report: TickReport) -> None:
        """The same for log reads at hand."""
        if questions := await self._held(logs, None, report):
            await self._ask_again(questions, report)

    async def _held(
        self, logs: Sequence[ExecutionLog], entries: Entries | None, report: TickReport
    ) -> dict[int, tuple[StoredEvent, ...]]:
        """One hold, or one for each execution when something of one of them cannot be read.

        Each stands in the report when it is committed, whatever becomes of the next.

        Returns:
            The questions that are open afterwards.
        """
        try:
            held = await self._store.transact(self._hold(logs, entries))
        except (PartitionUnreadable, Invalid) as error:
            if len(logs) == 1:
                held = await self._failed((logs[0].execution_id,), Verdict.POPULATE_FAILED, error)
            else:
                questions: dict[int, tuple[StoredEvent, ...]] = {}
                for log in logs:
                    questions |= await self._held((log,), entries, report)
                return questions
        report.add(held)
        return held.questions

    def _hold(self, logs: Sequence[ExecutionLog], entries: Entries | None) -> HoldUnit:
        return HoldUnit(
            self._pools,
            self._certified,
            self._windows,
            self._store.clock,
            by_execution(logs),
            entries,
            projecting=self._projecting,
            exclusion=self._exclusion,
            advancing=self._advancing,
        )

    async def _ask_again(self, questions: dict[int, tuple[StoredEvent, ...]], report: TickReport) -> None:
        logs = await self._read(list(questions), report)
        if not logs:
            return
        entries = {log.execution_id: questions[log.execution_id] for log in logs}
        await self._held(logs, entries, report)

    async def _read(self, executions: Sequence[int], report: TickReport) -> Sequence[ExecutionLog]:
        """The logs; executions whose read failed get their verdict here and are left out.

        One execution that cannot be read must not hide the others, so a failed read of many
        is taken apart; two failures of single reads in a row mean that it is the server.
        """
        try:
            return await self._timed_read(executions, report)
        except SourceError as error:
            if len(executions) == 1:
                report.add(await self._failed(executions, Verdict.LOG_READ_FAILED, error))
                return ()
        logs: list[ExecutionLog] = []
        failures = 0
        for number, execution_id in enumerate(executions):
            try:
                logs += await self._timed_read([execution_id], report)
                failures = 0
            except SourceError as error:
                failures += 1
                rest = executions[number:] if failures == 2 else [execution_id]
                report.add(await self._failed(rest, Verdict.LOG_READ_FAILED, error))
                if failures == 2:
                    break
        return logs

    async def _timed_read(self, executions: Sequence[int], report: TickReport) -> Sequence[ExecutionLog]:
        began = self._store.clock.now()
        logs = await self._reader.read(executions)
        report.reads.append((self._store.clock.now() - began) / 1e6)
        return logs

    async def _failed(
        self,
        executions: Sequence[int],
        verdict: Literal[Verdict.LOG_READ_FAILED, Verdict.POPULATE_FAILED],
        error: SidecarError,
    ) -> Held:
        now = self._store.clock.now()
        return await self._store.transact(Failed(tuple(executions), verdict, str(error), now, self._windows))

    async def _bounded(self, executions: Sequence[int]) -> list[int]:
        """As many from the front as one read may take, by what the store knows of their size."""

        async def sizes(unit: Unit) -> dict[int, int]:
            partitions = await unit.partitions(executions)
            return {i: max(partition.rows_seen, partition.head_seq) for i, partition in partitions.items()}

        known = await self._store.transact(sizes)
        batch: list[int] = []
        rows = 0
        for i in executions:
            rows += known.get(i, 0)
            if batch and rows > ROWS_MAX:
                break
            batch.append(i)
        return batch
