"""The sidecar killed with -9 while rows come: nothing missed, nothing doubled, nothing made up."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.core.event import Event
from sidecar.core.links import Ordered, order_by_links
from sidecar.source.scan import scan
from tests.support.databases import Database
from tests.support.killed import Killable, rows
from tests.support.late import savepoints
from tests.support.load import Load
from tests.support.rows import event_row
from tests.support.tailing import IdCursorTail, Ticks, opened

E = 7400


def _verdict(conn: sqlite3.Connection) -> str | None:
    found = rows(conn, "SELECT verdict FROM partition WHERE execution_id = ?", E)
    return found[0][0] if found else None


@pytest.mark.torture
async def test_a_late_committer_under_savepoints_survives_a_kill_at_every_step(
    pg: Database, tmp_path: Path
) -> None:
    store, naive, a = tmp_path / "chain.db", IdCursorTail(await pg.connect()), await pg.connect()
    sidecar = await Killable.start(pg.dsn, store)

    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: pg.insert([event_row(E, 10)]),
        lambda: a.execute("BEGIN"),
        lambda: savepoints(a, E),
        lambda: pg.insert([event_row(E, 30, prev=20)]),
        lambda: pg.insert([event_row(E, 40, prev=30)]),
        lambda: a.execute("COMMIT"),
    ]
    try:
        for step in steps:
            await sidecar.polled()
            await step()
            await sidecar.polled()
            await naive.poll()
            await sidecar.kill()
            sidecar = await Killable.start(pg.dsn, store)
        await sidecar.polled()
        await sidecar.until(lambda conn: _verdict(conn) == "match")
        await sidecar.until(lambda conn: rows(conn, "SELECT count(*) FROM due") == [(0,)])
    finally:
        assert await sidecar.stop() == 0
    with closing(sqlite3.connect(store)) as conn:
        stored = rows(conn, "SELECT event_id FROM event WHERE execution_id = ? ORDER BY exec_seq", E)
        assert stored == [(10,), (20,), (30,), (40,)]
        assert rows(conn, "SELECT verdict, held, counted_kinds FROM partition") == [("match", 0, "")]
    assert (E, 20) not in naive.keys, "an id cursor found the row: there was no race"


async def _log(dsn: str) -> dict[int, tuple[Event, ...]]:
    """The whole log in link order, by the program's own reader."""
    found: dict[int, tuple[Event, ...]] = {}
    async with opened(dsn) as source:
        async for logs in scan(source.reader(Ticks())):
            for log in logs:
                order = order_by_links(log.events or ())
                assert isinstance(order, Ordered)
                found[log.execution_id] = order.events
    return found


def _stored(store: Path) -> dict[int, tuple[Event, ...]]:
    found: dict[int, tuple[Event, ...]] = {}
    with closing(sqlite3.connect(store)) as conn:
        columns = "execution_id, event_id, prev_event_id, parent_execution_id, event_type, body, exec_seq"
        for *event, exec_seq in rows(conn, f"SELECT {columns} FROM event ORDER BY execution_id, exec_seq"):
            chain = found.get(event[0], ())
            assert exec_seq == len(chain) + 1
            found[event[0]] = (*chain, Event(*event))
    return found


def _count(conn: sqlite3.Connection) -> int:
    count: int = rows(conn, "SELECT count(*) FROM event")[0][0]
    return count


@pytest.mark.parametrize(
    ("total", "kills"),
    [
        (2_400, 2),
        pytest.param(100_000, 10, marks=[pytest.mark.torture, pytest.mark.timeout(900)]),
    ],
)
async def test_many_writers_and_a_tail_killed_in_between_agree_byte_for_byte(
    pg: Database, tmp_path: Path, total: int, kills: int
) -> None:
    store = tmp_path / "chain.db"
    part = total // (kills + 1)
    # The writers are let so far beyond the next kill and no farther: it comes while they write.
    load = Load(pg.dsn, total, up_to=part + part // 2)
    writing = asyncio.create_task(load.run())
    sidecar = await Killable.start(pg.dsn, store)
    stored_at_kill, committed_at_kill = [0], [0]
    try:
        for kill in range(1, kills + 1):
            await load.reached(part * kill)
            await sidecar.until(lambda conn: _count(conn) > stored_at_kill[-1])
            await sidecar.kill()
            committed_at_kill.append(load.committed)
            with closing(sqlite3.connect(store)) as conn:
                stored_at_kill.append(_count(conn))
            sidecar = await Killable.start(pg.dsn, store)
            await load.go_on(None if kill == kills else part * (kill + 1) + part // 2)
        await writing
        patience = 60 + total / 500
        await sidecar.until(lambda conn: _count(conn) >= load.committed, patience_s=patience)
        await sidecar.until(
            lambda conn: rows(conn, "SELECT count(*) FROM due") == [(0,)], patience_s=patience
        )
    finally:
        writing.cancel()
        await asyncio.wait({writing})
        code = await sidecar.stop()
    assert code == 0
    log, stored = await _log(pg.dsn), _stored(store)
    assert sum(map(len, log.values())) == load.committed == len(load.visible) >= total
    assert stored == log
    with closing(sqlite3.connect(store)) as conn:
        verdicts = rows(conn, "SELECT verdict, held, counted_kinds, count(*) FROM partition GROUP BY 1, 2, 3")
    assert verdicts == [("match", 0, "", len(log))]
    assert load.early > total // 100, "rows came in order: there was no race"
    assert load.rolled_back > total // 50
    assert committed_at_kill[-1] < load.committed, "the last kill came after the last row"
    assert stored_at_kill == sorted(set(stored_at_kill)), "a kill came before anything was stored"
