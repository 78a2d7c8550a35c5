"""A recorded log of an engine that was killed all the time: what is joined, and that none of it is wrong.

Every execution keeps its own pacing, and the sidecar polls every 150 ms as it does by default.  Each
join is held against the recorded order, and against the instant at which Postgres inserted the rows.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.rejoin import Join
from sidecar.demo.player import play
from sidecar.demo.recording import Recording, load, only
from sidecar.readings import Reading
from tests.support.databases import Database
from tests.support.proxy import Proxy, proxy
from tests.support.recorded import PUBLISHED, RESTARTS, recorded_set
from tests.support.restarted import INSTANTS, folded, instants, restarted, spans_s
from tests.support.service import service
from tests.support.waiting import until

WIRE_DEADLINE_S = 1.0
SHORT_S = 8.0
"""The executions of the default run end within so many seconds of their first row."""


def _recording(name: str) -> Recording:
    return load(recorded_set(name).folder, name)


def _short(whole: Recording) -> list[int]:
    """The restarted executions that are soon over."""
    found, spans = restarted(whole), spans_s(whole)
    return [e for e in found.sequential | found.apart if spans[e] <= SHORT_S]


@dataclass(frozen=True, slots=True)
class Played:
    """The verdict of each execution, the joins that are kept, and what is served."""

    verdicts: dict[int, str]
    joins: list[Join]
    served: dict[int, list[int]]
    at: dict[int, float]
    series: dict[str, float]

    @property
    def joined(self) -> set[int]:
        return {e for e, verdict in self.verdicts.items() if verdict == "match_rejoined"}


async def _play(
    pg: Database,
    store: Path,
    recording: Recording,
    speed: float,
    tail: str = "poll",
    wire: Proxy | None = None,
) -> Played:
    """`wire`: the sidecar's way to the log, which breaks and goes dead while the log is played."""
    await pg.execute(INSTANTS)
    settings: dict[str, Any] = {
        "rejoin": Reading.ON,
        "tail": tail,
        "poll_ms": 150,
        "tick_s": 0.5,
        "dangling_s": 30,
        "sweep_round_s": 5,
        "live_window_s": 600,
    }
    if wire is not None:
        settings["query_timeout_s"] = WIRE_DEADLINE_S

    async with service(pg.dsn if wire is None else wire.dsn, store, **settings) as sidecar:

        async def all_judged() -> bool:
            seen = "SELECT sum(iif(label IS NULL, head_seq + held, max(rows_seen, head_seq))) FROM partition"
            return ((await sidecar.store.query(seen))[0][0] or 0) >= recording.rows

        await sidecar.caught_up()
        breaking = None if wire is None else asyncio.create_task(_broken_again_and_again(wire))
        report = await play(pg.dsn, recording, speed=speed, connections=16)
        assert report.complete
        if breaking is not None and wire is not None:
            breaking.cancel()
            await asyncio.wait({breaking})
            wire.heal()
        await sidecar.until(all_judged, patience_s=60)
        await sidecar.idle(patience_s=60)
        assert sidecar.divergences() == {}
        verdicts: dict[int, str] = dict(
            await sidecar.store.query("SELECT execution_id, verdict FROM partition")
        )
        joins = [join for e in verdicts for join in await sidecar.store.joins(e)]
        served = {
            e: [event.event_id for event in read.events]
            for e in verdicts
            if (read := await sidecar.read(e)).events is not None
        }
        return Played(verdicts, joins, served, await instants(pg), sidecar.verdicts())


async def _broken_again_and_again(wire: Proxy) -> None:
    """In the middle of an answer, and dead for longer than the deadline of a query, by turns."""
    moments = random.Random(9)
    while True:
        cuts = wire.cuts
        await asyncio.sleep(moments.uniform(1, 4))
        wire.cut_once_after(moments.randrange(4000))
        await until(lambda: wire.cuts > cuts)  # noqa: B023 - awaited here
        await asyncio.sleep(moments.uniform(1, 4))
        wire.swallow()
        await asyncio.sleep(1.5 * WIRE_DEADLINE_S)
        wire.heal()


def _none_is_wrong(played: Played, recording: Recording) -> None:
    """Every join agrees with the order of insertion; what is not in sequence is neither joined nor served.

    In the end: until the row came that speaks against it, nobody could know.
    """
    truth = restarted(recording)
    for join in played.joins:
        assert played.at[join.root_event_id] > played.at[join.tip_event_id], join
    assert played.joined <= truth.sequential
    assert not truth.apart & played.served.keys()
    for e, verdict in (recording.verdicts or {}).items():
        if e in played.joined:
            continue
        allowed = {verdict, "rejoin_withdrawn"} if e in truth.apart else {verdict}
        assert played.verdicts[e] in allowed, e
    for e in played.joined:
        order = [played.at[event_id] for event_id in played.served[e] if event_id in _roots(played, e)]
        assert order == sorted(order)


def _roots(played: Played, execution_id: int) -> set[int]:
    return {join.root_event_id for join in played.joins if join.execution_id == execution_id}


def _as_recorded(played: Played, recording: Recording) -> None:
    truth = restarted(recording)
    for join in played.joins:
        assert truth.opened_at[join.root_event_id] > truth.committed_at[join.tip_event_id], join


