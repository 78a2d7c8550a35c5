"""`/livez` tells the truth: what waits with a bound is alive, what hangs is not.

The shortest silence is cut from 30 s to half a second; every wait of these tests is longer.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Database
from tests.support.proxy import proxy
from tests.support.rows import chain_rows, event_row
from tests.support.service import Service, service

E = 7200
SILENCE_S = 0.5


@pytest.fixture(autouse=True)
def _short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.telemetry.health.SILENCE_MIN_S", SILENCE_S)


async def _silent_within(sidecar: Service, seconds: float) -> set[str]:
    """Every loop that was called silent in this time."""
    found: set[str] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found.update(sidecar.health.silent())
        await asyncio.sleep(0.05)
    return found


async def test_lanes_that_rest_between_two_rounds_are_alive(pg: Database, tmp_path: Path) -> None:
    """A sweep of one partition has nothing to hand over for a whole round."""
    settings = {"sweep_round_s": 600, "late_poll_s": 600, "poll_ms": 1000}
    async with service(pg.dsn, tmp_path / "chain.db", **settings) as sidecar:
        await sidecar.caught_up()
        assert await _silent_within(sidecar, 3 * SILENCE_S + 1) == set()


async def test_loops_that_wait_in_statements_are_alive_until_their_deadline(
    pg: Database, tmp_path: Path
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db", sweep_round_s=0.5) as sidecar:
        await pg.insert([event_row(E, 1), event_row(E, 3, prev=2)])  # asked for at every tick
        await sidecar.verdict(E, "pending_visibility")
        locker = await pg.connect()
        await locker.execute("BEGIN; LOCK TABLE noetl.event IN ACCESS EXCLUSIVE MODE")
        assert await _silent_within(sidecar, 4 * SILENCE_S) == set()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        assert (await locker.fetchval(waiting)) >= 3, "nobody waited: the test proves nothing"
        await locker.execute("ROLLBACK")
        await pg.insert([event_row(E, 2, prev=1)])
        await sidecar.verdict(E, "match")


async def test_a_log_that_is_away_from_the_start_is_no_reason_to_die(pg: Database, tmp_path: Path) -> None:
    """The comparator waits for the first poll, which nobody can promise."""
    async with (
        proxy(pg.dsn) as way,
        service(way.dsn, tmp_path / "chain.db", query_timeout_s=0.2) as sidecar,
    ):
        way.swallow()
        assert await _silent_within(sidecar, 4 * SILENCE_S) == set()


async def test_a_lane_that_waits_for_its_turn_is_as_alive_as_who_has_it(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await sidecar.caught_up()
        feed: Any = sidecar.line._feed
        hangs = asyncio.Event()

        async def hanging(*_: object, **__: object) -> None:
            await hangs.wait()

        monkeypatch.setattr(feed, "_take_part", hanging)
        await pg.insert(chain_rows(E, range(1, 4)))
        silent = await _silent_within(sidecar, 4 * SILENCE_S)
        assert len(silent & {"live", "late", "sweep"}) == 1, "one hangs, and it is told"
