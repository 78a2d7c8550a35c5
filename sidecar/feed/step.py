"""What one transaction stores of a batch: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sidecar.core.horizon import TailRow
from sidecar.core.ports import Batch, ExecutionLog


@dataclass(frozen=True, slots=True)
class Step:
    """`rows`: of the batch, by execution.  `logs`: all log reads at hand, by execution.

    `delivered`: those among them that the lane itself handed over.  `last`: the batch's cursor goes
    with it.  `unreadable`: executions that only get an entry in the work list.  `left`: those whose
    log could not be read; their rows wait, and the comparator is asked.
    """

    batch: Batch
    rows: Mapping[int, tuple[TailRow, ...]]
    logs: Mapping[int, ExecutionLog]
    delivered: tuple[ExecutionLog, ...]
    last: bool
    now: int
    unreadable: tuple[int, ...] = ()
    left: tuple[int, ...] = ()

    def without(self, unreadable: Sequence[int]) -> Step:
        """The same step, with nothing read or written of those executions."""
        rows = {i: rows for i, rows in self.rows.items() if i not in unreadable}
        logs = {i: log for i, log in self.logs.items() if i not in unreadable}
        return replace(self, rows=rows, logs=logs, unreadable=tuple(unreadable))

    @property
    def epochs(self) -> Mapping[str, tuple[int, int]]:
        """When each epoch was first and last seen by what is stored here.

        Never `now`: while a process stands still, or waits for its store, a server may end.
        """
        times: dict[str, list[int]] = {self.batch.epoch: []}
        if self.batch.read_at is not None:
            times[self.batch.epoch].append(self.batch.read_at)
        for rows in self.rows.values():
            times[self.batch.epoch] += (row.seen_at for row in rows)
        for log in self.logs.values():
            if log.read.epoch is not None:
                times.setdefault(log.read.epoch, []).append(log.read.began_at)
        return {epoch: (min(at), max(at)) for epoch, at in times.items() if at}
