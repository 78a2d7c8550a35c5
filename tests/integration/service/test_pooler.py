"""The sidecar through a transaction pooler that has fewer connections than the sidecar."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from sidecar.source.connection import Session
from sidecar.source.opened import LogSource
from tests.support.databases import Database
from tests.support.pooler import pooler
from tests.support.rows import event_row
from tests.support.service import service

pytestmark = pytest.mark.pgbouncer

BACKENDS = 4
"""One a lane, which may hold its transaction while its batch is stored, and one for the reads that
storing needs.  The sidecar has eight sessions."""
E = 9001


async def test_a_prepared_statement_does_not_live_through_this_pooler(pg: Database) -> None:
    """The pooler is real: what the sidecar leaves out fails here."""
    async with pooler(pg.dsn, backends=BACKENDS) as dsn:
        one = await asyncpg.connect(dsn)
        other = await asyncpg.connect(dsn)
        try:
            await one.fetch("SELECT $1::int", 1)
            await other.execute("BEGIN")  # holds the connection that knows the statement
            with pytest.raises(asyncpg.InvalidSQLStatementNameError):
                await one.fetch("SELECT $1::int", 1)
        finally:
            one.terminate()
            other.terminate()


async def test_a_long_statement_that_has_the_last_server_is_waited_for(pg: Database) -> None:
    """Who asks whether it is at work is let in by the pooler, and waits for that same server."""
    async with pooler(pg.dsn, backends=1) as dsn:
        session = Session(dsn, query_timeout_s=0.5)
        async with session.transaction(600) as transaction:
            assert (await transaction.fetch("select 7 from pg_sleep(3)"))[0][0] == 7
        await session.close()


async def test_late_rows_and_many_executions_match_through_a_pooler(pg: Database, tmp_path: Path) -> None:
    executions = [E + number for number in range(40)]
    async with (
        pooler(pg.dsn, backends=BACKENDS) as dsn,
        service(dsn, tmp_path / "chain.db", audit_share=1, audit_round_s=1) as sidecar,
    ):
        for execution in executions:
            await pg.insert([event_row(execution, 1), event_row(execution, 3, prev=2)])
        await sidecar.polls(2)
        backends = await pg.fetch(
            "SELECT count(*) AS all FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'noetl-chain'"
        )
        assert 1 <= backends[0]["all"] <= BACKENDS
        for execution in executions:
            await pg.insert([event_row(execution, 2, prev=1)])
        for execution in executions:
            await sidecar.stored(execution, 3)
        await sidecar.idle()
        for execution in executions:
            await sidecar.verdict(execution, "match")
        assert sidecar.divergences() == {}


async def test_the_sidecar_has_as_many_connections_as_the_documents_say(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Session] = []
    session = LogSource.session

    def counted(source: LogSource) -> Session:
        made.append(session(source))
        return made[-1]

    monkeypatch.setattr(LogSource, "session", counted)
    async with service(pg.dsn, tmp_path / "chain.db", audit_share=1, cert="on", advance="on") as sidecar:
        await sidecar.caught_up()
    assert len(made) == 9
    root = Path(__file__).parents[3]
    assert "has up to nine connections" in (root / "docs/configuration.md").read_text()
    for told in ("docs/deployment.md", "k8s/overlays/prod/kustomization.yaml"):
        assert "leave the sidecar nine server connections" in (root / told).read_text()
