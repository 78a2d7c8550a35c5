"""A row that commits behind its successor: waited for, stored within two polls, and a match.

The tail that everybody writes first, `event_id > cursor`, runs beside it and loses the row.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sidecar.feed import Feed
from tests.support.databases import Database
from tests.support.late import plain, savepoints
from tests.support.rows import event_row
from tests.support.service import Service, service
from tests.support.tailing import IdCursorTail

E = 7800


async def _polls_until(sidecar: Service, rows: int) -> int:
    """How many polls of the live lane are stored until so many rows are."""
    polls: set[int] = set()

    async def holds() -> bool:
        stored = len(await sidecar.store.chain(E)) == rows
        polls.add((await sidecar.store.cursors())["live"].polled_at)
        return stored

    await sidecar.until(holds)
    return len(polls) - 1


@pytest.mark.parametrize("late", [plain, savepoints])
async def test_a_late_committer_is_waited_for_and_matches(pg: Database, tmp_path: Path, late: Any) -> None:
    naive, a = IdCursorTail(await pg.connect()), await pg.connect()
    async with service(pg.dsn, tmp_path / "chain.db", poll_ms=100, dangling_s=60) as sidecar:
        await pg.insert([event_row(E, 10)])
        await sidecar.verdict(E, "match")
        await a.execute("BEGIN")
        await late(a, E)
        await pg.insert([event_row(E, 30, prev=20)])
        await sidecar.seen(E, 2)
        await sidecar.polls(3)
        await naive.poll()
        assert [event.event_id for event in await sidecar.store.chain(E)] == [10]
        assert (await sidecar.read(E)).reason == "rows_held_back"
        await a.execute("COMMIT")
        assert await _polls_until(sidecar, 3) <= 2
        await sidecar.idle()
        await sidecar.verdict(E, "match")
        assert [event.event_id for event in (await sidecar.read(E)).events or ()] == [10, 20, 30]
        assert sidecar.divergences() == {}
        assert set(sidecar.verdicts()) <= {"match", "pending_visibility"}
        await naive.poll()
    assert (E, 20) not in naive.keys, "an id cursor found the row: there was no race"


async def test_the_first_tick_waits_for_the_first_stored_poll(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits since a restart is judged after a look at the table, not before."""
    real, go_on = Feed.take, asyncio.Event()

    async def take(feed: Feed, *told: Any) -> Any:
        await go_on.wait()
        return await real(feed, *told)

    monkeypatch.setattr(Feed, "take", take)
    measured = asyncio.Event()
    async with service(pg.dsn, tmp_path / "chain.db", tick_s=0.05) as sidecar:
        gauges = sidecar.line._gauges

        async def measure() -> None:
            await gauges()
            measured.set()

        sidecar.line._gauges = measure
        for _ in range(3):  # three rounds of the gauges, which tick as often as the comparator
            measured.clear()
            await measured.wait()
        assert sidecar.value("shadow_tick_seconds_count") == 0
        go_on.set()
        await sidecar.ticks(1)
