"""The whole server ended at once (as by `pg_ctl stop -m immediate`) under load, with synchronous_commit off.

Commits that the tail has seen are gone with the WAL that was in memory; their transaction ids are
used again, by rows that lie below the saved horizon.  These are found, the vanished ones named.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.engine import Engine, Key
from tests.support.service import Service, service

FIRST = 7900
QUIET = range(FIRST, FIRST + 3)
LOADED = range(FIRST + 10, FIRST + 16)
LATER = range(FIRST + 20, FIRST + 23)
NEVER_FLUSHED = {
    "synchronous_commit": "off",
    "wal_writer_delay": "10s",
    "wal_writer_flush_after": "1GB",
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
}
PLANTS_MAX = 5


async def _stored(sidecar: Service) -> set[Key]:
    return {(row[0], row[1]) for row in await sidecar.store.query("SELECT execution_id, event_id FROM event")}


@pytest.mark.timeout(180)
async def test_rows_that_vanish_with_the_server_are_lost_logs_and_their_ids_come_again(
    pg_server: StartServer, tmp_path: Path
) -> None:
    server = await pg_server(NEVER_FLUSHED)
    pg = Database(server.dsn(), "postgres")
    engine = Engine(pg)
    async with service(pg.dsn, tmp_path / "chain.db", dangling_s=60) as sidecar:
        await engine.write(QUIET, 3)
        await engine.write(LOADED, 2)
        await pg.execute("CHECKPOINT")
        vanished: set[Key] = set()
        for _ in range(PLANTS_MAX):
            loading = asyncio.create_task(engine.write_until_lost(LOADED))
            goal = len(engine.written) + 3 * len(LOADED)

            async def loaded(goal: int = goal) -> bool:
                return len(await _stored(sidecar)) >= goal

            await sidecar.until(loaded)
            seen = await engine.log()
            assert await engine.unflushed() > 0, "everything is on the disk: nothing can vanish"
            server.kill(signal.SIGQUIT)
            await loading
            stored = await _stored(sidecar)
            server.restart()
            left = await engine.log()
            vanished = {key for key in seen if key in stored and key not in left}
            if vanished:
                break
            await engine.resume(LOADED)
        assert vanished, f"nothing vanished in {PLANTS_MAX} ends: the test proves nothing"

        ended = {key for key in stored if key not in left}
        lost = {execution for execution, _ in ended}
        await engine.resume(range(0))
        await engine.write(LATER, 5)
        after = await engine.log()
        new = {key: xmin for key, xmin in after.items() if key not in left}
        reused = {key for key, xmin in new.items() if xmin in {seen[gone] for gone in vanished}}
        assert reused, "no id was used again: the test proves nothing"

        kept = {*QUIET, *LATER, *LOADED} - lost
        expected = dict.fromkeys(kept, "match") | dict.fromkeys(lost, "log_lost")

        async def judged() -> bool:
            return dict(await sidecar.store.query("SELECT execution_id, verdict FROM partition")) == expected

        await sidecar.until(judged, patience_s=60)
        await sidecar.idle(patience_s=60)
        assert await judged()
        assert reused <= await _stored(sidecar), "a row below the saved horizon was missed"
        assert {key for key in after if key[0] in kept} <= await _stored(sidecar)
        assert ended <= await _stored(sidecar), "the copy is the only one left"
        assert sidecar.divergences() == {}
        assert {"second_writer", "divergent", "log_pruned"}.isdisjoint(sidecar.verdicts())
        assert sidecar.value("shadow_verdict_total", verdict="log_lost") >= len(lost)
        for execution in lost:
            assert (await sidecar.read(execution)).events is None
        assert len(await sidecar.store.epochs()) >= 2
        await pg.close()
