"""A read that is ended in the middle: by a deadline, a cancel, a cut wire.

What had come of it is thrown away.  There is a verdict of its own for that, or the poll runs
again; nothing is judged, populated or passed over by a part of a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.comparator.loop import Comparator
from sidecar.comparator.report import TickReport
from sidecar.core.due import Windows
from sidecar.core.settle import Limits
from sidecar.core.verdict import Verdict
from sidecar.errors import SourceUnavailable
from sidecar.feed import Feed
from sidecar.source.log import PostgresLog
from sidecar.store import ChainStore
from tests.support.captured import captured
from tests.support.databases import Database
from tests.support.deadlines import server_first
from tests.support.proxy import proxy
from tests.support.rows import chain_rows, event_row
from tests.support.service import service
from tests.support.tailing import MemoryStore, Ticks, drained, opened

E = 8100
ROWS = 300
BODY_BYTES = 4000
HALF = ROWS * BODY_BYTES // 2
WAITING = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE application_name = 'noetl-chain' AND datname = $1 AND wait_event_type = 'Lock'"
)


async def _big(pg: Database, execution_id: int = E) -> None:
    await pg.insert(chain_rows(execution_id, range(1, ROWS + 1), error="x" * BODY_BYTES))


@asynccontextmanager
async def _judging(store: ChainStore, log: PostgresLog) -> AsyncIterator[Comparator]:
    windows = Windows(settle=0)
    feed = Feed(store, log, windows=windows, limits=Limits(), comparing=True)
    yield Comparator(store, log, feed.settling, windows)


async def _verdict(comparator: Comparator) -> Verdict:
    report = TickReport()
    await comparator.judge([E], report)
    (judged,) = report.judged
    assert not judged.new_kinds
    return judged.judgement.verdict


async def test_a_log_read_cut_in_the_middle_stores_nothing_of_it(pg: Database, tmp_path: Path) -> None:
    await _big(pg)
    async with (
        proxy(pg.dsn) as way,
        opened(way.dsn) as source,
        ChainStore.open(str(tmp_path / "chain.db")) as store,
        _judging(store, source.reader(store.clock)) as comparator,
    ):
        way.cut_once_after(HALF)
        assert await _verdict(comparator) is Verdict.LOG_READ_FAILED
        assert way.cuts == 1, "the read was not cut: the test proves nothing"
        assert await store.chain(E) == ()
        assert (await store.chain_if_authoritative(E)).reason == "not_populated"
        assert await _verdict(comparator) is Verdict.MATCH
        assert len(await store.chain(E)) == ROWS
        # The same over a stored chain: half a read must not look like a log that lost its end.
        way.cut_once_after(HALF)
        assert await _verdict(comparator) is Verdict.LOG_READ_FAILED
        assert way.cuts == 2
        guarded = await store.chain_if_authoritative(E)
        assert guarded.events is not None
        assert len(guarded.events) == ROWS


async def test_a_poll_cut_in_the_middle_moves_no_horizon_and_runs_again(pg: Database) -> None:
    await pg.insert(chain_rows(E + 1, [1]))
    store = MemoryStore()
    async with proxy(pg.dsn) as way, opened(way.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        await drained(live, store, polls=2)
        kept = store.lane_cursors["live"]
        assert kept.horizon is not None
        await _big(pg)
        way.cut_once_after(HALF)
        with pytest.raises(SourceUnavailable):
            await drained(live, store)
        assert way.cuts == 1, "the poll was not cut: the test proves nothing"
        assert store.lane_cursors["live"] == kept
        await drained(live, store)
        assert len(store.bodies) == ROWS + 1
        moved = store.lane_cursors["live"].horizon
        assert moved is not None
        assert moved > kept.horizon


@pytest.mark.parametrize("how", ["statement_timeout", "cancelled"])
async def test_reads_that_somebody_ends_are_verdicts_of_their_own_and_run_again(
    pg: Database, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on the table holds every read; a deadline ends it, or an operator does."""
    server_first(monkeypatch)
    log, lines = captured()
    deadline_s = 5 if how == "statement_timeout" else 100
    async with service(
        pg.dsn, tmp_path / "chain.db", query_timeout_s=deadline_s, dangling_s=60, log=log
    ) as sidecar:
        await pg.insert(chain_rows(E, [1, 2, 3]))
        # What dangles is asked for at every tick, so the comparator meets the lock.
        await pg.insert([event_row(E + 1, 1), event_row(E + 1, 3, prev=2)])
        await sidecar.verdict(E, "match")
        await sidecar.verdict(E + 1, "pending_visibility")
        stored = await sidecar.store.query("SELECT execution_id, event_id FROM event ORDER BY 1, 2")
        blocker, admin = await pg.connect(), await pg.connect()
        await blocker.execute("BEGIN; LOCK TABLE noetl.event IN ACCESS EXCLUSIVE MODE")
        ending = asyncio.create_task(_cancel_all(admin, pg.name)) if how == "cancelled" else None

        async def failed() -> bool:
            said = {line["loop"] for line in lines if line["event"] == "loop_paused"}
            verdict = (await sidecar.partition(E + 1)).verdict
            return "live" in said and verdict == "log_read_failed"

        await sidecar.until(failed)
        if ending is not None:
            ending.cancel()
            await asyncio.wait({ending})
        reasons = {line["reason"] for line in lines if line["event"] == "loop_paused"}
        ended, late = (
            "a statement took longer than its deadline (SQLSTATE 57014)",
            "Postgres did not answer in time",
        )
        assert reasons <= {ended, late}
        assert ended in reasons, reasons
        assert "source unavailable" in sidecar.health.reasons()
        assert await sidecar.store.query("SELECT execution_id, event_id FROM event ORDER BY 1, 2") == stored
        assert len((await sidecar.read(E)).events or ()) == 3
        rows = [event_row(E + 1, 2, prev=1), event_row(E, 4, prev=3)]
        await blocker.execute("COMMIT")
        await pg.insert(rows)
        await sidecar.stored(E, 4)
        await sidecar.verdict(E + 1, "match")
        await sidecar.verdict(E, "match")
        await sidecar.idle()
        assert sidecar.divergences() == {}
        assert {"empty", "log_pruned", "log_lost", "second_writer"}.isdisjoint(sidecar.verdicts())
        assert sidecar.value("populate_total", outcome="log_read_failed") >= 1


async def _cancel_all(admin: Any, database: str) -> None:
    """Cancel every statement of the sidecar that waits, until told to stop."""
    while True:
        for row in await admin.fetch(WAITING, database):
            await admin.execute(f"SELECT pg_cancel_backend({row[0]})")
        await asyncio.sleep(0.01)
