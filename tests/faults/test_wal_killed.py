"""The sidecar over the WAL source killed with -9, the server ended at once: nothing is lost or invented."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.faults.test_tail_killed import _count, _log, _stored
from tests.support.databases import Database
from tests.support.engine import Engine, Key
from tests.support.killed import Killable, rows
from tests.support.load import Load
from tests.support.published import PUBLISH
from tests.support.rows import event_row, insert_rows
from tests.support.waiting import until

E = 7600


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_many_writers_and_a_killed_sidecar_agree_byte_for_byte(
    pg_wal: Database, tmp_path: Path
) -> None:
    store, total, kills = tmp_path / "chain.db", 3_000, 3
    part = total // (kills + 1)
    load = Load(pg_wal.dsn, total, up_to=part + part // 2)
    sidecar = await Killable.start(pg_wal.dsn, store, TAIL="wal", SWEEP_ROUND_S="600")
    await sidecar.until(_streams)
    writing = asyncio.create_task(load.run())
    stored_at_kill = [0]
    try:
        for kill in range(1, kills + 1):
            await load.reached(part * kill)
            await sidecar.until(lambda conn: _count(conn) > stored_at_kill[-1])
            await sidecar.kill()
            assert not writing.done(), "it was killed under load"
            with closing(sqlite3.connect(store)) as conn:
                stored_at_kill.append(_count(conn))
            sidecar = await Killable.start(pg_wal.dsn, store, TAIL="wal", SWEEP_ROUND_S="600")
            await load.go_on(None if kill == kills else part * (kill + 1) + part // 2)
        await writing
        await sidecar.until(lambda conn: _count(conn) >= load.committed, patience_s=120)
        await sidecar.until(lambda conn: rows(conn, "SELECT count(*) FROM due") == [(0,)], patience_s=120)
    finally:
        writing.cancel()
        await asyncio.wait({writing})
        code = await sidecar.stop()
    assert code == 0
    log = await _log(pg_wal.dsn)
    assert sum(map(len, log.values())) == load.committed >= total
    assert _stored(store) == log
    assert load.early > total // 100, "rows came in order: there was no race"
    with closing(sqlite3.connect(store)) as conn:
        by_wal = rows(conn, "SELECT count(*) FROM event WHERE commit_lsn IS NOT NULL")[0][0]
        verdicts = rows(conn, "SELECT verdict, held, counted_kinds, count(*) FROM partition GROUP BY 1, 2, 3")
    assert verdicts == [("match", 0, "", len(log))]
    assert by_wal > 0.5 * load.committed, "they came by the log"


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_a_server_ended_at_once_takes_nothing_from_the_stream(
    pg_server: StartServer, tmp_path: Path
) -> None:
    """synchronous_commit is off: what was visible and not on the disk vanishes; the stream never had it.

    A read of the log may have had it: such an execution is `log_lost` and takes no further rows.
    """
    server = await pg_server({"wal_level": "logical", "synchronous_commit": "off", "wal_writer_delay": "1s"})
    pg = Database(server.dsn(), "postgres")
    await pg.execute(PUBLISH)
    engine, store = Engine(pg), tmp_path / "chain.db"
    sidecar = await Killable.start(pg.dsn, store, TAIL="wal", SWEEP_ROUND_S="600", DANGLING_S="5")
    try:
        await sidecar.until(_streams)
        for end in range(3):
            executions = range(E + 10 * end, E + 10 * end + 8)
            loading = asyncio.create_task(engine.write_until_lost(executions))

            def streamed(conn: sqlite3.Connection, of: range = executions) -> bool:
                return sum(execution in of for execution, _ in _by_stream(conn)) >= 60

            await sidecar.until(streamed, patience_s=60)
            server.kill(signal.SIGQUIT)
            await loading
            server.restart()
            await engine.resume(executions)
        await engine.write(range(E + 30, E + 38), 2)
        log = set(await engine.log())

        def settled(conn: sqlite3.Connection) -> bool:
            return {key for key in log if key[0] not in _lost(conn)} <= _keys(conn)

        await sidecar.until(settled, patience_s=90)
    finally:
        assert await sidecar.stop() == 0
    assert log < engine.written, "nothing vanished"
    with closing(sqlite3.connect(store)) as conn:
        assert settled(conn)
        assert _by_stream(conn) <= log
    await pg.close()


async def test_a_slot_that_a_killed_process_was_making_is_waited_for(
    pg_wal: Database, tmp_path: Path
) -> None:
    """Its backend knows nothing of the kill, and waits for transactions that run."""
    writer, making = await pg_wal.connect(), await pg_wal.connect()
    running = writer.transaction()
    await running.start()
    await insert_rows(writer, [event_row(E, 1)])
    made = asyncio.create_task(
        making.fetchval("SELECT pg_create_logical_replication_slot('noetl_chain', 'pgoutput')")
    )

    async def unfinished() -> bool:
        found = await pg_wal.fetch("SELECT confirmed_flush_lsn FROM pg_replication_slots")
        return [tuple(row) for row in found] == [(None,)]

    await until(unfinished)
    sidecar = await Killable.start(pg_wal.dsn, tmp_path / "chain.db", TAIL="wal")
    try:
        log = tmp_path / "sidecar.log"
        await sidecar.until(lambda _: "the replication slot is being made" in log.read_text())
        assert '"loop": "wal"' in log.read_text(), "the lane is at it, the start was not refused"
        await running.commit()
        await made
        await sidecar.until(_streams)
        await sidecar.until(lambda conn: _keys(conn) == {(E, 1)})
    finally:
        assert await sidecar.stop() == 0
    await writer.close()
    await making.close()


def _streams(conn: sqlite3.Connection) -> bool:
    """The gap of the first start is repaired: rows come by the stream."""
    return rows(conn, "SELECT count(*) FROM tail_cursor WHERE lane = 'wal' AND horizon IS NOT NULL") == [(1,)]


def _keys(conn: sqlite3.Connection) -> set[Key]:
    return {(row[0], row[1]) for row in rows(conn, "SELECT execution_id, event_id FROM event")}


def _by_stream(conn: sqlite3.Connection) -> set[Key]:
    found = rows(conn, "SELECT execution_id, event_id FROM event WHERE commit_lsn IS NOT NULL")
    return {(row[0], row[1]) for row in found}


def _lost(conn: sqlite3.Connection) -> set[int]:
    return {row[0] for row in rows(conn, "SELECT execution_id FROM partition WHERE verdict = 'log_lost'")}
