"""One backend of Postgres killed under load with synchronous_commit off.

The server recovers by itself: commits that were seen are gone and their transaction ids are
used again.  Nothing that is in the log may be missed, and what vanished is named.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.engine import Engine, Key
from tests.support.service import Service, service

FIRST = 7500
EXECUTIONS = range(FIRST, FIRST + 12)


async def _stored(sidecar: Service) -> set[Key]:
    return {(row[0], row[1]) for row in await sidecar.store.query("SELECT execution_id, event_id FROM event")}


@pytest.mark.timeout(180)
async def test_a_backend_killed_under_load_loses_nothing_and_names_what_vanished(
    pg_server: StartServer, tmp_path: Path
) -> None:
    server = await pg_server({"synchronous_commit": "off", "wal_writer_delay": "10s", "autovacuum": "off"})
    pg = Database(server.dsn(), "postgres")
    engine = Engine(pg)
    later = range(FIRST + 100, FIRST + 103)
    async with service(pg.dsn, tmp_path / "chain.db", dangling_s=60) as sidecar:
        await engine.write(EXECUTIONS, 3)
        await pg.execute("CHECKPOINT")
        await engine.write(EXECUTIONS[:6], 4)

        async def all_stored() -> bool:
            return engine.written <= await _stored(sidecar)

        await sidecar.until(all_stored)
        before = await engine.log()
        await engine.kill_a_backend()
        left = await engine.log()
        vanished = before.keys() - left.keys()
        lost = {execution for execution, _ in vanished}
        assert vanished, "the crash took nothing: the test proves nothing"

        await engine.resume(EXECUTIONS)
        await engine.write(later, 5)
        await engine.write(EXECUTIONS[6:], 2)
        after = await engine.log()
        reused = {before[key] for key in vanished} & {after[key] for key in after.keys() - left.keys()}
        assert reused, "no xid was used again: the test proves nothing"

        expected = dict.fromkeys((*EXECUTIONS, *later), "match") | dict.fromkeys(lost, "log_lost")

        async def judged() -> bool:
            return dict(await sidecar.store.query("SELECT execution_id, verdict FROM partition")) == expected

        await sidecar.until(judged, patience_s=60)
        await sidecar.idle(patience_s=60)
        assert await judged()
        assert {key for key in after if key[0] not in lost} <= await _stored(sidecar)
        assert vanished <= await _stored(sidecar), "the copy is the only one left"
        assert sidecar.divergences() == {}
        assert sidecar.value("shadow_verdict_total", verdict="log_lost") >= len(lost)
        for execution in lost:
            assert (await sidecar.read(execution)).events is None
        assert len(await sidecar.store.epochs()) == 2
        await pg.close()


async def test_a_lost_execution_that_goes_on_is_still_lost_and_no_fork(
    pg_server: StartServer, tmp_path: Path
) -> None:
    """The engine goes on from an older tip: to the store that looks like a second successor."""
    server = await pg_server({"synchronous_commit": "off", "wal_writer_delay": "10s", "autovacuum": "off"})
    pg = Database(server.dsn(), "postgres")
    engine, one = Engine(pg), range(FIRST, FIRST + 1)
    async with service(pg.dsn, tmp_path / "chain.db", dangling_s=60) as sidecar:
        await engine.write(one, 2)
        await pg.execute("CHECKPOINT")
        await engine.write(one, 2)
        await sidecar.stored(FIRST, 4)
        await engine.kill_a_backend()
        assert len(await engine.log()) == 2, "the crash took nothing"
        await engine.resume(one)
        await engine.write(one, 1)
        await sidecar.verdict(FIRST, "log_lost", patience_s=60)
        await sidecar.idle(patience_s=60)
        assert (await sidecar.partition(FIRST)).verdict == "log_lost"
        assert sidecar.divergences() == {}
        assert {"refused_fork", "second_writer", "divergent"}.isdisjoint(sidecar.verdicts())
        assert (await sidecar.read(FIRST)).events is None
        await pg.close()
