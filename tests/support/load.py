"""Many writers of linked events at once: out-of-order commits, savepoints, rollbacks.

An event is linked when it is written and becomes visible when its transaction commits, so a
successor may come first.  Rows of a transaction or savepoint that will be rolled back are
written too, and nobody links to them.  Ids are random: no order of ids is the order of links.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

from tests.support.rows import Row, event_row, insert_rows

FIRST_EXECUTION: Final = 8_000_000_000_000_000_000
ACTIVE: Final = 30
LENGTHS: Final = (20, 90)


@dataclass(slots=True)
class _Execution:
    execution_id: int
    length: int
    rows: int = 0
    head: int | None = None


@dataclass
class Load:
    """What was written.  `early`: rows visible before their predecessor, the race of the test."""

    dsn: str
    total: int
    seed: int = 1
    writers: int = 24
    longest_s: float = 2.0
    up_to: int | None = None
    """No transaction begins from so many written rows on, until `go_on` moves it; None: no bound."""
    committed: int = 0
    early: int = 0
    rolled_back: int = 0
    visible: set[tuple[int, int]] = field(default_factory=set)
    executions: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._active = [self._execution() for _ in range(ACTIVE)]
        self._written = 0
        self._used: set[int] = set()
        self._moved = asyncio.Condition()

    def _execution(self) -> _Execution:
        new = _Execution(FIRST_EXECUTION + len(self.executions), self._chance.randint(*LENGTHS))
        self.executions.add(new.execution_id)
        return new

    async def run(self) -> None:
        """Write until `total` rows are committed or about to be."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.writers):
                tasks.create_task(self._write())

    async def reached(self, committed: int) -> None:
        """Wait until so many rows are committed."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.committed >= committed)

    async def go_on(self, up_to: int | None) -> None:
        """Write on, up to about so many rows."""
        async with self._moved:
            self.up_to = up_to
            self._moved.notify_all()

    async def _let(self) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self.up_to is None or self._written < self.up_to)

    async def _write(self) -> None:
        conn = await asyncpg.connect(self.dsn, timeout=30)
        try:
            while self._written < self.total:
                await self._let()
                await self._transaction(conn)
        finally:
            await conn.close()

    async def _transaction(self, conn: Any) -> None:
        doomed = self._chance.random() < 0.08
        transaction = conn.transaction()
        await transaction.start()
        rows: list[Row] = []
        for _ in range(self._chance.randint(1, 3)):
            rows += await self._group(conn, doomed=doomed)
        await asyncio.sleep(self._pause())
        if doomed:
            await transaction.rollback()
            return
        await transaction.commit()
        await self._commit(rows)

    def _pause(self) -> float:
        longest = self.longest_s if self._chance.random() < 0.01 else 0.15
        return self._chance.random() * longest

    async def _group(self, conn: Any, *, doomed: bool) -> list[Row]:
        """A few rows, a third of the groups under a savepoint, a quarter of those undone."""
        if self._chance.random() > 0.3:
            rows = self._rows(doomed=doomed)
            await insert_rows(conn, rows)
            return rows
        undone = doomed or self._chance.random() < 0.25
        savepoint = conn.transaction()
        await savepoint.start()
        rows = self._rows(doomed=undone)
        await insert_rows(conn, rows)
        if undone:
            await savepoint.rollback()
            return []
        await savepoint.commit()
        return rows

    def _rows(self, *, doomed: bool) -> list[Row]:
        return [self._row(doomed=doomed) for _ in range(self._chance.randint(1, 3))]

    def _row(self, *, doomed: bool) -> Row:
        slot = self._chance.randrange(len(self._active))
        execution = self._active[slot]
        event_id = self._id()
        last = execution.rows + 1 >= execution.length
        row = event_row(
            execution.execution_id,
            event_id,
            prev=execution.head,
            event_type="playbook.completed" if last else "step.exit",
            meta={"note": "\u2028 " + "x" * self._chance.randrange(300)},
        )
        if doomed:
            self.rolled_back += 1
            return row
        self._written += 1
        execution.rows, execution.head = execution.rows + 1, event_id
        if last:
            self._active[slot] = self._execution()
        return row

    def _id(self) -> int:
        while (event_id := self._chance.randrange(2**55, 2**62)) in self._used:
            continue
        self._used.add(event_id)
        return event_id

    async def _commit(self, rows: list[Row]) -> None:
        self.visible |= {(row["execution_id"], row["event_id"]) for row in rows}
        self.early += sum(
            row["prev_event_id"] is not None
            and (row["execution_id"], row["prev_event_id"]) not in self.visible
            for row in rows
        )
        async with self._moved:
            self.committed += len(rows)
            self._moved.notify_all()
