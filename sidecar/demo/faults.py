"""The faults of the demo: each is announced with its verdict, then really done.

Nothing is simulated inside the sidecar.  Rows are inserted, held back, updated and dropped
in Postgres, and the one fault that needs a second writer opens the store's file as any other
program could.  Every fault has executions of its own, so recorded ones keep the verdict that
their recording expects.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from sidecar import sql
from sidecar.demo.copies import Row
from sidecar.demo.driver import translated
from sidecar.demo.ledger import MATCH, Entry
from sidecar.demo.stage import Stage

PRUNED_FROM: Final = 9_000_000_000_000_000_000
PRUNED_TO: Final = 9_000_000_000_001_000_000
PRUNED_PARTITION: Final = "event_demo_pruned"
LATE_S: Final = 2.5
"""A late predecessor stays away so long: many polls, and well below the dangling window."""
LONG_S: Final = 5.0
LOCK_MS: Final = 500
DROP_TRIES: Final = 20
MIDDLE: Final = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.  `at`: when it begins, as a share of the playback's length.

    `act` announces its executions, then commits the fault; it returns when all is done.
    """

    name: str
    title: str
    verdict: str
    at: float
    act: Callable[[Stage, Fault], Awaitable[None]]
    kind: str | None = None

    def entry(self, execution_id: int) -> Entry:
        return Entry(execution_id, self.verdict, "planted", self.name, self.kind, self.title)


async def prepare(connection: Any, schema: str = "noetl") -> None:
    """Make the partition that will be dropped; before the sidecar starts."""
    name, table = f"{sql.quoted(schema)}.{sql.quoted(PRUNED_PARTITION)}", f"{sql.quoted(schema)}.event"
    await connection.execute(
        f"CREATE TABLE {name} PARTITION OF {table} FOR VALUES FROM ({PRUNED_FROM}) TO ({PRUNED_TO})"
    )


async def plant(stage: Stage, seconds: float) -> None:
    """Commit every fault of `FAULTS` at its time within `seconds`; returns when all are done.

    Raises:
        SourceUnavailable, SourceContractError: Postgres failed or refused.
    """
    with translated("a fault could not be planted"):
        async with asyncio.TaskGroup() as group:
            for fault in FAULTS:
                group.create_task(_at(fault.at * seconds, stage, fault))


async def _at(pause_s: float, stage: Stage, fault: Fault) -> None:
    await asyncio.sleep(pause_s)
    await fault.act(stage, fault)


async def _never_comes(stage: Stage, fault: Fault) -> None:
    rows = stage.execution(fault.entry)
    async with stage.connection() as connection:
        await stage.write(connection, rows[:MIDDLE] + rows[MIDDLE + 1 :])


async def _late_predecessor(stage: Stage, fault: Fault) -> None:
    rows = stage.execution(fault.entry)
    async with stage.connection() as late, stage.connection() as prompt:
        await stage.write(prompt, rows[:MIDDLE])
        async with late.transaction():
            await stage.insert(late, [rows[MIDDLE]])
            await stage.write(prompt, rows[MIDDLE + 1 :])
            await asyncio.sleep(LATE_S)
        stage.committed([rows[MIDDLE]])


async def _long_transaction(stage: Stage, fault: Fault) -> None:
    rows = stage.execution(fault.entry)
    async with stage.connection() as connection:
        async with connection.transaction():
            for row in rows:
                await stage.insert(connection, [row])
                await asyncio.sleep(LONG_S / len(rows))
        stage.committed(rows)


async def _savepoint(stage: Stage, fault: Fault) -> None:
    rows = stage.execution(fault.entry)
    async with stage.connection() as connection:
        await stage.write(connection, rows[:MIDDLE])
        async with connection.transaction():
            await _nested(stage, connection, rows[MIDDLE], rows[-1])
        stage.committed([rows[MIDDLE]])
        await stage.write(connection, rows[MIDDLE + 1 :])


async def _nested(stage: Stage, connection: Any, kept: Row, undone: Row) -> None:
    async with connection.transaction():
        vain = connection.transaction()
        await vain.start()
        await stage.insert(connection, [undone])
        await vain.rollback()
        async with connection.transaction():
            await stage.insert(connection, [kept])


async def _restart(stage: Stage, fault: Fault) -> None:
    rows = stage.execution(fault.entry)
    rows[MIDDLE]["prev_event_id"] = None
    async with stage.connection() as connection:
        await stage.write(connection, rows[:MIDDLE])
        await stage.watch.until_verdict(rows[0]["execution_id"], MATCH)
        await stage.write(connection, rows[MIDDLE:])


