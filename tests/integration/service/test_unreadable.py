"""One execution whose stored state cannot be read: its own verdict, and nobody else's trouble."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sidecar.core.event import Event
from sidecar.core.verdict import Verdict
from sidecar.errors import PartitionUnreadable, StoreError
from sidecar.source.opened import LogSource
from sidecar.source.options import SourceOptions
from sidecar.store.clock import StoreClock
from tests.support.databases import Database
from tests.support.meddling import writing
from tests.support.rows import chain_rows, event_row
from tests.support.service import PATIENCE_S, Service, service

E, OTHERS = 7700, range(7701, 7706)

TORN = {
    "wm_through = NULL": Verdict.GUARDED_READ_FAILED,
    "wm_first = -1": Verdict.GUARDED_READ_FAILED,
    "cov_total = NULL": Verdict.POPULATE_FAILED,
    "cov_total = -1": Verdict.POPULATE_FAILED,
    "label = 'nobody sets this', labelled_at = 1": Verdict.ERROR,
}
BODY = "body = CAST(x'7b22ff227d' AS TEXT)"


async def _meddle(store: Path, sql: str, *parameters: object) -> None:
    def write() -> None:
        with writing(store) as conn:
            assert conn.execute(sql, parameters).rowcount == 1

    await asyncio.to_thread(write)


async def _all_matched(sidecar: Service) -> None:
    await sidecar.idle()
    for execution in (E, *OTHERS):
        await sidecar.verdict(execution, "match")


async def _columns(sidecar: Service, execution_id: int) -> tuple[object, ...]:
    columns = "wm_first, wm_through, cov_root, cov_total, label, revoked_at"
    (found,) = await sidecar.store.query(
        f"SELECT {columns} FROM partition WHERE execution_id = ?", (execution_id,)
    )
    return found


@pytest.mark.parametrize("damage", TORN)
async def test_a_torn_record_is_its_execution_s_verdict_and_the_batch_goes_on(
    pg: Database, tmp_path: Path, damage: str
) -> None:
    """Lane and comparator both meet it, between the others of their batches."""
    store, verdict = tmp_path / "chain.db", TORN[damage]
    outcome = "guarded_read_failed" if verdict is Verdict.GUARDED_READ_FAILED else "populate_failed"
    async with service(pg.dsn, store) as sidecar:
        await pg.insert(row for execution in (E, *OTHERS) for row in chain_rows(execution, [1, 2]))
        await _all_matched(sidecar)
        await _meddle(store, f"UPDATE partition SET {damage} WHERE execution_id = ?", E)
        torn = await _columns(sidecar, E)
        await pg.insert(event_row(execution, 3, prev=2) for execution in (E, *OTHERS))
        await sidecar.verdict(E, verdict)
        for execution in OTHERS:
            await sidecar.stored(execution, 3)
            await sidecar.verdict(execution, "match")
        assert sidecar.value("shadow_verdict_total", verdict=verdict) >= 1
        assert sidecar.value("populate_total", outcome=outcome) >= 1
        assert sidecar.divergences() == {}
        assert await _columns(sidecar, E) == torn, "the damage is evidence"
        assert len(await sidecar.store.chain(E)) == 2, "nothing is put on top of it"
        if verdict is Verdict.ERROR:  # no row of 2.6 asks for a label
            assert (await sidecar.read(E)).reason == "rows_held_back"
        else:
            with pytest.raises(PartitionUnreadable, match=str(E)):
                await sidecar.read(E)
        # The way back.
        await sidecar.store.rebuild(E, await _log(pg))
        await sidecar.verdict(E, "match")
        await sidecar.idle()
        assert len((await sidecar.read(E)).events or ()) == 3


async def _log(pg: Database) -> tuple[Event, ...]:
    source = await LogSource.open(SourceOptions(pg.dsn))
    try:
        (log,) = await source.reader(StoreClock(0)).read([E])
    finally:
        await source.close()
    assert log.events is not None
    return log.events


async def test_a_stored_text_that_is_no_utf_8_fails_its_own_execution(pg: Database, tmp_path: Path) -> None:
    """A flipped bit in a body: SQLite reads the row and the driver cannot."""
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store) as sidecar:
        await pg.insert(row for execution in (E, *OTHERS) for row in chain_rows(execution, [1, 2]))
        await _all_matched(sidecar)
        await _meddle(store, f"UPDATE event SET {BODY} WHERE execution_id = ? AND event_id = 2", E)
        await pg.insert(event_row(execution, 3, prev=2) for execution in (E, *OTHERS))
        await sidecar.verdict(E, "populate_failed")
        for execution in OTHERS:
            await sidecar.stored(execution, 3)
            await sidecar.verdict(execution, "match")
        assert sidecar.divergences() == {}
        with pytest.raises(PartitionUnreadable):
            await sidecar.read(E)
        # What it needs is written down: the log is read again as soon as the chain can be.
        await _meddle(store, "DELETE FROM event WHERE execution_id = ? AND event_id = 2", E)
        await sidecar.verdict(E, "match")
        await sidecar.idle()
        assert len((await sidecar.read(E)).events or ()) == 3


async def test_a_store_that_fails_as_a_whole_still_ends_the_line(pg: Database, tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as ended:
        await _break_the_table(pg, tmp_path / "chain.db")
    assert isinstance(ended.value.exceptions[0], StoreError)


async def _break_the_table(pg: Database, store: Path) -> None:
    def write() -> None:
        with writing(store) as conn:
            conn.execute("ALTER TABLE event RENAME COLUMN body TO something")

    async with service(pg.dsn, store) as sidecar:
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.verdict(E, "match")
        await asyncio.to_thread(write)
        await pg.insert([event_row(E, 3, prev=2)])
        (line,) = (task for task in asyncio.all_tasks() if "Line.run" in repr(task.get_coro()))
        await asyncio.wait({line}, timeout=PATIENCE_S)
