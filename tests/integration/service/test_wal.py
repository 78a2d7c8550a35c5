"""The whole sidecar over the WAL source: the same store as the poll's, also when the source changes."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.lsn import lsn_of
from sidecar.demo.player import play
from sidecar.demo.recording import load as load_recording
from sidecar.telemetry.health import NotReady
from tests.support.databases import Database
from tests.support.load import Load
from tests.support.published import drop_slots
from tests.support.recorded import CLEAN, PUBLISHED, RESTARTS, recorded_set
from tests.support.rows import chain_rows, event_row
from tests.support.service import Service, service
from tests.support.tailing import log_keys
from tests.support.waiting import until

MIB = 2**20
E = 8800
Stored = list[tuple[Any, ...]]


def stored(path: Path) -> Stored:
    with closing(sqlite3.connect(path)) as conn:
        return conn.execute(
            "SELECT execution_id, exec_seq, event_id, prev_event_id, parent_execution_id, event_type, body"
            " FROM event ORDER BY execution_id, exec_seq"
        ).fetchall()


def judged(path: Path) -> dict[int, str]:
    with closing(sqlite3.connect(path)) as conn:
        return dict(conn.execute("SELECT execution_id, verdict FROM partition").fetchall())


def commits(path: Path) -> dict[tuple[int, int], int]:
    with closing(sqlite3.connect(path)) as conn:
        rows = conn.execute(
            "SELECT execution_id, event_id, commit_lsn FROM event WHERE commit_lsn IS NOT NULL"
        )
        return {(row[0], row[1]): lsn_of(row[2]) for row in rows}


async def _ended(sidecar: Service, *, lane: str, rows: int, patience_s: float = 60.0) -> None:
    """Until everything is delivered and judged."""

    async def delivered() -> bool:
        (count,) = (await sidecar.store.query("SELECT sum(rows_seen) FROM partition"))[0]
        return (count or 0) >= rows

    await sidecar.until(delivered, patience_s=patience_s)
    await sidecar.polls(1, lane=lane, patience_s=patience_s)
    await sidecar.idle(patience_s=patience_s)


async def _side_by_side(pg: Database, folder: Path, load: Load, **settings: Any) -> None:
    polled, decoded = folder / "poll.db", folder / "wal.db"
    async with (
        service(pg.dsn, polled, **settings) as poll,
        service(pg.dsn, decoded, tail="wal", **settings) as wal,
    ):
        await wal.caught_up()
        await load.run()
        await asyncio.gather(
            _ended(poll, lane="live", rows=load.committed), _ended(wal, lane="wal", rows=load.committed)
        )
        assert poll.divergences() == wal.divergences() == {}
        found = wal.moved("tail_rows_total")
        gaps = wal.moved("tail_wal_gaps_total")
    assert load.early > 0, "no row came before its predecessor: there was no race"
    assert load.rolled_back > 0
    assert stored(polled) == stored(decoded)
    assert {(row[0], row[2]) for row in stored(decoded)} == load.visible
    assert set(judged(decoded).values()) == {"match"}
    assert gaps == {"first": 1}
    assert found["wal"] > 0.5 * load.committed
    assert set(found) <= {"wal", "sweep", "comparator"}
    assert len(commits(decoded)) >= 0.99 * load.committed, "whoever stored them, they came by the WAL"


async def test_poll_and_wal_beside_many_writers_fill_equal_stores(pg_wal: Database, tmp_path: Path) -> None:
    await _side_by_side(pg_wal, tmp_path, Load(pg_wal.dsn, total=1200, longest_s=0.5), sweep_round_s=60)


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_poll_and_wal_beside_many_writers_fill_equal_stores_at_length(
    pg_wal: Database, tmp_path: Path
) -> None:
    load = Load(pg_wal.dsn, total=6_000, seed=3)
    await _side_by_side(pg_wal, tmp_path, load, sweep_round_s=20, settle_s=2, tick_s=0.5)


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [CLEAN, RESTARTS, PUBLISHED])
async def test_a_recorded_log_fills_equal_stores(pg_wal: Database, tmp_path: Path, name: str) -> None:
    recorded = recorded_set(name)
    recording = load_recording(recorded.folder, name)
    settings = {"settle_s": 2, "tick_s": 0.5, "dangling_s": 30, "sweep_round_s": 20}
    polled, decoded = tmp_path / "poll.db", tmp_path / "wal.db"
    async with (
        service(pg_wal.dsn, polled, **settings) as poll,
        service(pg_wal.dsn, decoded, tail="wal", **settings) as wal,
    ):
        await wal.caught_up()
        assert (await play(pg_wal.dsn, recording, speed=40.0)).complete
        for each, lane in ((poll, "live"), (wal, "wal")):
            await _ended(each, lane=lane, rows=recording.rows, patience_s=200)
        assert wal.moved("tail_wal_gaps_total") == {"first": 1}
    expected = recorded.verdicts()
    assert judged(polled) == judged(decoded) == expected
    clean = {execution for execution, verdict in expected.items() if verdict == "match"}
    assert [row for row in stored(polled) if row[0] in clean] == [
        row for row in stored(decoded) if row[0] in clean
    ]


@pytest.mark.torture
async def test_changing_the_source_under_load_loses_nothing(pg_wal: Database, tmp_path: Path) -> None:
    """poll, wal, poll, wal; rows are committed while nobody looks, and older than any window."""
    path = tmp_path / "chain.db"
    # The writers are let half a part beyond where the source changes: they write at that moment.
    load = Load(pg_wal.dsn, total=900, writers=8, longest_s=0.5, up_to=225)
    fast = {"sweep_round_s": 3600, "late_window_s": 1, "live_window_s": 1}
    old = iter(range(1, 100))

    async def aged() -> None:
        """A row that no window of the poll reaches."""
        number = next(old)
        await pg_wal.insert([event_row(E + number, number, created_at="2020-01-01T00:00:00")])

    writing = asyncio.create_task(load.run())
    for part, tail in enumerate(("poll", "wal", "poll", "wal"), start=1):
        async with service(pg_wal.dsn, path, tail=tail, **fast) as sidecar:
            await aged()
            await load.reached(150 * part)
            await sidecar.caught_up()
            lanes = set(await sidecar.store.cursors())
            assert ("wal" in lanes, "live" in lanes) == (tail == "wal", tail == "poll")
        assert not writing.done(), "the source changed under load"
        await load.go_on(None if part == 4 else 150 * (part + 1) + 75)
        await aged()
    async with service(pg_wal.dsn, path, tail="poll", **fast) as sidecar:
        await writing
        await sidecar.caught_up()
        await _ended(sidecar, lane="live", rows=load.committed + 8)
        assert sidecar.divergences() == {}
        keys = await log_keys(await pg_wal.connect())
    assert {(row[0], row[2]) for row in stored(path)} == keys
    assert len(keys) == load.committed + 8
    # What a catch-up stores and is older than lookback waits for the audit.
    assert {verdict for e, verdict in judged(path).items() if e in load.executions} == {"match"}
    assert commits(path), "some came by the WAL"


async def test_a_dropped_slot_is_told_and_readiness_waits_for_the_sweep(
    pg_wal: Database, tmp_path: Path
) -> None:
    path = tmp_path / "chain.db"
    async with service(pg_wal.dsn, path, tail="wal", sweep_round_s=3600) as sidecar:
        await pg_wal.insert(chain_rows(E, [1, 2, 3]))
        await sidecar.verdict(E, "match")
        await sidecar.idle()
    await drop_slots(pg_wal)
    await pg_wal.insert([event_row(E, 4, prev=3, created_at="2020-01-01T00:00:00")])
    async with service(pg_wal.dsn, path, tail="wal", sweep_round_s=3600) as sidecar:
        assert (
            NotReady.CATCHING_UP in sidecar.health.reasons() or NotReady.STARTING in sidecar.health.reasons()
        )
        await sidecar.stored(E, 4)
        await sidecar.idle()
        await sidecar.looked()

        async def told() -> bool:
            return sidecar.moved("tail_wal_gaps_total") == {"slot_missing": 1}

        await sidecar.until(told)
        assert sidecar.value("tail_rows_total", lane="sweep") == 1


async def test_what_the_server_keeps_for_the_slot_is_shown(pg_wal: Database, tmp_path: Path) -> None:
    """A transaction that is open holds the slot back, whatever has been read of what came behind it."""
    async with service(pg_wal.dsn, tmp_path / "chain.db", tail="wal", sweep_round_s=3600) as sidecar:
        await sidecar.caught_up()
        holding = await pg_wal.connect()
        await holding.execute("BEGIN; SELECT pg_current_xact_id()")
        await pg_wal.execute(f"SELECT pg_logical_emit_message(false, 'test', repeat('x', {2 * MIB}))")
        await until(lambda: sidecar.value("tail_wal_retained_bytes") > MIB)
        await holding.execute("ROLLBACK")


async def test_a_removed_row_is_judged_at_once(pg_wal: Database, tmp_path: Path) -> None:
    async with service(pg_wal.dsn, tmp_path / "chain.db", tail="wal", sweep_round_s=3600) as sidecar:
        await sidecar.caught_up()
        await pg_wal.insert(chain_rows(E, [1, 2, 3]))
        await sidecar.verdict(E, "match")
        await sidecar.idle()
        await pg_wal.execute("DELETE FROM noetl.event WHERE event_id = 2")

        async def noticed() -> bool:
            return (await sidecar.partition(E)).verdict != "match"

        await sidecar.until(noticed)
        assert not (await sidecar.read(E)).events
