"""`/livez` tells the truth: what waits with a bound is alive, what hangs is not.

The shortest silence is cut from 30 s to two; every wait of these tests is longer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sidecar.telemetry.health import Health
from tests.support.databases import Database
from tests.support.proxy import proxy
from tests.support.rows import chain_rows, event_row
from tests.support.service import Service, service
from tests.support.waiting import until

E = 7200
SILENCE_S = 2.0
STEP_S = 0.05


@pytest.fixture(autouse=True)
def _short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.telemetry.health.SILENCE_MIN_S", SILENCE_S)


class Pace:
    """Seconds that the loop had: where others have the machine, none pass."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    async def step(self) -> None:
        await asyncio.sleep(STEP_S)
        self._now += STEP_S

    async def silent(self, sidecar: Service, seconds: float) -> set[str]:
        """Every loop that was called silent in this time."""
        found: set[str] = set()
        for _ in range(round(seconds / STEP_S)):
            await self.step()
            found.update(sidecar.health.silent())
        return found


@pytest.fixture
def pace() -> Pace:
    """Stands still unless somebody takes steps."""
    return Pace()


@pytest.mark.torture
async def test_lanes_that_rest_between_two_rounds_are_alive(pg: Database, tmp_path: Path, pace: Pace) -> None:
    """A sweep of one partition has nothing to hand over for a whole round."""
    settings = {"sweep_round_s": 600, "late_poll_s": 600, "poll_ms": 1000}
    async with service(pg.dsn, tmp_path / "chain.db", health=Health(clock=pace), **settings) as sidecar:
        await sidecar.caught_up()
        assert await pace.silent(sidecar, SILENCE_S + 1) == set()


async def test_loops_that_wait_in_statements_are_alive_until_their_deadline(
    pg: Database, tmp_path: Path, pace: Pace
) -> None:
    async with service(
        pg.dsn, tmp_path / "chain.db", health=Health(clock=pace), sweep_round_s=0.5
    ) as sidecar:
        await pg.insert([event_row(E, 1), event_row(E, 3, prev=2)])  # asked for at every tick
        await sidecar.verdict(E, "pending_visibility")
        locker = await pg.connect()
        await locker.execute("BEGIN; LOCK TABLE noetl.event IN ACCESS EXCLUSIVE MODE")
        assert await pace.silent(sidecar, SILENCE_S + 1) == set()
        waiting = "SELECT count(*) >= 3 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await until(lambda: pg.holds(waiting))
        await locker.execute("ROLLBACK")
        await pg.insert([event_row(E, 2, prev=1)])
        await sidecar.verdict(E, "match")


async def test_a_log_that_is_away_from_the_start_is_no_reason_to_die(
    pg: Database, tmp_path: Path, pace: Pace
) -> None:
    """The comparator waits for the first poll, which nobody can promise."""
    async with (
        proxy(pg.dsn) as way,
        service(way.dsn, tmp_path / "chain.db", health=Health(clock=pace), query_timeout_s=0.2) as sidecar,
    ):
        way.swallow()
        assert await pace.silent(sidecar, SILENCE_S + 1) == set()


@pytest.mark.torture
async def test_a_lane_that_waits_for_its_turn_is_as_alive_as_who_has_it(
    pg: Database, tmp_path: Path, pace: Pace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db", health=Health(clock=pace)) as sidecar:
        await sidecar.caught_up()
        feed: Any = sidecar.line._feed
        hangs = asyncio.Event()

        async def hanging(*_: object, **__: object) -> None:
            await hangs.wait()

        monkeypatch.setattr(feed, "_take_part", hanging)
        await pg.insert(chain_rows(E, range(1, 4)))
        silent = await pace.silent(sidecar, SILENCE_S + 1)
        assert len(silent & {"live", "late", "sweep"}) == 1, "one hangs, and it is told"
