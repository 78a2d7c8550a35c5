"""A log read failed: the verdict of that, which says nothing about the log."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.comparator.record import recorded
from sidecar.comparator.report import Held, Judged
from sidecar.core.authority import Partition
from sidecar.core.due import Windows, judged
from sidecar.core.exclusion import EXCLUDED
from sidecar.core.ports import Unit
from sidecar.core.verdict import Judgement, Verdict


@dataclass(frozen=True, slots=True)
class FailedRead:
    """The transaction that records `log_read_failed` for some executions."""

    executions: tuple[int, ...]
    detail: str
    now: int
    windows: Windows

    async def __call__(self, unit: Unit) -> Held:
        held = Held()
        dues = await unit.due(self.executions)
        partitions = await unit.partitions(self.executions)
        for i in self.executions:
            judgement = Judgement(i, Verdict.LOG_READ_FAILED, detail=self.detail)
            before = partitions.get(i) or Partition(i)
            # What was left out stays so until a log that can be read says otherwise.
            left_out = before.verdict == EXCLUDED
            partition, kinds = (before, ()) if left_out else recorded(before, judgement, self.now)
            unit.put_partition(partition)
            if (due := dues.get(i)) is not None:
                kept = judged(
                    due, judgement.verdict, read_began_at=self.now, now=self.now, windows=self.windows
                )
                if kept is not None:
                    unit.put_due(kept)
            if not left_out:
                held.judged.append(Judged(judgement, kinds))
            held.outcomes["log_read_failed"] += 1
        return held