async def _fork(stage: Stage, fault: Fault) -> None:
    rows = stage.execution(fault.entry)
    rows[-1]["prev_event_id"] = rows[MIDDLE]["event_id"]
    async with stage.connection() as connection:
        await stage.write(connection, rows[:-1])
        await stage.watch.until_verdict(rows[0]["execution_id"], MATCH)
        await stage.write(connection, rows[-1:])


async def _second_writer(stage: Stage, fault: Fault) -> None:
    rows = stage.execution(fault.entry)
    execution = rows[0]["execution_id"]
    async with stage.connection() as connection:
        await stage.write(connection, rows[:-1])
        await stage.watch.until_verdict(execution, MATCH)
        await asyncio.to_thread(_write_into_store, stage, execution)
        # Nobody looks at a finished execution again; this event makes the sidecar look.
        await stage.write(connection, rows[-1:])


def _write_into_store(stage: Stage, execution_id: int) -> None:
    """Append a row that the log never had, as a program that knows the layout would."""
    store = sqlite3.connect(stage.store, timeout=10.0, isolation_level=None)
    try:
        store.execute("BEGIN IMMEDIATE")
        store.execute(
            "INSERT INTO event (execution_id, exec_seq, event_id, prev_event_id, event_type, body)"
            " SELECT execution_id, head_seq + 1, ?, head_event_id, 'step.exit', '{}'"
            " FROM partition WHERE execution_id = ?",
            (stage.mint(), execution_id),
        )
        store.execute(
            "UPDATE partition SET (head_seq, head_event_id) ="
            " (SELECT exec_seq, event_id FROM event WHERE execution_id = ?1 ORDER BY exec_seq DESC LIMIT 1)"
            " WHERE execution_id = ?1",
            (execution_id,),
        )
        store.execute("COMMIT")
    finally:
        store.close()


async def _changed_payload(stage: Stage, fault: Fault) -> None:
    rows = stage.execution(fault.entry)
    execution = rows[0]["execution_id"]
    table = f"{sql.quoted(stage.schema)}.event"
    async with stage.connection() as connection:
        await stage.write(connection, rows)
        await stage.watch.until_verdict(execution, MATCH)
        await connection.execute(
            f"UPDATE {table}"  # noqa: S608 - a quoted name
            """ SET meta = coalesce(meta, '{}') || '{"rewritten": true}'"""
            " WHERE execution_id = $1 AND event_id = $2",
            execution,
            rows[MIDDLE]["event_id"],
        )


async def _pruned_partition(stage: Stage, fault: Fault) -> None:
    first, second = (stage.execution(fault.entry, PRUNED_FROM + number) for number in (1, 2))
    async with stage.connection() as connection:
        await stage.write(connection, first + second)
        for rows in (first, second):
            await stage.watch.until_verdict(rows[0]["execution_id"], MATCH)
        # The player's transactions wait for each other to commit; a DROP in the queue between
        # two of them would stop both.  An engine's do not, but here retention comes last.
        await stage.played.wait()
        await _drop(connection, stage.schema)


async def _drop(connection: Any, schema: str) -> None:
    """Drop the partition; whoever writes meanwhile waits at most `LOCK_MS` for it."""
    await connection.execute(f"SET lock_timeout = {LOCK_MS}")
    for tries_left in reversed(range(DROP_TRIES)):
        try:
            await connection.execute(f"DROP TABLE {sql.quoted(schema)}.{sql.quoted(PRUNED_PARTITION)}")
        except asyncpg.LockNotAvailableError:
            if not tries_left:
                raise
            await asyncio.sleep(0.1)
        else:
            return


FAULTS: Final = (
    Fault(
        "never",
        "a predecessor that never comes",
        "refused_dangling_prev",
        0.02,
        _never_comes,
    ),
    Fault("late", "a predecessor that commits late", MATCH, 0.04, _late_predecessor),
    Fault("long", "a long transaction", MATCH, 0.06, _long_transaction),
    Fault("savepoint", "a row inside savepoints", MATCH, 0.1, _savepoint),
    Fault("restart", "a restart: a second root", "refused_multiple_roots", 0.15, _restart),
    Fault("fork", "two events behind one", "refused_fork", 0.2, _fork),
    Fault(
        "second_writer",
        "a second writer into the store",
        "second_writer",
        0.25,
        _second_writer,
        kind="second_writer",
    ),
    Fault("payload", "a payload changed afterwards", "divergent", 0.3, _changed_payload, kind="payload"),
    Fault("pruned", "a pruned partition", "log_pruned", 0.35, _pruned_partition),
)
"""Every fault of the demo, in the order of their beginning."""
