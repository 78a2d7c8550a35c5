"""Recorded logs played live with their own commit interleaving: the end is what was expected.

And nothing wrong is said on the way: rows that come before their predecessor are waited for.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from sidecar.core.settle import settle
from sidecar.core.verdict import Verdict
from sidecar.demo.player import PlayReport, play
from sidecar.demo.recording import BUNDLED, Recording, Transaction, load, only
from tests.support.databases import Database
from tests.support.recorded import CLEAN, LONG, PUBLISHED, RESTARTS, recorded_set
from tests.support.service import Service, service

PATIENCE_S = 60.0


def _recording(name: str) -> Recording:
    return load(recorded_set(name).folder, name)


def _early(recording: Recording) -> list[Transaction]:
    """What became visible before the predecessor of one of its rows, as it was recorded."""
    visible: set[int] = set()
    early = []
    for transaction in recording.transactions:
        visible |= {row.event_id for row in transaction.rows}
        links = [json.loads(row.text)["prev_event_id"] for row in transaction.rows]
        if any(link is not None and int(link) not in visible for link in links):
            early.append(transaction)
    return early


def _lingering(recording: Recording, transactions: Sequence[Transaction], recorded_s: float) -> Recording:
    """The same order of commits, with a rest after each of `transactions`.

    A playback divides the gaps; without a rest no poll need fall into one of them.
    """
    after, rest = [each.committed_at for each in transactions], round(recorded_s * 1e6)

    def moved(at: int) -> int:
        return at + rest * bisect_left(after, at)

    later = [
        replace(each, opened_at=moved(each.opened_at), committed_at=moved(each.committed_at))
        for each in recording.transactions
    ]
    return replace(recording, transactions=tuple(later))


class Waiting:
    """Counts how often the feed kept a row waiting for its predecessor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0

        def counting(*args: Any, **keywords: Any) -> Any:
            settled = settle(*args, **keywords)
            self.times += any(row.event.event_id in settled.pool for row in settled.fresh)
            return settled

        monkeypatch.setattr("sidecar.feed.settling.settle", counting)


def _settings(recording: Recording, speed: float) -> dict[str, Any]:
    return {
        "settle_s": 0.5,
        "tick_s": 0.2,
        "dangling_s": 30,
        "poll_ms": 10,
        "live_window_s": round(60 + recording.backlog_s(speed)),
    }


async def _ended(sidecar: Service, recording: Recording) -> dict[int, str | None]:
    """The verdicts once everything was seen and judged."""

    async def all_seen() -> bool:
        found = await sidecar.store.query(
            "SELECT sum(iif(label IS NULL, head_seq + held, max(rows_seen, head_seq))) FROM partition"
        )
        return (found[0][0] or 0) >= recording.rows

    await sidecar.until(all_seen, patience_s=PATIENCE_S)
    await sidecar.idle(patience_s=PATIENCE_S)
    return dict(await sidecar.store.query("SELECT execution_id, verdict FROM partition"))


def _played_whole(report: PlayReport, recording: Recording) -> None:
    assert report.complete
    assert report.rows == recording.rows


WRONG: Final = frozenset(Verdict) - {
    Verdict.MATCH,
    Verdict.PENDING_VISIBILITY,
    Verdict.PENDING_SETTLE,
    Verdict.PENDING_STALE,
}
"""What must never be said of a clean log, not even on the way."""


async def test_the_clean_log_played_live_is_never_called_anything_but_clean(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eighth of its executions, of every part of it; all of them under `torture`."""
    whole, speed = _recording(CLEAN), 40.0
    recording = only(whole, sorted(whole.executions)[::8])
    recording = _lingering(recording, _early(recording)[::5], recorded_s=4)
    waiting = Waiting(monkeypatch)
    async with service(pg.dsn, tmp_path / "chain.db", **_settings(recording, speed)) as sidecar:
        _played_whole(await play(pg.dsn, recording, speed=speed, connections=8), recording)
        assert await _ended(sidecar, recording) == recording.verdicts
        assert sidecar.divergences() == {}
        assert WRONG.isdisjoint(sidecar.verdicts())
        outcomes = sidecar.moved("populate_total")
        assert not {"diverged", "multiple_roots", "fork", "no_root", "store_gap"} & set(outcomes)
        assert sidecar.value("feed_total", way="extend") > 20
        assert waiting.times > 0, "no row came before its predecessor: there was no race"
        assert await sidecar.store.query("SELECT count(*), sum(held) FROM partition") == [(29, 0)]


@pytest.mark.torture
async def test_a_log_with_restarts_ends_as_expected_though_the_sidecar_restarts_all_the_time(
    pg: Database, tmp_path: Path
) -> None:
    """Every second, while the recorded three minutes play."""
    recording, speed, store = _recording(RESTARTS), 40.0, tmp_path / "chain.db"
    settings = _settings(recording, speed)
    playing = asyncio.create_task(play(pg.dsn, recording, speed=speed, connections=8))
    starts = 0
    while not playing.done():
        async with service(pg.dsn, store, **settings):
            starts += 1
            await asyncio.wait({playing}, timeout=1)
    _played_whole(await playing, recording)
    async with service(pg.dsn, store, **settings) as sidecar:
        assert await _ended(sidecar, recording) == recording.verdicts
    assert starts > 3
    counts = "SELECT group_concat(DISTINCT counted_kinds), sum(held > 0 AND label IS NULL) FROM partition"
    async with service(pg.dsn, store, **settings) as sidecar:
        assert await sidecar.store.query(counts) == [("", 0)], "no divergence was ever counted"


@pytest.mark.torture
async def test_the_published_log_played_live_ends_as_expected(pg: Database, tmp_path: Path) -> None:
    """A few dozen executions of it; all of them under `torture`."""
    whole, speed = _recording(PUBLISHED), 32.0
    verdicts = whole.verdicts or {}
    refused = [execution for execution, verdict in verdicts.items() if verdict != "match"]
    recording = only(whole, [*refused, *list(verdicts)[:40]])
    async with service(pg.dsn, tmp_path / "chain.db", **_settings(recording, speed)) as sidecar:
        _played_whole(await play(pg.dsn, recording, speed=speed, connections=8), recording)
        assert await _ended(sidecar, recording) == recording.verdicts
        assert sidecar.divergences() == {}


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "speed"), [*((name, 8.0) for name in BUNDLED), (LONG, 16.0)])
async def test_every_recorded_log_played_live_ends_as_expected(
    pg: Database, tmp_path: Path, name: str, speed: float
) -> None:
    recording = _recording(name)
    async with service(pg.dsn, tmp_path / "chain.db", **_settings(recording, speed)) as sidecar:
        _played_whole(await play(pg.dsn, recording, speed=speed, connections=12), recording)
        assert await _ended(sidecar, recording) == recording.verdicts
        assert sidecar.divergences() == {}
