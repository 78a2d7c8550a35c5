"""A step failed: the verdict of that, which says nothing about the log or the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sidecar.comparator.record import recorded
from sidecar.comparator.report import Held, Judged
from sidecar.core.authority import Partition
from sidecar.core.due import Due, Windows, judged
from sidecar.core.exclusion import EXCLUDED
from sidecar.core.ports import Unit
from sidecar.core.verdict import Judgement, Verdict


@dataclass(frozen=True, slots=True)
class Failed:
    """The transaction that records a failure for some executions; all of them are tried again.

    Neither a log nor a chain is read in it.  The outcome that is counted has the verdict's name.
    """

    executions: tuple[int, ...]
    verdict: Literal[Verdict.LOG_READ_FAILED, Verdict.POPULATE_FAILED]
    detail: str
    now: int
    windows: Windows

    async def __call__(self, unit: Unit) -> Held:
        held = Held()
        dues = await unit.due(self.executions)
        partitions = await unit.partitions(self.executions)
        for i in self.executions:
            judgement = Judgement(i, self.verdict, detail=self.detail)
            before = partitions.get(i) or Partition(i)
            # What was left out stays so until a log that can be read says otherwise.
            left_out = before.verdict == EXCLUDED
            partition, kinds = (before, ()) if left_out else recorded(before, judgement, self.now)
            unit.put_partition(partition)
            # What is to be asked again needs an entry, whoever asked the first time.
            self._put_off(unit, dues.get(i) or Due(i, due_at=self.now, first_seen_at=self.now))
            if not left_out:
                held.judged.append(Judged(judgement, kinds))
            held.outcomes[self.verdict.value] += 1
        return held

    def _put_off(self, unit: Unit, due: Due) -> None:
        kept = judged(due, self.verdict, read_began_at=self.now, now=self.now, windows=self.windows)
        if kept is not None:
            unit.put_due(kept)
