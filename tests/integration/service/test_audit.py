"""The audit in the running sidecar: its numbers, its loop, and that nothing else waits for it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from sidecar.telemetry.metrics import Metrics
from tests.support.databases import Database
from tests.support.rows import chain_rows
from tests.support.service import service, value

E = 8101
LONG_AGO = datetime(2025, 1, 1)  # noqa: DTZ001 - the column is naive
AUDITING = {"audit_share": 1, "audit_round_s": 1, "sweep_round_s": 86_400}


def test_i55_every_series_of_the_audit_is_there_at_0() -> None:
    registry = Metrics().registry
    for result in ("equal", "different", "read"):
        assert value(registry, "audit_executions_total", result=result) == 0
    assert value(registry, "audit_last_round_timestamp_seconds") == 0
    assert value(registry, "audit_round_progress_ratio") == 0


@pytest.mark.torture
async def test_a_row_changed_while_no_horizon_was_kept_is_found_by_the_audit(
    pg: Database, tmp_path: Path
) -> None:
    """Older than the late window, under a known id, below the next horizon: no lane sees it."""
    path = tmp_path / "chain.db"
    await pg.insert([row for n in range(4) for row in chain_rows(E + n, [1, 2, 3], created_at=LONG_AGO)])
    async with service(pg.dsn, path, **AUDITING) as it:
        await it.verdict(E + 3, "match")

        async def round_is_over() -> bool:
            return it.value("audit_last_round_timestamp_seconds") > 0

        await it.until(round_is_over)
        assert it.value("audit_round_progress_ratio") == 1
        assert it.moved("audit_executions_total")["equal"] >= 4
        assert "different" not in it.moved("audit_executions_total")
        assert it.verdicts() == {"match": 4}, "what a catch-up stored is judged by the audit, once"

    await pg.execute("UPDATE noetl.event SET status = 'x' WHERE execution_id = $1 AND event_id = 2", E)
    with closing(sqlite3.connect(path)) as raw:  # no lane keeps its horizon
        raw.execute("DELETE FROM tail_cursor")
        raw.execute("UPDATE audit_progress SET started_at = started_at - 10000000")
        raw.commit()
    async with service(pg.dsn, path, **AUDITING) as it:
        await it.verdict(E, "divergent")
        assert it.divergences() == {"payload": 1}
        assert it.moved("audit_executions_total")["different"] == 1
        assert it.moved("audit_executions_total")["read"] == 1
        assert (await it.read(E)).events is None


@pytest.mark.torture
async def test_an_outage_pauses_the_audit_and_it_goes_on(pg: Database, tmp_path: Path) -> None:
    """Its loop reports the trouble like every other one and ends nothing."""
    path = tmp_path / "chain.db"
    await pg.insert(chain_rows(E, [1, 2], created_at=LONG_AGO))
    async with service(pg.dsn, path, **AUDITING) as it:
        await it.verdict(E, "match")
        await pg.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        before = it.value("audit_last_round_timestamp_seconds")
        await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1 AND event_id = 2", E)
        await it.verdict(E, "second_writer")

        async def another_round() -> bool:
            return it.value("audit_last_round_timestamp_seconds") > before and not it.health.reasons()

        await it.until(another_round)
