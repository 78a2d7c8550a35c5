"""k executions of n events, some with one defect each, and the verdict that each has to get.

The rows are stamped as the NoETL server stamps them; a defect is what its cause leaves in the
log (spec 1.6).  What has to be judged comes from the defect alone: nothing here looks at the
sidecar.  `Load` says what is written, `write` writes it with many connections at once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, Literal

import asyncpg

Defect = Literal["restart_at", "duplicate_terminal", "delay_row", "second_writer", "prune", "fork"]
DEFECTS: Final[tuple[Defect, ...]] = (
    "restart_at",
    "duplicate_terminal",
    "delay_row",
    "second_writer",
    "prune",
    "fork",
)
EXPECTED: Final[dict[Defect | None, str]] = {
    None: "match",
    "delay_row": "match",
    "restart_at": "refused_multiple_roots",
    "duplicate_terminal": "refused_multiple_roots",
    "fork": "refused_fork",
    "second_writer": "second_writer",
    "prune": "log_pruned",
}
"""Defect -> verdict when all is quiet.  Source: spec 1.6, 3.3."""

PRUNED_FIRST: Final = 6_000_000_000_000_000_000
"""The executions whose partition is dropped; a test's other ids lie below."""
PRUNED_PARTITION: Final = (
    "CREATE TABLE noetl.event_pruned PARTITION OF noetl.event"
    f" FOR VALUES FROM ({PRUNED_FIRST}) TO ({PRUNED_FIRST + 1_000_000})"
)
PRUNE: Final = "DROP TABLE noetl.event_pruned"

_INSERT: Final = (
    "INSERT INTO noetl.event (execution_id, catalog_id, event_id, prev_event_id, created_at, event_type,"
    " node_name, status) VALUES ($1, 1, $2, $3, now() AT TIME ZONE 'UTC', $4, 'planted', 'COMPLETED')"
)


@dataclass(frozen=True, slots=True)
class Stamped:
    """One row.  `held_s`: its transaction commits so many seconds after it was written."""

    execution_id: int
    event_id: int
    prev: int | None
    event_type: str
    held_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Planned:
    """One execution; `rows` in the order in which they are written.

    `after`: written only when the second writer has been, so that the execution is looked at.
    """

    execution_id: int
    defect: Defect | None
    rows: tuple[Stamped, ...]
    after: tuple[Stamped, ...] = ()

    @property
    def expected(self) -> str:
        return EXPECTED[self.defect]


@dataclass(frozen=True, slots=True)
class Load:
    """What is written.

    Args:
        executions: How many, of which `defective` have each of `defects`.
        events: Of each; a defect may add one.
        delay_s: How long a delayed row stays invisible.
    """

    executions: int
    events: int = 8
    defective: int = 1
    defects: Sequence[Defect] = DEFECTS
    delay_s: float = 0.5
    seed: int = 1

    def plan(self) -> tuple[Planned, ...]:
        chance = random.Random(self.seed)
        kinds: list[Defect | None] = [defect for defect in self.defects for _ in range(self.defective)]
        kinds += [None] * (self.executions - len(kinds))
        ids = _ids(chance)
        plans = [self._planned(number, kind, chance, ids) for number, kind in enumerate(kinds, start=1)]
        chance.shuffle(plans)
        return tuple(plans)

    def _planned(
        self, number: int, defect: Defect | None, chance: random.Random, ids: Iterator[int]
    ) -> Planned:
        e = (PRUNED_FIRST if defect == "prune" else 7_000_000_000_000_000_000) + number
        rows: list[Stamped] = []
        at = chance.randrange(1, self.events - 1)
        for place in range(self.events):
            last = place == self.events - 1
            prev = rows[-1].event_id if rows else None
            if place == at and defect == "restart_at":
                prev = None
            held = self.delay_s if place == at and defect == "delay_row" else 0.0
            event_type = "playbook_started" if not place else "playbook.completed" if last else "step.exit"
            rows.append(Stamped(e, next(ids), prev, event_type, held))
        if defect == "fork":
            rows.insert(at + 1, Stamped(e, next(ids), rows[at].prev, "step.exit"))
        if defect == "duplicate_terminal":
            rows.append(Stamped(e, next(ids), None, "playbook.completed"))
        after = (rows.pop(),) if defect == "second_writer" else ()
        return Planned(e, defect, tuple(rows), after)


def _ids(chance: random.Random) -> Iterator[int]:
    """No order of ids is the order of links."""
    used: set[int] = set()
    while True:
        event_id = chance.randrange(2**55, 2**62)
        if event_id not in used:
            used.add(event_id)
            yield event_id


def ledger(plans: Sequence[Planned]) -> Counter[str]:
    """How often each verdict has to stand at the end."""
    return Counter(plan.expected for plan in plans)


async def write(dsn: str, plans: Sequence[Planned], *, writers: int = 8, seed: int = 1) -> None:
    """Write all executions at once, each row visible in its time."""
    chance = random.Random(seed)
    waiting = list(plans)

    async def writer() -> None:
        connection = await asyncpg.connect(dsn, statement_cache_size=0)
        try:
            while waiting:
                plan = waiting.pop()
                await _write(dsn, connection, plan.rows, chance)
        finally:
            await connection.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(writers):
            tasks.create_task(writer())


async def _write(dsn: str, connection: Any, rows: Sequence[Stamped], chance: random.Random) -> None:
    left = list(rows)
    held: list[asyncio.Task[None]] = []
    while left:
        if left[0].held_s:
            held.append(asyncio.create_task(_held(dsn, left.pop(0))))
            continue
        together = list(takewhile(lambda row: not row.held_s, left[: chance.randint(1, 3)]))
        left = left[len(together) :]
        async with connection.transaction():
            await insert(connection, *together)
    if held:
        await asyncio.gather(*held)


async def _held(dsn: str, row: Stamped) -> None:
    connection = await asyncpg.connect(dsn, statement_cache_size=0)
    try:
        async with connection.transaction():
            await insert(connection, row)
            await asyncio.sleep(row.held_s)
    finally:
        await connection.close()


async def insert(connection: Any, *rows: Stamped) -> None:
    """In the caller's transaction, or in one of its own."""
    for row in rows:
        await connection.execute(_INSERT, row.execution_id, row.event_id, row.prev, row.event_type)


async def finish(connection: Any, plans: Sequence[Planned], plant: Callable[[int], Awaitable[None]]) -> None:
    """Plant what needs a stored chain: the second writer's rows, then the drop of the partition.

    Args:
        plant: Appends a row to the stored chain of an execution, behind the sidecar's back.
    """
    for plan in plans:
        if plan.defect == "second_writer":
            await plant(plan.execution_id)
            await insert(connection, *plan.after)
    if any(plan.defect == "prune" for plan in plans):
        await connection.execute(PRUNE)
