"""Which logs have to be read before a batch can be stored, and reading them.

An execution seen for the first time is read whole (spec 2.12 step 5); without a comparator those
that are flagged, too.  One log that cannot be read must not hold up all others: when it failed
alone in two batches, between which Postgres answered a poll, it is left to the comparator, whose
verdict says so.  A failure before that is the server's, as far as anybody can tell.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Final

from sidecar.core.authority import Partition
from sidecar.core.due import Windows
from sidecar.core.horizon import TailRow
from sidecar.core.ports import BoundedReader, ExecutionLog, Store, Unit
from sidecar.errors import SourceContractError, SourceError
from sidecar.feed.pool import HeldBack

FIRST_SIGHTS_MAX = 256
"""Executions whose whole log one transaction may read: bounds memory, not correctness."""
FAILED_MAX: Final = 1024
"""Executions remembered whose log could not be read: bounds memory only."""


class Reads:
    """The log reads of one feed.

    Args:
        comparing: As `Feed`.
    """

    def __init__(
        self, store: Store, reader: BoundedReader, held_back: HeldBack, windows: Windows, *, comparing: bool
    ) -> None:
        self._store = store
        self._reader = reader
        self._held_back = held_back
        self._windows = windows
        self._comparing = comparing
        self._asked: dict[int, int] = {}
        self._failed: dict[int, bool] = {}
        """By execution whose read failed alone, whether it did so twice."""
        self._most = FIRST_SIGHTS_MAX

    async def wanted(
        self, rows: Mapping[int, tuple[TailRow, ...]], delivered: Collection[ExecutionLog]
    ) -> list[int]:
        """The executions of a part whose logs are read before its transaction opens."""
        have = {log.execution_id for log in delivered}

        async def ask(unit: Unit) -> list[int]:
            partitions = await unit.partitions(rows.keys())
            wanted = [i for i, group in rows.items() if self._worth_reading(partitions.get(i), i, group)]
            if not self._comparing:
                wanted += await self._flagged(unit, rows, wanted)
            return wanted

        return [i for i in await self._store.transact(ask) if i not in have]

    async def first(self, wanted: Sequence[int]) -> tuple[list[ExecutionLog], list[int]]:
        """The logs of the first of `wanted`, and those before them that are left to the comparator.

        At least one of `wanted` is in either.  After a failure fewer are read at once.

        Raises:
            SourceError: the server does not answer, or one log failed for the first time.
        """
        while True:
            try:
                logs = await self._reader.read_some(wanted[: self._most])
            except SourceContractError:
                raise  # of the table, never of one execution
            except SourceError:
                alone = self._most == 1 or len(wanted) == 1
                self._most = 1
                if alone and not self._failed_before(wanted[0]):
                    raise
                if alone:
                    return [], [wanted[0]]
            else:
                self._most = min(FIRST_SIGHTS_MAX, 2 * self._most)
                for log in logs:
                    self._failed.pop(log.execution_id, None)
                return logs, []

    def _failed_before(self, execution_id: int) -> bool:
        """Whether the read that has just failed alone is not the first one."""
        before = execution_id in self._failed
        self._failed[execution_id] = before
        for oldest in tuple(islice(self._failed, max(0, len(self._failed) - FAILED_MAX))):
            del self._failed[oldest]
        return before

    async def _flagged(
        self, unit: Unit, rows: Mapping[int, tuple[TailRow, ...]], wanted: Sequence[int]
    ) -> list[int]:
        """Without a comparator: flagged executions, each asked for at most once a settle time."""
        now = self._store.clock.now()
        dues = await unit.due(rows.keys())
        flagged = [i for i, due in dues.items() if due.reread is not None]
        flagged += await self._store.due_now(now, FIRST_SIGHTS_MAX)
        pause = self._windows.settle
        again = [i for i in dict.fromkeys(flagged) if now - self._asked.get(i, now - pause) >= pause]
        self._asked |= dict.fromkeys(again, now)
        self._asked = {i: at for i, at in self._asked.items() if now - at < pause}
        return [i for i in again if i not in wanted]

    def _worth_reading(self, partition: Partition | None, execution_id: int, rows: Sequence[TailRow]) -> bool:
        if self._comparing and self._failed.get(execution_id):
            return False
        if partition is None:
            return True
        if partition.head_seq > 0 or partition.label is not None or partition.revoked_at is not None:
            return False
        named = {row.event.prev_event_id for row in self._held_back.of(execution_id).values()}
        return any(row.event.prev_event_id is None or row.event.event_id in named for row in rows)
