"""Recorded logs played live with states asked for all the time: skips, and never a wrong one.

A healthy lane never misses: no divergence at any poll interval, though comparator and late lane
are often the first to write a row.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.certified import Answer
from sidecar.core.certificate import MAX_CONSECUTIVE_SKIPS, Decision
from sidecar.core.digest import digest
from sidecar.core.ports import Batch, Unit
from sidecar.core.workflow import fold
from sidecar.demo.player import play
from sidecar.demo.recording import Recording, load, only
from sidecar.source.tail import WindowLane
from tests.support.databases import Database
from tests.support.recorded import CLEAN, LONG, PUBLISHED, RESTARTS, recorded_set
from tests.support.service import Service, service


class Asker:
    """Asks for the state of every execution in turn and folds each answer again in its own hold."""

    def __init__(self, sidecar: Service, every_s: float) -> None:
        self._sidecar = sidecar
        self._every_s = every_s
        self.decisions: Counter[Decision | None] = Counter()

    async def run(self) -> None:
        while True:
            known = await self._sidecar.store.query("SELECT execution_id FROM partition WHERE NOT terminal")
            for (execution_id,) in known:
                await self.ask(execution_id)
            await asyncio.sleep(self._every_s)

    async def ask(self, execution_id: int) -> None:
        async def work(unit: Unit) -> Answer:
            answer = await self._sidecar.line.certified.rebuild_or_skip(unit, execution_id)
            events = (await unit.guarded_read(execution_id)).events
            expected = None if events is None else fold(events)
            assert (answer.state is None) is (expected is None)
            if answer.state is not None and expected is not None:
                assert digest(answer.state) == digest(expected)
            return answer

        self.decisions[(await self._sidecar.store.transact(work)).decision] += 1


async def played(
    pg: Database, store: Path, recording: Recording, *, speed: float, poll_ms: int, every_s: float
) -> Counter[Decision | None]:
    """Play, ask all the while, and say what was decided; misses would have shown by then."""
    settings: dict[str, Any] = {
        "cert": "on",
        "poll_ms": poll_ms,
        "settle_s": 0.5,
        "tick_s": 0.2,
        "dangling_s": 30,
        "live_window_s": round(60 + recording.backlog_s(speed)),
    }
    async with service(pg.dsn, store, **settings) as sidecar:
        asker = Asker(sidecar, every_s)
        asking = asyncio.create_task(asker.run())
        report = await play(pg.dsn, recording, speed=speed, connections=8)
        assert report.complete
        await sidecar.polls(3, patience_s=180)
        asking.cancel()
        await asyncio.wait({asking})
        if not asking.cancelled():
            asking.result()
        await sidecar.ticks(2)

        async def shown() -> bool:
            found = await sidecar.store.query(
                "SELECT sum(iif(label IS NULL, head_seq + held, max(rows_seen, head_seq))) FROM partition"
            )
            return (found[0][0] or 0) >= recording.rows

        await sidecar.until(shown, patience_s=60)
        assert sidecar.value("cert_divergences_total") == 0
        assert sidecar.value("cert_revalidation_window_seconds") > MAX_CONSECUTIVE_SKIPS * 0.2
        counted = sidecar.moved("cert_decisions_total")
        assert counted["skipped"] >= asker.decisions[Decision.SKIPPED] > 0
    share = asker.decisions[Decision.SKIPPED] / asker.decisions.total()
    sys.stdout.write(
        f"\n{recording.rows} rows, poll {poll_ms} ms: {asker.decisions.total()} states asked for, "
    )
    sys.stdout.write(
        f"share of folds removed {share:.3f} of at most {MAX_CONSECUTIVE_SKIPS}/17 = {16 / 17:.3f}\n"
    )
    return asker.decisions


def recording_of(name: str) -> Recording:
    return load(recorded_set(name).folder, name)


@pytest.mark.torture
async def test_a_short_log_played_live_skips_and_never_misses(pg: Database, tmp_path: Path) -> None:
    whole = recording_of(CLEAN)
    recording = only(whole, list(whole.verdicts or {})[:20])
    await played(pg, tmp_path / "chain.db", recording, speed=60, poll_ms=20, every_s=0.05)


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("poll_ms", [150, 50])
@pytest.mark.parametrize("name", [CLEAN, RESTARTS, PUBLISHED])
async def test_no_recorded_log_shows_a_miss(pg: Database, tmp_path: Path, name: str, poll_ms: int) -> None:
    await played(pg, tmp_path / "chain.db", recording_of(name), speed=4, poll_ms=poll_ms, every_s=1.0)


@pytest.mark.torture
@pytest.mark.timeout(1200)
async def test_the_long_recorded_log_shows_no_miss(pg: Database, tmp_path: Path) -> None:
    await played(pg, tmp_path / "chain.db", recording_of(LONG), speed=14, poll_ms=150, every_s=1.0)


async def test_a_row_withheld_from_the_real_live_lane_is_a_miss(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recording_of(CLEAN)
    recording = only(whole, list(whole.verdicts or {})[:20])
    shown = WindowLane._batch
    withheld: set[int] = set()

    def losing(self: WindowLane, *given: Any, **named: Any) -> Batch:
        batch = shown(self, *given, **named)
        if self.name != "live":
            return batch
        lost = {row.event.event_id for row in batch.rows if (row.event.event_id >> 22) % 10 == 7}
        withheld.update(lost)
        return replace(batch, rows=tuple(row for row in batch.rows if row.event.event_id not in lost))

    monkeypatch.setattr(WindowLane, "_batch", losing)
    settings = {"cert": "on", "live_window_s": round(60 + recording.backlog_s(40)), "late_poll_s": 0.2}
    async with service(pg.dsn, tmp_path / "chain.db", **settings) as sidecar:
        await play(pg.dsn, recording, speed=40, connections=8)

        async def missed() -> bool:
            return sidecar.value("cert_divergences_total") > 0

        await sidecar.until(missed)
        assert withheld
        answer = await sidecar.line.certified.state(sidecar.store, next(iter(recording.executions)))
        assert answer.decision in (Decision.DIVERGENCE_DETECTED, Decision.NO_CERTIFICATE)
