"""What waits, and steps 1 to 4 of spec 2.12 for several executions in one transaction.

The feed comes here with rows of a batch, the comparator with what it has read; both meet the
same pools.  What a row comes to is decided in `core.settle`; here its answer is asked for with
what the store holds, and written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sidecar.certified import Certified
from sidecar.core.authority import Partition, StoredEvent
from sidecar.core.due import Due
from sidecar.core.horizon import TailRow
from sidecar.core.ports import ExecutionLog, Key, Populated, Store, Unit
from sidecar.core.settle import Arrival, Limits, Settled, known_commits, settle
from sidecar.feed.joins import asked_kept
from sidecar.feed.pool import HeldBack, Version, still_in_log, version


class Settling:
    """The rows of all executions that wait, and what becomes of them.

    Args:
        certified: Observes what is appended.

    `held_back` is read inside and outside of units, and changes only when one commits.
    """

    def __init__(self, store: Store, certified: Certified, limits: Limits) -> None:
        self.held_back = HeldBack()
        self.certified = certified
        self.limits = limits
        self._store = store
        self._remembered_since = store.clock.now()

    async def settle(
        self,
        unit: Unit,
        rows: Mapping[int, tuple[TailRow, ...]],
        logs: Mapping[int, ExecutionLog],
        populated: Mapping[int, Populated],
        *,
        epoch: str | None,
        now: int,
        lane: str = "comparator",
    ) -> dict[int, Settled]:
        """Steps 1 to 4 of spec 2.12 for every execution with rows or a populate in this unit.

        Appends what extends and saves the partitions; due entries are the caller's.  The
        pools change when the unit commits.

        Args:
            logs: The log reads behind `populated`, and truncated ones.
            epoch: Of the poll or log read at hand; None: nothing can be extended.
            lane: Whose batch it is.
        """
        executions = [*rows, *(i for i in logs if i not in rows)]
        partitions = await unit.partitions(executions)
        pools = {i: still_in_log(self.held_back.of(i), logs.get(i)) for i in executions}
        stored = await self._stored(unit, executions, rows, pools)
        active = [i for i in executions if i in rows or pools[i]]
        counts = await unit.row_counts(active) if active else {}
        dues = await unit.due(active) if active else {}
        arrived = {i: (*rows.get(i, ()), *pools[i].values()) for i in active}
        asking = await asked_kept(unit, arrived, partitions, stored) if self._store.rejoining else {}
        if self.held_back.forgot():
            self._remembered_since = now
        room = self.limits.pool_total - self.held_back.rows
        settled: dict[int, Settled] = {}
        refused: dict[Key, Version] = {}
        for i in executions:
            stored_rows, max_seq = counts.get(i, (0, 0))
            arrival = Arrival(
                partition=partitions.get(i) or Partition(i),
                rows=rows.get(i, ()),
                pool=pools[i],
                stored=stored.get(i, {}),
                stored_rows=stored_rows,
                max_seq=max_seq,
                reread=_still_reread(dues.get(i), logs.get(i), populated.get(i)),
                room=room,
                populated=populated.get(i),
                log_rows=_length(logs[i], self.limits) if i in logs else 0,
                log_began_at=logs[i].read.began_at if i in logs else None,
                kept=asking.get(i),
                remembered_since=self._remembered_since,
            )
            result = settle(arrival, epoch=epoch, now=now, limits=self.limits)
            room -= len(result.pool) - len(pools[i])
            placed = _placed(arrival.partition, result.run)
            self.certified.append(unit, result.partition, placed, lane=lane)
            unit.put_partition(result.partition)
            unit.put_commits(known_commits(arrival, result))
            await unit.keep_joins(result.joins)
            await unit.withdraw_joins((*result.against.used, *result.against.unused), now)
            settled[i] = result
            refused |= _without_place(arrival, result)
        left = {i: result.pool for i, result in settled.items()}
        unit.on_commit(lambda: self.held_back.keep(left, refused))
        return settled

    async def _stored(
        self,
        unit: Unit,
        executions: Iterable[int],
        rows: Mapping[int, tuple[TailRow, ...]],
        pools: Mapping[int, Mapping[int, TailRow]],
    ) -> dict[int, dict[int, StoredEvent]]:
        keys: set[Key] = set()
        for i in executions:
            for row in (*rows.get(i, ()), *pools[i].values()):
                keys.add((i, row.event.event_id))
                if row.event.prev_event_id is not None:
                    keys.add((i, row.event.prev_event_id))
        found: dict[int, dict[int, StoredEvent]] = {}
        for (i, event_id), event in (await unit.find(keys)).items() if keys else ():
            found.setdefault(i, {})[event_id] = event
        return found

    def drop_pool(self, unit: Unit, execution_id: int) -> None:
        """Forget the pooled rows of one execution when `unit` commits; `held` is the caller's."""
        unit.on_commit(lambda: self.held_back.drop(execution_id))

    def pool(self, execution_id: int) -> Mapping[int, TailRow]:
        """The delivered, unstored rows of one execution by event id; valid inside a unit."""
        return self.held_back.of(execution_id)


def _still_reread(due: Due | None, log: ExecutionLog | None, populated: Populated | None) -> bool:
    if due is None or due.reread is None:
        return False
    cleared = populated is not None and populated.synced and log is not None
    return not (cleared and log is not None and log.read.began_at > due.reread)


def _length(log: ExecutionLog, limits: Limits) -> int:
    return limits.read if log.events is None else len(log.events)


def _without_place(arrival: Arrival, result: Settled) -> dict[Key, Version]:
    """Row versions that are neither stored nor pooled."""
    placed = {*result.pool, *arrival.stored, *(row.event.event_id for row in result.run)}
    return {
        (row.event.execution_id, row.event.event_id): version(row)
        for row in (*arrival.rows, *arrival.pool.values())
        if row.event.event_id not in placed
    }


def _placed(partition: Partition, run: Sequence[TailRow]) -> list[StoredEvent]:
    return [
        StoredEvent(seq, row.event, origin="log", seen_at=row.seen_at)
        for seq, row in enumerate(run, start=partition.head_seq + 1)
    ]
