"""The sidecar over a store in PostgreSQL, and the commands that read it.

The log's server and the store's are two: the store refuses the one that is compared.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli import entry
from sidecar.store import ChainStore
from tests.contract.postgres import PostgresBackend
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.running import Running
from tests.support.service import service

E = 7001
FORKED = 7002


@pytest.fixture
def postgres() -> Iterator[PostgresBackend]:
    made = PostgresBackend()
    yield made
    made.remove()


async def test_rows_arrive_are_judged_and_audited(pg: Database, postgres: PostgresBackend) -> None:
    """From table to verdict; a restart goes on where the store says it was."""
    async with service(pg.dsn, postgres.url, audit_share=0.5, audit_round_s=1, cert="on") as sidecar:
        await pg.insert([event_row(E, 1), event_row(E, 2, prev=1)])
        await pg.insert([event_row(FORKED, 1), event_row(FORKED, 2, prev=1), event_row(FORKED, 3, prev=1)])
        await sidecar.verdict(E, "match")
        await sidecar.verdict(FORKED, "refused_fork")
        await pg.insert([event_row(E, 3, prev=2)])
        await sidecar.stored(E, 3)
        await sidecar.idle()
        assert sidecar.value("feed_total", way="extend") == 1
        await pg.execute(
            "UPDATE noetl.event SET status = 'other' WHERE execution_id = $1 AND event_id = 2", E
        )
        await sidecar.verdict(E, "divergent")
        assert sidecar.divergences() == {"payload": 1}
        assert (await sidecar.read(E)).events is None
        await sidecar.looked()
        assert sidecar.value("store_bytes") > 0
        assert await sidecar.store.sizes()
        cursors = await sidecar.store.cursors()
    await pg.insert(chain_rows(7003, (1, 2, 3)))
    async with service(pg.dsn, postgres.url) as sidecar:
        assert (await sidecar.store.cursors()).keys() >= cursors.keys()
        await sidecar.verdict(7003, "match")
        assert (await sidecar.partition(E)).verdict == "divergent"
        await sidecar.idle()


async def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """A command's exit code and its object."""
    code = await asyncio.to_thread(entry, [*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


async def test_the_commands(
    pg: Database, postgres: PostgresBackend, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    await pg.insert(chain_rows(E, range(1, 6)))
    await pg.insert([event_row(FORKED, 1), event_row(FORKED, 2, prev=1), event_row(FORKED, 3, prev=1)])
    where = ("--dsn", pg.dsn, "--store", postgres.url)
    code, filled = await told(capsys, "backfill", *where)
    assert (code, filled["rows_written"], filled["outcomes"]["extended"]) == (3, 8, 1)
    code, verified = await told(capsys, "verify", *where)
    assert (code, verified["against"], verified["verdicts"]["match"]) == (3, "store", 1)
    assert verified["verdicts"]["refused_fork"] == 1
    code = await asyncio.to_thread(entry, ["inspect", str(E), "--format", "json", *where])
    shown = json.loads(capsys.readouterr().out)
    assert (code, shown["execution_id"]) == (0, str(E))
    code, standing = await told(capsys, "status", *where)
    assert (code, standing["store"]["free_bytes"]) == (3, None)
    _, checks = await told(capsys, "doctor", *where)
    states = {each["name"]: each["state"] for each in checks["checks"]}
    assert (states["store_folder"], states["store_lock"], states["store_format"]) == ("ok", "ok", "ok")
    assert states["shard"] == "ok"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NOETL_CHAIN_SHARD_COUNT", "2")
        environment.setenv("NOETL_CHAIN_SHARD_INDEX", "1")
        code, checks = await told(capsys, "doctor", *where)
    (shard,) = [each for each in checks["checks"] if each["name"] == "shard"]
    assert (code, shard["state"]) == (20, "failed"), "such a store is not handed over"
    assert "another schema" in shard["remedy"]
    postgres.run("DELETE FROM event WHERE execution_id = $1 AND exec_seq = 2", E)
    code, verified = await told(capsys, "verify", *where)
    assert (code, verified["verdicts"]["match"]) == (3, 0)
    code, rebuilt = await told(capsys, "store", "rebuild", str(E), *where)
    assert (code, rebuilt["outcome"], rebuilt["rows"]) == (0, "extended", 5)
    ((finding,),) = postgres.run("SELECT finding_id FROM finding")
    postgres.run("UPDATE finding SET resolved_at = NULL")
    code, acknowledged = await told(capsys, "ack", str(finding), "--why", "known", *where[2:])
    assert (code, acknowledged["acknowledged"], acknowledged["why"]) == (0, True, "known")
    assert postgres.run("SELECT acknowledged_why FROM finding") == [("known",)]
    code, acknowledged = await told(capsys, "ack", str(finding), "--undo", *where[2:])
    assert (code, acknowledged["acknowledged"]) == (0, False)
    for words in (["backup", str(tmp_path / "copy.db")], ["upgrade"]):
        assert await asyncio.to_thread(entry, ["store", *words, *where[2:]]) == 2
        assert "pg_dump" in capsys.readouterr().err


async def test_run_refuses_the_server_that_is_compared(pg: Database) -> None:
    url = f"{pg.dsn}{'&' if '?' in pg.dsn else '?'}schema=noetl_chain"
    async with Running.start(pg.dsn, url) as running:
        assert await running.ended() == 20
    assert "the server whose log it is compared with" in str(running.lines)
    assert await pg.fetch("SELECT 1 FROM pg_namespace WHERE nspname = 'noetl_chain'") == []


async def test_the_commands_refuse_the_server_that_is_compared(
    pg: Database, postgres: PostgresBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was made there all the same; and without the log nobody can tell."""
    url = f"{pg.dsn}{'&' if '?' in pg.dsn else '?'}schema=beside&partitions=1"
    await pg.insert(chain_rows(E, (1, 2)))
    same = ("--dsn", pg.dsn, "--store", url)
    for made in (False, True):
        if made:
            assert await asyncio.to_thread(entry, ["schema", "apply", "store", *same]) == 0
            capsys.readouterr()
        code, checks = await told(capsys, "doctor", *same)
        (found,) = (each for each in checks["checks"] if each["name"] == "store_folder")
        assert (code, found["state"]) == (20, "failed")
        assert "the server whose log it is compared with" in found["found"]
    for words in (["store", "rebuild", str(E)], ["verify"], ["backfill"]):
        assert await asyncio.to_thread(entry, [*words, *same]) == 20
        assert "the server whose log it is compared with" in capsys.readouterr().err
    async with postgres.open():
        pass
    _, checks = await told(capsys, "doctor", "--dsn", "postgresql://h.invalid/d", "--store", postgres.url)
    (found,) = (each for each in checks["checks"] if each["name"] == "store_folder")
    assert found["state"] == "cannot_tell"


async def test_a_process_that_was_taken_over_ends_with_20(pg: Database, postgres: PostgresBackend) -> None:
    await pg.insert(chain_rows(E, (1, 2)))
    async with Running.start(pg.dsn, postgres.url) as running:
        await running.says("listening", times=2)
        await running.until("/readyz", lambda body: "ready" in body and "starting" not in body)
        async with ChainStore.open(postgres.url) as store:
            assert await running.ended() == 20
            assert "taken over by process" in str(running.lines)
            await store.append(chain_of(7005))


def chain_of(execution_id: int) -> Any:
    from tests.contract.events import chain

    return chain(1, execution_id=execution_id)[0]
