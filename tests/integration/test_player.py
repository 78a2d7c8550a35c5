"""The player writes a recorded log as it was written: same rows, transactions and order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest

from sidecar.demo.player import PlayReport, Progress, play
from sidecar.demo.recording import Recording, Row, Transaction, load, only, whole
from sidecar.errors import ConfigError, SourceContractError, SourceUnavailable
from tests.support.databases import Database
from tests.support.recorded import CLEAN, PUBLISHED, RESTARTS, UNLINKED_SMALL, recorded_set
from tests.support.rows import event_row, line_of

AT_ONCE = float("inf")


def recorded(name: str) -> Recording:
    return load(recorded_set(name).folder, name)


def made(times: Sequence[tuple[int, int]]) -> Recording:
    """A log of one-row transactions, in the order of commit: (opened, committed) in ms."""
    return Recording("made", tuple(_transaction(at, *span) for at, span in enumerate(times)))


def _transaction(position: int, opened_ms: int, committed_ms: int) -> Transaction:
    text = line_of(
        event_row(7, position + 1, prev=position or None, created_at="2026-01-01T00:00:00", result=None)
    )
    return Transaction(position, opened_ms * 1000, committed_ms * 1000, (Row(7, position + 1, text),))


async def visible(conn: Any) -> set[tuple[int, int]]:
    return {tuple(row) for row in await conn.fetch("SELECT execution_id, event_id FROM noetl.event")}


@pytest.mark.parametrize(
    ("name", "recorded_s"),
    [
        (RESTARTS, 40),
        pytest.param(CLEAN, 40, marks=pytest.mark.torture),
        pytest.param(PUBLISHED, 1000, marks=pytest.mark.torture),
        pytest.param(UNLINKED_SMALL, 1000, marks=pytest.mark.torture),
    ],
)
async def test_every_row_arrives_as_recorded_but_for_one_shift_of_its_times(
    pg: Database, name: str, recorded_s: float
) -> None:
    recording = whole(recorded(name), recorded_s)
    report = await play(pg.dsn, recording, speed=AT_ONCE)
    assert report.complete
    conn = await pg.connect(server_settings={"timezone": "UTC"})
    await conn.execute(
        "UPDATE noetl.event SET created_at = created_at - $1::interval,"
        " event_time = event_time - $1::interval, ingest_time = ingest_time - $1::interval",
        report.shift,
    )
    await conn.execute("SET extra_float_digits = 1")
    rows = await conn.fetch("SELECT row_to_json(e)::text AS line FROM noetl.event AS e")
    played = recording.executions
    lines = [line for line in recorded_set(name).lines() if json.loads(line)["execution_id"] in played]
    assert lines
    assert sorted(row["line"] for row in rows) == sorted(lines)


async def test_rows_of_one_transaction_share_their_xid(pg: Database) -> None:
    recording = whole(recorded(PUBLISHED), 60)
    await play(pg.dsn, recording, speed=AT_ONCE)
    rows = await pg.fetch("SELECT execution_id, event_id, xmin::text AS xid FROM noetl.event")
    xids = {(row["execution_id"], row["event_id"]): row["xid"] for row in rows}
    together = [
        {xids[row.execution_id, row.event_id] for row in each.rows} for each in recording.transactions
    ]
    assert all(len(one) == 1 for one in together)
    assert len(set.union(*together)) == len(recording.transactions)
    assert max(len(each.rows) for each in recording.transactions) > 1


@pytest.mark.torture
async def test_what_is_visible_is_always_a_prefix_of_the_recorded_commits(pg: Database) -> None:
    recording = whole(recorded(CLEAN), 24)
    position = {
        (row.execution_id, row.event_id): each.position
        for each in recording.transactions
        for row in each.rows
    }
    ends = list(accumulate(len(each.rows) for each in recording.transactions))
    conn = await pg.connect()
    playing = asyncio.create_task(play(pg.dsn, recording, speed=24))
    seen: set[int] = set()
    while not playing.done():
        now = await visible(conn)
        if now:
            # All rows of every transaction up to the last visible one, and no others.
            assert len(now) == ends[max(position[key] for key in now)]
        seen.add(len(now))
    assert (await playing).rows == ends[-1]
    assert len(seen) > 10  # the looks really fell between the commits


@pytest.mark.torture
async def test_transactions_overlap(pg: Database) -> None:
    recording = whole(recorded(CLEAN), 24)
    report = await play(pg.dsn, recording, speed=24)
    assert report.max_open > 1
    rows = await pg.fetch("SELECT execution_id, event_id, xmin::text::bigint AS xid FROM noetl.event")
    xids = {(row["execution_id"], row["event_id"]): row["xid"] for row in rows}
    by_commit = [xids[each.rows[0].execution_id, each.rows[0].event_id] for each in recording.transactions]
    assert sum(early > late for early, late in pairwise(by_commit)) > 10


@pytest.mark.parametrize("connections", [1, 2, 3, 8])
async def test_few_connections_never_stand_still(pg: Database, connections: int) -> None:
    """Twenty transactions all want to be open before the one that must commit first."""
    recording = made([(20 - at, 30 + at) for at in range(20)])
    async with asyncio.timeout(20):
        report = await play(pg.dsn, recording, speed=AT_ONCE, connections=connections)
    assert report.transactions == report.rows == 20
    assert report.max_open <= connections


TIMER_S = 0.001
"""uvloop counts whole milliseconds: a timer may come so much too early."""


async def test_gaps_are_divided_by_the_speed(pg: Database) -> None:
    recording = made([(0, 0), (0, 60_000)])
    report = await play(pg.dsn, recording, speed=200)
    assert 0.3 - TIMER_S <= report.seconds < 60
    assert recording.played_s(200) == 0.3
    assert recording.backlog_s(200) == pytest.approx(59.7)


async def test_the_log_happens_now_and_no_row_is_created_after_its_commit(pg: Database) -> None:
    recording = whole(recorded(CLEAN), 24)
    report = await play(pg.dsn, recording, speed=24)
    (row,) = await pg.fetch(
        "SELECT extract(epoch FROM now() AT TIME ZONE 'UTC' - max(created_at))::float8 AS last,"
        " extract(epoch FROM now() AT TIME ZONE 'UTC' - min(created_at))::float8 AS first FROM noetl.event"
    )
    assert 0 <= row["last"] < 15
    assert row["first"] <= recording.backlog_s(24) + report.seconds + 5


async def test_stop_leaves_a_prefix_and_no_session(pg: Database) -> None:
    recording = recorded(RESTARTS)
    stop = asyncio.Event()

    def stop_soon(progress: Progress) -> None:
        if progress.transactions == 100:
            stop.set()

    report: PlayReport = await play(pg.dsn, recording, stop=stop, on_progress=stop_soon, speed=AT_ONCE)
    assert not report.complete
    assert 100 <= report.transactions < len(recording.transactions)
    conn = await pg.connect()
    now = await visible(conn)
    prefix = {
        (row.execution_id, row.event_id)
        for each in recording.transactions[: report.transactions + 1]
        for row in each.rows
    }
    assert now <= prefix
    async with asyncio.timeout(10):
        while await conn.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ):
            await conn.execute("SELECT pg_sleep(0.01)")


async def test_cancelled_it_ends(pg: Database) -> None:
    playing = asyncio.create_task(play(pg.dsn, recorded(RESTARTS)))
    conn = await pg.connect()
    async with asyncio.timeout(10):
        while not await visible(conn):
            await conn.execute("SELECT pg_sleep(0.01)")
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing


async def test_progress_counts_every_commit(pg: Database) -> None:
    told: list[Progress] = []
    recording = whole(recorded(PUBLISHED), 24)
    await play(pg.dsn, recording, speed=AT_ONCE, on_progress=told.append)
    assert [each.transactions for each in told] == list(range(1, len(recording.transactions) + 1))
    assert told[-1].rows == recording.rows
    assert told[-1].open_now == 0


async def test_an_older_table_takes_the_columns_it_has(pg_older: Database) -> None:
    recording = whole(recorded(CLEAN), 10)
    await play(pg_older.dsn, recording, speed=AT_ONCE)
    (row,) = await pg_older.fetch("SELECT count(*) FROM noetl.event")
    assert row[0] == recording.rows > 0


async def test_an_empty_recording_ends_at_once(pg: Database) -> None:
    report = await play(pg.dsn, Recording("empty", ()))
    assert (report.rows, report.complete) == (0, True)


async def test_one_execution_alone_keeps_its_rows(pg: Database) -> None:
    recording = recorded(PUBLISHED)
    execution = min(recording.executions)
    await play(pg.dsn, only(recording, [execution]), speed=AT_ONCE)
    rows = await pg.fetch("SELECT event_id FROM noetl.event")
    expected = {row.event_id for each in recording.transactions for row in each.rows}
    lines = [json.loads(line) for line in recorded_set(PUBLISHED).lines()]
    assert {row[0] for row in rows} == {
        each["event_id"] for each in lines if each["execution_id"] == execution
    }
    assert {row[0] for row in rows} < expected


async def test_a_refused_row_is_an_error_without_its_content(pg: Database) -> None:
    good, other = made([(0, 1), (1, 2)]).transactions
    text = line_of(event_row(7, 2, prev=1, created_at="2026-01-01T00:00:00", result='{"secret": 1}'))
    bad = replace(other, rows=(Row(7, 2, text),))
    with pytest.raises(SourceContractError, match="CheckViolationError, 23514") as refused:
        await play(pg.dsn, Recording("bad", (good, bad)), speed=AT_ONCE, connections=1)
    assert "secret" not in str(refused.value)
    (row,) = await pg.fetch("SELECT count(*) FROM noetl.event")
    assert row[0] == 1


async def test_no_server_and_no_table_are_told_apart(pg: Database) -> None:
    with pytest.raises(SourceUnavailable):
        await play("postgresql://postgres@/x?host=/nowhere", made([(0, 1)]))
    with pytest.raises(SourceContractError):
        await play(pg.dsn, made([(0, 1)]), schema="elsewhere")


@pytest.mark.parametrize(("speed", "connections"), [(0, 1), (-1, 1), (float("nan"), 1), (1, 0)])
async def test_no_speed_and_no_connection_are_refused(speed: float, connections: int) -> None:
    with pytest.raises(ConfigError):
        await play("postgresql:///never", made([(0, 1)]), speed=speed, connections=connections)
