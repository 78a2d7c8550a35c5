"""The small Postgres against the real one: the same transactions, what each lane emits of them.

Both sides run the program's own lanes; only the statements are answered by somebody else.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Protocol

import asyncpg
import pytest

from sidecar.core.event import Event
from sidecar.core.horizon import Cursor
from sidecar.core.ports import Batch, Key
from sidecar.source.log import PostgresLog
from sidecar.source.opened import LogSource
from sidecar.source.options import Shard, SourceOptions
from sidecar.source.poll import Poller
from sidecar.source.sweep import SweepLane
from sidecar.source.tail import WindowLane
from sidecar.store.clock import StoreClock
from tests.simulation.clockwork import microseconds
from tests.simulation.server import ROOT_RELID, Row, Server, Transaction
from tests.simulation.statements import TABLE, SimulatedSession, Statements, Weather
from tests.support.databases import Database
from tests.support.rows import event_row, insert_rows

LOW, HIGH = 1000, 2000
PART = ROOT_RELID + 1
Lane = WindowLane | SweepLane
AGES_S = (0, 600, 7200)
"""What every lane shows, what `late` and the sweep show, what the sweep shows alone."""


class Kept:
    """What a lane asks of a store: cursors, and which rows are there."""

    def __init__(self) -> None:
        self.marks: dict[str, Cursor] = {}
        self.rows: dict[int, set[int]] = {}

    async def cursors(self) -> dict[str, Cursor]:
        return dict(self.marks)

    async def missing(self, keys: Sequence[Key]) -> list[Key]:
        return [key for key in keys if key[1] not in self.rows.get(key[0], ())]

    async def sums(self, low: int, high: int) -> Mapping[int, tuple[int, int]]:
        return {e: (len(ids), sum(ids)) for e, ids in self.rows.items() if low <= e <= high and ids}

    def keys(self) -> set[Key]:
        return {(execution, event) for execution, events in self.rows.items() for event in events}

    def keep(self, batch: Batch) -> set[Key]:
        """Store a batch; what it brought."""
        events = [row.event for row in batch.rows]
        for log in batch.logs:
            events += log.events or ()
        for event in events:
            self.rows.setdefault(event.execution_id, set()).add(event.event_id)
        if batch.cursor is not None:
            self.marks[batch.cursor.lane] = batch.cursor
        for lane in batch.dropped_lanes:
            self.marks.pop(lane, None)
        return {(event.execution_id, event.event_id) for event in events}


class Followed:
    """One lane of one side."""

    def __init__(self, lane: Lane, kept: Kept) -> None:
        self.kept = kept
        self._batches: AsyncGenerator[Batch, None] = lane.batches()

    async def poll(self, parts: int = 1) -> tuple[set[Key], set[int], bool]:
        """What so many polls bring: rows, executions that are short, whether every one left an H."""
        rows: set[Key] = set()
        gone: set[int] = set()
        exact = True
        while parts:
            batch = await anext(self._batches)
            rows |= self.kept.keep(batch)
            gone |= set(batch.gone)
            if batch.cursor is not None:
                exact &= batch.cursor.horizon is not None
                parts -= 1
        return rows, gone, exact

    async def close(self) -> None:
        await self._batches.aclose()


class Log(Protocol):
    """Who writes."""

    async def insert(self, tx: int, key: Key, *, age_s: int, savepoint: bool) -> None: ...
    async def change(self, tx: int, key: Key) -> None: ...
    async def delete(self, tx: int, key: Key) -> None: ...
    async def end(self, tx: int, *, commit: bool) -> None: ...
    async def tree(self, what: str) -> None: ...


class Simulated:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.open: dict[int, Transaction] = {}

    def _tx(self, tx: int) -> Transaction:
        return self.open.setdefault(tx, Transaction())

    async def insert(self, tx: int, key: Key, *, age_s: int, savepoint: bool) -> None:
        created = microseconds() - age_s * 1_000_000
        self.server.insert(self._tx(tx), Row(_event(key), created, created), savepoint=savepoint)

    async def change(self, tx: int, key: Key) -> None:
        before = self.server.table[key].row
        self.server.insert(self._tx(tx), Row(_event(key), before.created_at, before.ingested_at))

    async def delete(self, tx: int, key: Key) -> None:
        self.server.delete(self._tx(tx), key)

    async def end(self, tx: int, *, commit: bool) -> None:
        transaction = self.open.pop(tx)
        if commit:
            self.server.commit(transaction, microseconds())
        else:
            self.server.roll_back(transaction)

    async def tree(self, what: str) -> None:
        (self.server.detach if what == "detach" else self.server.attach)(PART)


def _event(key: Key) -> Event:
    return Event(key[0], key[1], None, None, "step.exit", "{}")


class Real:
    def __init__(self, dsn: str, opened: AsyncExitStack) -> None:
        self.dsn = dsn
        self.opened = opened
        self.open: dict[int, tuple[Any, Any]] = {}

    async def _tx(self, tx: int) -> Any:
        if tx not in self.open:
            connection = await asyncpg.connect(self.dsn, statement_cache_size=0)
            self.opened.push_async_callback(connection.close)
            transaction = connection.transaction()
            await transaction.start()
            self.open[tx] = connection, transaction
        return self.open[tx][0]

    async def insert(self, tx: int, key: Key, *, age_s: int, savepoint: bool) -> None:
        connection = await self._tx(tx)
        row = event_row(*key)
        row["created_at"] -= timedelta(seconds=age_s)
        if not savepoint:
            await insert_rows(connection, [row])
            return
        async with connection.transaction():
            await insert_rows(connection, [row])

    async def change(self, tx: int, key: Key) -> None:
        sql = "UPDATE noetl.event SET node_name = 'changed' WHERE execution_id = $1 AND event_id = $2"
        await (await self._tx(tx)).execute(sql, *key)

    async def delete(self, tx: int, key: Key) -> None:
        sql = "DELETE FROM noetl.event WHERE execution_id = $1 AND event_id = $2"
        await (await self._tx(tx)).execute(sql, *key)

    async def end(self, tx: int, *, commit: bool) -> None:
        connection, transaction = self.open.pop(tx)
        await (transaction.commit() if commit else transaction.rollback())
        await connection.close()

    async def tree(self, what: str) -> None:
        connection = await asyncpg.connect(self.dsn, statement_cache_size=0)
        sql = f"ALTER TABLE noetl.event {what.upper()} PARTITION noetl.event_part"
        if what == "attach":
            sql += f" FOR VALUES FROM ({LOW}) TO ({HIGH})"
        try:
            await connection.execute(sql)
        finally:
            await connection.close()


class Side:
    """A log, and what its lanes brought so far."""

    def __init__(self, log: Log, live: Followed, late: Followed, sweep: Followed, parts: int) -> None:
        self.log = log
        self.live = live
        self.late = late
        self.sweep = sweep
        self.parts = parts


def _simulated() -> Side:
    server = Server([(LOW, HIGH)], next_xid=2**32 - 8)
    statements, weather = Statements(server), Weather(random.Random(1), calm=1.1)
    clock, shard = StoreClock(), Shard()
    kept = Kept(), Kept(), Kept()

    def session() -> Any:
        return SimulatedSession(statements, weather)

    def window(name: str, store: Kept, window_s: float) -> WindowLane:
        poller = Poller(session(), TABLE, clock, shard)
        return WindowLane(name, poller, TABLE, store, window_s=window_s, every_s=0, shard=shard)

    live, late = window("live", kept[0], 60), window("late", kept[2], 3600)
    sweep = SweepLane(
        session(),
        Poller(session(), TABLE, clock, shard),
        PostgresLog(session(), TABLE, clock),
        TABLE,
        kept[1],
        round_s=0,
        scan_timeout_s=10,
        shard=shard,
    )
    lanes = Followed(live, kept[0]), Followed(late, kept[2]), Followed(sweep, kept[1])
    return Side(Simulated(server), *lanes, len(server.tree))


async def _real(pg: Database, opened: AsyncExitStack) -> Side:
    await pg.execute(
        f"CREATE TABLE noetl.event_part PARTITION OF noetl.event FOR VALUES FROM ({LOW}) TO ({HIGH})"
    )
    source = await LogSource.open(SourceOptions(pg.dsn, poll_ms=0, late_poll_s=0, sweep_round_s=0))
    opened.push_async_callback(source.close)
    kept = Kept(), Kept(), Kept()
    live, _, _ = source.lanes(kept[0], StoreClock())
    _, _, sweep = source.lanes(kept[1], StoreClock())
    _, late, _ = source.lanes(kept[2], StoreClock())
    parts = (await pg.fetch("SELECT count(*) FROM pg_inherits WHERE inhparent = 'noetl.event'::regclass"))[0]
    lanes = Followed(live, kept[0]), Followed(late, kept[2]), Followed(sweep, kept[1])
    return Side(Real(pg.dsn, opened), *lanes, parts[0])


class _Writers:
    """Random transactions over a few executions, the same on both sides."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.free: list[Key] = []
        self.busy: dict[int, list[Key]] = {}
        self.used = 0
        self.attached = True

    async def step(self, logs: Sequence[Log]) -> str:
        chance = self.chance
        roll = chance.random()
        if roll < 0.08 and not self.busy:
            what = "detach" if self.attached else "attach"
            self.attached = not self.attached
            for log in logs:
                await log.tree(what)
            return what
        if roll < 0.4 and self.busy:
            return await self._end(logs)
        tx = chance.randrange(3)
        keys = self.busy.setdefault(tx, [])
        if roll < 0.5 and self.free and self.attached:
            key = self.free.pop(chance.randrange(len(self.free)))
            change = chance.random() < 0.6
            for log in logs:
                await (log.change(tx, key) if change else log.delete(tx, key))
            if change:
                keys.append(key)
            return f"{'change' if change else 'delete'} {key} in {tx}"
        self.used += 1
        low, high = (LOW, HIGH) if self.attached and chance.random() < 0.6 else (HIGH, HIGH + 500)
        key = chance.randrange(low, high), chance.randrange(1000) * 1000 + self.used
        keys.append(key)
        age_s, savepoint = chance.choices(AGES_S, (6, 2, 1))[0], chance.random() < 0.4
        for log in logs:
            await log.insert(tx, key, age_s=age_s, savepoint=savepoint)
        return f"insert {key} in {tx}, age_s={age_s}, savepoint={savepoint}"

    async def _end(self, logs: Sequence[Log]) -> str:
        tx = self.chance.choice(sorted(self.busy))
        keys, commit = self.busy.pop(tx), self.chance.random() < 0.8
        for log in logs:
            await log.end(tx, commit=commit)
        self.free += keys if commit else ()
        return f"{'commit' if commit else 'roll back'} {tx}"


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(1, 12))]


