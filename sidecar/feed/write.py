"""The transaction of one step: rows, coverage, held work and the lane's cursor together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sidecar.core.authority import Partition
from sidecar.core.due import Windows
from sidecar.core.ports import Unit
from sidecar.feed.report import FeedReport, reported
from sidecar.feed.settling import Settling
from sidecar.feed.step import Step
from sidecar.feed.worklist import Entries


@dataclass(frozen=True, slots=True)
class Write:
    """Called with a unit it stores `step`; as `Feed` for the rest."""

    settling: Settling
    windows: Windows
    comparing: bool
    step: Step

    async def __call__(self, unit: Unit) -> FeedReport:
        step, settling, certified = self.step, self.settling, self.settling.certified
        batch = step.batch
        await self._first_seen(unit)
        logs = [log for log in step.logs.values() if log.tells]
        populated = await certified.populate(unit, logs, lane=batch.lane)
        settled = await settling.settle(
            unit, step.rows, step.logs, populated, epoch=batch.epoch, now=step.now, lane=batch.lane
        )
        await Entries(step, self.windows, self.comparing).note(unit, settled, populated)
        for epoch, (first, last) in step.epochs.items():
            await unit.see_epoch(epoch, first)
            await unit.see_epoch(epoch, last)
        if step.last:
            if batch.cursor is not None:
                unit.put_cursor(batch.cursor)
            for dropped in batch.dropped_lanes:
                unit.drop_cursor(dropped)
            certified.emitted(unit, batch, lambda i, event_id: event_id in settling.pool(i))
        return reported(step, settled, populated)

    async def _first_seen(self, unit: Unit) -> None:
        """What a lane handed over was there, even if the log read found it gone again.

        Without this mark an execution that was pruned in between is an empty one (row 2b of 2.8).
        """
        handed = self.step.rows.keys() | {log.execution_id for log in self.step.delivered}
        emptied = [i for i, log in self.step.logs.items() if i in handed and log.events == ()]
        known = await unit.partitions(emptied) if emptied else {}
        for i in emptied:
            partition = known.get(i) or Partition(i)
            if partition.first_seen_at is None:
                unit.put_partition(replace(partition, first_seen_at=self.step.now))