def _say(played: Played, recording: Recording) -> None:
    truth = restarted(recording)
    withdrawn = sum(played.verdicts[e] == "rejoin_withdrawn" for e in truth.apart)
    sys.stderr.write(
        f"{recording.name}: {len(played.joined)} of {len(truth.sequential)} joined, {len(truth.apart)} apart,"
        f" {withdrawn} of them joined until a row spoke; {len(played.joins)} joins; {played.series}\n"
    )


@pytest.mark.torture
async def test_restarted_executions_in_their_own_pacing_are_joined(pg: Database, tmp_path: Path) -> None:
    """Those that are soon over, begun within three seconds; all of them under `torture`."""
    whole = _recording(RESTARTS)
    recording = folded(whole, _short(whole), 3.0)
    truth = restarted(recording)
    assert len(truth.sequential) > 20
    assert truth.apart
    played = await _play(pg, tmp_path / "chain.db", recording, 1.0)
    _say(played, recording)
    _none_is_wrong(played, recording)
    _as_recorded(played, recording)
    assert len(played.joined) >= len(truth.sequential) * 7 // 8


@pytest.mark.torture
async def test_played_as_fast_as_possible_fewer_are_joined_and_none_is_wrong(
    pg: Database, tmp_path: Path
) -> None:
    """Not folded: the pieces of an execution are milliseconds apart then."""
    whole = _recording(RESTARTS)
    recording = only(whole, _short(whole))
    played = await _play(pg, tmp_path / "chain.db", recording, math.inf)
    _say(played, recording)
    _none_is_wrong(played, recording)
    assert len(played.joined) < len(restarted(recording).sequential) * 7 // 8


@pytest.mark.torture
@pytest.mark.timeout(300)
async def test_all_restarted_executions_in_their_own_pacing(pg: Database, tmp_path: Path) -> None:
    whole = _recording(RESTARTS)
    recording = folded(whole, whole.executions, 10.0)
    truth = restarted(recording)
    assert (len(truth.sequential), len(truth.apart)) == (80, 9)
    played = await _play(pg, tmp_path / "chain.db", recording, 1.0)
    _say(played, recording)
    _none_is_wrong(played, recording)
    _as_recorded(played, recording)
    assert len(played.joined) >= 70
    matched = sum(verdict == "match" for verdict in (recording.verdicts or {}).values())
    assert sum(verdict == "match" for verdict in played.verdicts.values()) == matched == 64


@pytest.mark.torture
async def test_by_the_wal_restarted_executions_in_their_own_pacing_are_joined(
    pg_wal: Database, tmp_path: Path
) -> None:
    whole = _recording(RESTARTS)
    recording = folded(whole, _short(whole), 3.0)
    truth = restarted(recording)
    played = await _play(pg_wal, tmp_path / "chain.db", recording, 1.0, "wal")
    _say(played, recording)
    _none_is_wrong(played, recording)
    _as_recorded(played, recording)
    assert len(played.joined) >= len(truth.sequential) * 7 // 8


@pytest.mark.torture
async def test_by_the_wal_played_as_fast_as_possible_none_is_wrong(pg_wal: Database, tmp_path: Path) -> None:
    """Positions order what one peek brings, so more are joined than by the poll."""
    whole = _recording(RESTARTS)
    recording = only(whole, _short(whole))
    played = await _play(pg_wal, tmp_path / "chain.db", recording, math.inf, "wal")
    _say(played, recording)
    _none_is_wrong(played, recording)
    assert any(join.anchor is None for join in played.joins)


@pytest.mark.torture
@pytest.mark.timeout(300)
async def test_by_the_wal_all_restarted_executions_in_their_own_pacing(
    pg_wal: Database, tmp_path: Path
) -> None:
    whole = _recording(RESTARTS)
    recording = folded(whole, whole.executions, 10.0)
    played = await _play(pg_wal, tmp_path / "chain.db", recording, 1.0, "wal")
    _say(played, recording)
    _none_is_wrong(played, recording)
    _as_recorded(played, recording)
    assert len(played.joined) >= 70


@pytest.mark.torture
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tail", ["poll", "wal"])
async def test_over_a_wire_that_breaks_and_goes_dead_none_is_wrong(
    pg_wal: Database, tmp_path: Path, tail: str
) -> None:
    """What came while nobody heard it comes late, and with less proof: never with a wrong one."""
    whole = _recording(RESTARTS)
    recording = folded(whole, _short(whole), 20.0)
    async with proxy(pg_wal.dsn) as wire:
        played = await _play(pg_wal, tmp_path / "chain.db", recording, 1.0, tail, wire)
        assert wire.cuts > 2
        assert wire.swallowed > 0
    _say(played, recording)
    _none_is_wrong(played, recording)
    _as_recorded(played, recording)
    assert played.joined


@pytest.mark.torture
@pytest.mark.timeout(300)
async def test_an_event_after_the_terminal_one_in_the_published_log(pg: Database, tmp_path: Path) -> None:
    """Of its two executions with several roots one is in sequence, a fifth of a second apart."""
    whole = _recording(PUBLISHED)
    truth = restarted(whole)
    assert (len(truth.sequential), len(truth.apart)) == (1, 1)
    both = truth.sequential | truth.apart
    recording = folded(whole, both, 10.0)
    played = await _play(pg, tmp_path / "chain.db", recording, 1.0)
    _say(played, recording)
    _none_is_wrong(played, recording)
    _as_recorded(played, recording)
