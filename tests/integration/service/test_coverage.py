"""The two numbers of a running sidecar, and whether its run may be accepted.  Spec 3.6, 8.5."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from sidecar.core.acceptance import Controls, Floors, Reason
from sidecar.core.coverage import Observation
from sidecar.service import gauges, standing
from sidecar.service.gauges import Gauges
from sidecar.service.standing import Looker
from sidecar.service.told import Instruments
from sidecar.settings import Settings
from sidecar.store import ChainStore
from sidecar.telemetry.health import Health, NotReady
from sidecar.telemetry.metrics import Metrics
from tests.contract.events import long_chain
from tests.support.databases import Database
from tests.support.fixture_log import SYSTEM, load_fixture
from tests.support.rows import chain_rows, insert_rows
from tests.support.service import Service, service

E = 8800
EASY = {"accept_executions": 1, "accept_hours": 0}


async def _counted(sidecar: Service, executions: int, *, window: str = "start") -> None:
    """Wait until the gauges show so many eligible executions, none of which waits for a first verdict."""

    async def holds() -> bool:
        waiting = sidecar.value("shadow_uncovered_executions", window=window, verdict="unjudged")
        return sidecar.value("shadow_eligible_executions", window=window) == executions and not waiting

    await sidecar.until(holds)


def _blocked(sidecar: Service) -> set[str]:
    return set(sidecar.moved("acceptance_blocked"))


async def test_windows_and_observation_survive_a_restart(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "SAVE_EVERY", 1)
    store = tmp_path / "chain.db"
    await insert_rows(await pg.connect(), chain_rows(E, range(1, 6)))
    async with service(pg.dsn, store, tick_s=0.05) as first:
        await first.verdict(E, "match")
        await _counted(first, 1)

        async def observed() -> bool:
            return first.value("shadow_observation_seconds") > 0.1

        await first.until(observed)
        before = first.value("shadow_observation_seconds")
    async with service(pg.dsn, store, compare="off") as again:
        # Nothing is judged now, so whatever is shown was kept.
        for window in ("5m", "1h", "24h", "start"):
            await _counted(again, 1, window=window)
            assert again.value("shadow_covered_events", window=window) == 5
        await again.looked()
        kept = again.value("shadow_observation_seconds")
        assert kept >= before
        await again.looked()
        assert again.value("shadow_observation_seconds") == kept  # without a comparator nothing is observed


async def test_i26_a_log_that_refuses_every_read_shows_no_divergence_and_is_not_accepted(
    pg: Database, tmp_path: Path
) -> None:
    """With a read limit of one row every log read is truncated, while the lanes deliver on."""
    conn = await pg.connect()
    for execution in range(E, E + 5):
        await insert_rows(conn, chain_rows(execution, range(execution * 10, execution * 10 + 4)))
    async with service(pg.dsn, tmp_path / "chain.db", read_limit=1, **EASY) as sidecar:
        for execution in range(E, E + 5):
            await sidecar.verdict(execution, "log_truncated")
        await sidecar.looked()
        await _counted(sidecar, 5)
        assert sidecar.divergences() == {}
        assert sidecar.value("shadow_covered_executions", window="start") == 0
        # Known for certain is one row of each: what the cut read showed counts, all of it is uncovered.
        assert sidecar.value("shadow_eligible_events", window="start") >= 5
        uncovered = sidecar.value("shadow_uncovered_executions", window="start", verdict="log_truncated")
        assert uncovered == 5
        assert sidecar.value("acceptance") == 0
        assert "coverage" in _blocked(sidecar)
        assert "divergence" not in _blocked(sidecar)


async def test_i30_every_row_of_a_system_execution_is_compared(pg: Database, tmp_path: Path) -> None:
    conn = await pg.connect()
    await load_fixture(conn)
    await conn.execute("DELETE FROM noetl.event WHERE execution_id <> $1", SYSTEM)
    settings = {"late_window_s": 31_536_000, "live_window_s": 86_400}
    async with service(pg.dsn, tmp_path / "chain.db", **settings) as sidecar:
        await sidecar.verdict(SYSTEM, "match")
        await sidecar.ticks(1)
        await sidecar.looked()
        compared = sidecar.value("shadow_events_compared_total")
        assert compared >= 13
        assert compared % 13 == 0  # each time it was judged, all of it
        assert sidecar.value("shadow_covered_events", window="start") == 13
        assert sidecar.value("shadow_eligible_events", window="start") == 13


async def test_only_what_is_missing_stands_against_a_clean_run(pg: Database, tmp_path: Path) -> None:
    await insert_rows(await pg.connect(), chain_rows(E, range(1, 6)))
    async with service(pg.dsn, tmp_path / "chain.db", accept_executions=2, accept_hours=1) as sidecar:
        await sidecar.verdict(E, "match")
        await _counted(sidecar, 1)
        assert sidecar.value("acceptance") == 0
        assert {"executions", "elapsed"} <= _blocked(sidecar)
        assert not {"divergence", "coverage", "pending_share"} & _blocked(sidecar)


async def test_only_a_tick_that_can_be_relied_on_is_observation(tmp_path: Path) -> None:
    health = Health()
    instruments = Instruments(Metrics(), health, structlog.get_logger())
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        given = Settings.given(populate="on", compare="on")
        shown = await Gauges(store, given, instruments).begun()

        async def elapsed() -> float:
            """After two further ticks."""
            shown.ticked()
            shown.ticked()
            await shown.measure()
            assert shown.standing is not None
            return shown.standing.elapsed_s

        assert await elapsed() == 0  # not ready: starting
        health.clear(NotReady.STARTING)
        ready = await elapsed()
        assert ready > 0
        for reason in (NotReady.SOURCE_UNAVAILABLE, NotReady.CONTROL_FAILED, NotReady.CATCHING_UP):
            health.mark(reason)
            assert await elapsed() == ready
            health.clear(reason)
        assert await elapsed() > ready


async def test_a_run_is_accepted_only_while_somebody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = Health()
    instruments = Instruments(Metrics(), health, structlog.get_logger())
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        given = Settings.given(populate="on", compare="on", accept_hours=0)
        shown = await Gauges(store, given, instruments).begun()

        async def watched() -> bool:
            await shown.measure()
            assert shown.standing is not None
            return Reason.ELAPSED not in shown.standing.acceptance.reasons

        health.clear(NotReady.STARTING)
        assert not await watched(), "no tick since the start"
        shown.ticked()
        assert await watched()
        health.mark(NotReady.SOURCE_UNAVAILABLE)
        assert not await watched(), "before the next tick notices"
        shown.ticked()
        health.clear(NotReady.SOURCE_UNAVAILABLE)
        assert not await watched(), "before a tick was good again"
        shown.ticked()
        assert await watched()
        monkeypatch.setattr(shown, "_gap_max", -1)
        assert not await watched(), "the next tick does not come"


async def test_a_window_that_took_long_is_not_counted_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        looker = Looker(store, floors=Floors(), settle=0, began=0)

        async def eligible() -> int:
            now = store.clock.now()
            found = await looker.look(now, Observation(), Controls())
            return found.coverage["start"].eligible_executions

        async def store_one(execution_id: int) -> None:
            await store.populate_from_log(execution_id, long_chain(2, execution_id=execution_id))

        await store_one(1)
        assert await eligible() == 1
        await store_one(2)
        assert await eligible() == 2  # it was cheap
        monkeypatch.setattr(standing, "CHEAP_S", -1)
        monkeypatch.setattr(standing, "PAUSES", 10**6)
        await store_one(3)
        assert await eligible() == 3
        await store_one(4)
        assert await eligible() == 3
