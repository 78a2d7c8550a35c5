"""The chain store in memory, with the program's own decisions, its waits and its failures.

The calls and the shelf are those of the contract suite's memory store, which is held against the same
tests as the SQLite one; what a populate comes to and what a guarded read answers is decided by
the program's code.  What is on the shelf survives the process, what is not is lost with it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sidecar.core.authority import GuardedRead, Partition, StoredEvent, guarded_read
from sidecar.core.due import Due
from sidecar.core.ports import ExecutionLog, Populated, Unit
from sidecar.core.rejoin import predecessors
from sidecar.errors import StoreBusy, StoreFull, invariant
from sidecar.store.clock import StoreClock
from sidecar.store.opening import Opening
from sidecar.store.populate import settle
from sidecar.store.unit import held_back
from tests.contract.memory import MemoryBackend, MemoryStore, MemoryUnit, Ticks
from tests.contract.model import Shelf
from tests.simulation.clockwork import microseconds
from tests.simulation.statements import Weather

T = TypeVar("T")


@dataclass(slots=True)
class Disk:
    """What outlives the process.  `full`: every write is refused."""

    backend: MemoryBackend = field(default_factory=MemoryBackend)
    full: bool = False
    offset: int = 0
    """Microseconds by which the machine's clock differs from the server's."""

    @property
    def shelf(self) -> Shelf:
        return self.backend.shelf


def clock_over(disk: Disk) -> StoreClock:
    """The program's clock, opened anew; the machine's may have been set meanwhile."""
    return StoreClock(
        Ticks(disk.shelf).last, wall=lambda: microseconds() + disk.offset, monotonic=microseconds
    )


class SimulatedUnit(MemoryUnit):
    """The memory unit with the program's populate and guarded read; it knows what it touched."""

    def __init__(self, shelf: Shelf, *, rejoining: bool = False) -> None:
        super().__init__(shelf, rejoining=rejoining)
        self.touched: set[int] = set()

    async def populate(self, logs: Sequence[ExecutionLog]) -> dict[int, Populated]:
        results: dict[int, Populated] = {}
        shelf = self._check()
        for log in logs:
            if log.events is None:
                continue
            e = log.execution_id
            invariant(e not in results, "an execution stands twice in one populate")
            partition, joins = shelf.any_record(e) or Partition(e), (await self.joins((e,))).get(e, ())
            settled = settle(log, log.events, partition, shelf.chain(e), joins)
            if settled.new:
                first = settled.result.partition.head_seq - len(settled.new) + 1
                self.append(
                    [
                        StoredEvent(seq, event, "log", settled.read.began_at)
                        for seq, event in enumerate(settled.new, start=first)
                    ]
                )
            if settled.changed:
                self.put_partition(settled.result.partition)
            results[e] = settled.result
        return results

    async def guarded_read(self, execution_id: int, *, ignore_held: bool = False) -> GuardedRead:
        return guarded(self._check(), execution_id, ignore_held=ignore_held, rejoining=self.rejoining)

    def append(self, rows: Sequence[StoredEvent]) -> None:
        self.touched.update(row.event.execution_id for row in rows)
        super().append(rows)

    def put_partition(self, partition: Partition) -> None:
        self.touched.add(partition.execution_id)
        super().put_partition(partition)

    def put_due(self, due: Due) -> None:
        self.touched.add(due.execution_id)
        super().put_due(due)

    def drop_due(self, execution_id: int) -> None:
        self.touched.add(execution_id)
        super().drop_due(execution_id)


def guarded(
    shelf: Shelf, execution_id: int, *, ignore_held: bool = False, rejoining: bool = False
) -> GuardedRead:
    """What anybody is served now."""
    partition, due = shelf.record(execution_id), shelf.due.get(execution_id)
    held = not ignore_held and held_back(partition, due)
    joined = predecessors(shelf.joins_of(execution_id)) if rejoining else {}
    return guarded_read(partition, shelf.chain(execution_id), held_back=held, joined=joined)


Committed = Callable[[Shelf, Collection[int]], None]


class SimulatedStore(MemoryStore):
    """One opening of the disk, by one process.

    Args:
        committed: Called right after each commit with the new shelf and whom it touched.
        rejoining: The gate NOETL_CHAIN_REJOIN.
    """

    def __init__(
        self, disk: Disk, weather: Weather, committed: Committed, *, rejoining: bool = False
    ) -> None:
        super().__init__(disk.backend)
        self.rejoining = rejoining
        self.clock = clock_over(disk)  # type: ignore[assignment]
        self._disk = disk
        self._weather = weather
        self._committed = committed
        self.killed = False

    async def chain_if_authoritative(self, execution_id: int) -> GuardedRead:
        return guarded(self.shelf, execution_id, rejoining=self.rejoining)

    async def transact(self, work: Callable[[Unit], Awaitable[T]]) -> T:  # type: ignore[override]
        async with self._lock:
            await self._weather.pass_by(may_fail=False)
            self._alive()
            unit = SimulatedUnit(self.shelf.copy(), rejoining=self.rejoining)
            try:
                result = await work(unit)
            finally:
                unit.ended = True
            await self._weather.pass_by(may_fail=False)
            self._alive()
            if self._disk.full:
                raise StoreFull("the simulated disk is full", hint="")
            if self._weather.storm and self._weather.chance.random() < self._weather.failing / 4:
                raise StoreBusy("somebody holds the simulated store", hint="")
            self._disk.backend.shelf = unit.shelf
            for then in unit.then:
                then()
            if unit.touched:
                self._committed(unit.shelf, unit.touched)
        await self._weather.pass_by(may_fail=False)
        self._alive()
        return result

    def _alive(self) -> None:
        """A killed process writes nothing more and learns nothing more."""
        if self.killed:
            raise asyncio.CancelledError

    async def flag_held(self) -> None:
        """As `ChainStore.flag_held`."""

        async def work(unit: Unit) -> None:
            now = self.clock.now()
            held = [e for e, partition in self.shelf.partitions.items() if partition.held > 0]
            for due in (await unit.due(held)).values():
                if due.reread is None:
                    unit.put_due(replace(due, reread=now, due_at=min(due.due_at, now)))

        await self.transact(work)


class SimulatedBackend(MemoryBackend):
    """A place for the contract suite: nothing breaks, and everything gives others their turn."""

    def open(self) -> Opening[MemoryStore]:
        async def start() -> MemoryStore:
            weather = Weather(random.Random(0), calm=-1.0, slow_s=0.0)
            return SimulatedStore(Disk(self), weather, lambda *_: None)

        return Opening(start)