@pytest.mark.parametrize("seed", SEEDS)
async def test_both_servers_emit_the_same_rows_lane_by_lane(
    pg: Database, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.source.sweep._TREE_SETTLE_S", 0.01)
    async with AsyncExitStack() as opened:
        ours, real = _simulated(), await _real(pg, opened)
        for side in ours, real:
            opened.push_async_callback(side.live.close)
            opened.push_async_callback(side.late.close)
            opened.push_async_callback(side.sweep.close)
        writers, emitted, said = _Writers(seed), 0, ["at first"]
        only_late: set[Key] = set()
        for number in range(24 if seed else 16):
            found = [await side.live.poll() for side in (ours, real)]
            assert found[0] == found[1], (seed, said)
            emitted += len(found[0][0])
            if number % 3 == 2:
                late = [await side.late.poll() for side in (ours, real)]
                assert late[0] == late[1], (seed, said)
                emitted += len(late[0][0])
                only_late |= late[0][0] - ours.live.kept.keys()
            if number % 8 == 7:
                swept = [await side.sweep.poll(side.parts + 1) for side in (ours, real)]
                assert swept[0][:2] == swept[1][:2], (seed, said)
                emitted += len(swept[0][0])
            said.append(await writers.step([ours.log, real.log]))
        assert emitted > 2
        assert seed or only_late, "no row was the late lane's alone"
        for tx in sorted(writers.busy):
            for side in ours, real:
                await side.log.end(tx, commit=False)
