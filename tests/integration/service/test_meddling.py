"""Log or store changed behind the sidecar's back: every change is named for what it is.

Each test looks at the counter that moved and at those that did not: a guarded read answers
None for many reasons.  Source: spec 3.4.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from tests.support.databases import Database
from tests.support.meddling import add_foreign_row, drop_row
from tests.support.rows import chain_rows, event_row
from tests.support.service import Service, service

E = 7100


async def _matched(sidecar: Service, pg: Database, rows: int) -> None:
    await pg.insert(chain_rows(E, range(1, rows + 1)))
    await sidecar.stored(E, rows)
    await sidecar.verdict(E, "match")
    await sidecar.idle()
    assert (await sidecar.read(E)).events is not None


def _change(event_id: int) -> str:
    return f"UPDATE noetl.event SET meta = '{{\"changed\": true}}' WHERE event_id = {event_id}"


async def test_a_row_changed_after_it_was_stored_diverges_within_two_ticks(
    pg: Database, tmp_path: Path
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await _matched(sidecar, pg, 3)
        await pg.execute(_change(2))
        await sidecar.polls(2)
        await sidecar.ticks(2)
        assert (await sidecar.partition(E)).verdict == "divergent"
        assert sidecar.divergences() == {"payload": 1}
        assert (await sidecar.read(E)).reason == "no_coverage"

        await pg.insert([event_row(E, 4, prev=3)])
        await sidecar.seen(E, 4)
        assert (await sidecar.read(E)).events is None
        await sidecar.idle()
        assert (await sidecar.partition(E)).verdict == "divergent"
        assert (await sidecar.read(E)).events is None
        assert len(await sidecar.store.chain(E)) == 3
        assert sidecar.divergences() == {"payload": 1}, "one fault is counted once"
        assert sidecar.value("shadow_verdict_total", verdict="divergent") >= 2


async def test_a_changed_row_refuses_the_read_from_the_batch_that_shows_it(
    pg: Database, tmp_path: Path
) -> None:
    """The comparator sleeps: only the feed can withdraw the chain."""
    async with service(pg.dsn, tmp_path / "chain.db", tick_s=600) as sidecar:
        await sidecar.asleep()
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.stored(E, 2)
        await sidecar.caught_up()
        assert (await sidecar.read(E)).events is not None
        await pg.execute(_change(2))

        async def flagged() -> bool:
            due = (await sidecar.store.due((E,))).get(E)
            return due is not None and due.changed is not None

        await sidecar.until(flagged)
        assert (await sidecar.read(E)).reason == "rows_held_back"
        await pg.insert([event_row(E, 3, prev=2)])
        await sidecar.seen(E, 3)
        assert (await sidecar.read(E)).reason == "rows_held_back"
        assert sidecar.value("shadow_tick_seconds_count") == 1
        assert sidecar.divergences() == {}, "only the comparator judges"


async def test_a_payload_that_is_put_back_matches_again_and_counts_again(
    pg: Database, tmp_path: Path
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await _matched(sidecar, pg, 2)
        await pg.execute(_change(1))
        await sidecar.verdict(E, "divergent")
        await sidecar.idle()
        await pg.execute(f"UPDATE noetl.event SET meta = NULL WHERE execution_id = {E}")
        await pg.insert([event_row(E, 3, prev=2)])
        await sidecar.verdict(E, "match")
        await sidecar.idle()
        assert (await sidecar.read(E)).events is not None
        await pg.execute(_change(1))
        await sidecar.verdict(E, "divergent")
        assert sidecar.divergences() == {"payload": 2}


async def test_a_row_deleted_from_the_middle_of_the_log_is_a_second_writer_of_origin_log(
    pg: Database, tmp_path: Path
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await _matched(sidecar, pg, 4)
        with structlog.testing.capture_logs() as logs:
            await pg.execute(f"DELETE FROM noetl.event WHERE execution_id = {E} AND event_id = 2")
            await pg.insert([event_row(E, 5, prev=4)])
            await sidecar.verdict(E, "second_writer")
        details = [line["detail"] for line in logs if line.get("verdict") == "second_writer"]
        assert details == ["not in the log: 2 (origin log)"]
        assert sidecar.divergences() == {"second_writer": 1}
        assert sidecar.value("shadow_verdict_total", verdict="refused_dangling_prev") == 0
        assert sidecar.value("shadow_verdict_total", verdict="pending_visibility") == 0
        assert (await sidecar.read(E)).reason == "no_coverage"
        assert (await sidecar.partition(E)).revoked_reason == "second_writer"


@pytest.mark.parametrize("move_head", [False, True])
async def test_a_foreign_row_followed_by_a_real_one_is_a_second_writer(
    pg: Database, tmp_path: Path, move_head: bool
) -> None:
    """Never a conflict, never a refusal, though both are what length and links suggest."""
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store) as sidecar:
        await _matched(sidecar, pg, 2)
        await add_foreign_row(store, E, 900, move_head=move_head)
        with structlog.testing.capture_logs() as logs:
            await pg.insert([event_row(E, 3, prev=2)])
            await sidecar.verdict(E, "second_writer")
            await sidecar.idle()
        details = [line["detail"] for line in logs if line.get("verdict") == "second_writer"]
        assert set(details) == {"not in the log: 900 (origin unknown)"}
        assert (await sidecar.partition(E)).verdict == "second_writer"
        assert sidecar.divergences() == {"second_writer": 1}
        assert {"divergent", "refused_fork"}.isdisjoint(sidecar.verdicts())
        assert (await sidecar.read(E)).events is None


async def test_a_lost_head_of_the_log_is_a_second_writer_of_origin_log(pg: Database, tmp_path: Path) -> None:
    """The last row was deleted and the next one names the row before it."""
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await _matched(sidecar, pg, 3)
        with structlog.testing.capture_logs() as logs:
            await pg.execute(f"DELETE FROM noetl.event WHERE execution_id = {E} AND event_id = 3")
            await pg.insert([event_row(E, 4, prev=2)])
            await sidecar.verdict(E, "second_writer")
            await sidecar.idle()
        details = [line["detail"] for line in logs if line.get("verdict") == "second_writer"]
        assert set(details) == {"not in the log: 3 (origin log)"}
        assert sidecar.divergences() == {"second_writer": 1}
        assert "refused_fork" not in sidecar.verdicts()
        assert (await sidecar.read(E)).events is None


async def test_a_lost_head_of_the_store_is_refused_until_it_was_read_again(
    pg: Database, tmp_path: Path
) -> None:
    """The record claims three rows and two are there: not extended, but populated anew."""
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store) as sidecar:
        await _matched(sidecar, pg, 3)
        extended = sidecar.value("feed_total", way="extend")
        await drop_row(store, E, 3)
        assert (await sidecar.read(E)).reason == "coverage_total_mismatch"
        await pg.insert([event_row(E, 4, prev=3)])
        await sidecar.stored(E, 4)
        await sidecar.idle()
        assert sidecar.value("feed_total", way="extend") == extended
        read = await sidecar.read(E)
        assert [event.event_id for event in read.events or ()] == [1, 2, 3, 4]
        assert [row.exec_seq for row in await sidecar.store.stored_chain(E)] == [1, 2, 3, 4]


async def test_a_hole_in_the_store_is_a_store_gap(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store) as sidecar:
        await _matched(sidecar, pg, 3)
        await drop_row(store, E, 2)
        await pg.insert([event_row(E, 4, prev=3)])
        await sidecar.verdict(E, "refused_store_gap")
        assert sidecar.value("populate_total", outcome="store_gap") == 1
        assert sidecar.divergences() == {}
        assert (await sidecar.read(E)).events is None


async def test_i25_a_dropped_partition_is_pruned_and_the_copy_stays_readable(
    pg: Database, tmp_path: Path
) -> None:
    await pg.execute(
        f"CREATE TABLE noetl.event_old PARTITION OF noetl.event FOR VALUES FROM ({E}) TO ({E + 10})"
    )
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await _matched(sidecar, pg, 3)
        before, rows = await sidecar.partition(E), await sidecar.store.stored_chain(E)
        await pg.execute("DROP TABLE noetl.event_old")
        after = await sidecar.verdict(E, "log_pruned")
        assert (after.watermark, after.coverage, after.head_seq) == (
            before.watermark,
            before.coverage,
            before.head_seq,
        )
        assert (after.revoked_at, after.held) == (None, 0)
        assert await sidecar.store.stored_chain(E) == rows
        assert (await sidecar.read(E)).events == tuple(row.event for row in rows)
        assert sidecar.divergences() == {}
        await sidecar.idle()


async def test_a_log_that_lost_its_first_row_is_pruned(pg: Database, tmp_path: Path) -> None:
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await _matched(sidecar, pg, 3)
        await pg.execute(f"DELETE FROM noetl.event WHERE execution_id = {E} AND event_id = 1")
        await pg.insert([event_row(E, 4, prev=3)])
        after = await sidecar.verdict(E, "log_pruned")
        assert after.revoked_at is None
        assert [event.event_id for event in (await sidecar.read(E)).events or ()] == [1, 2, 3, 4]
        assert sidecar.divergences() == {}
        assert {"second_writer", "refused_dangling_prev"}.isdisjoint(sidecar.verdicts())


async def test_an_execution_deleted_whole_before_it_was_stored_is_pruned_not_empty(
    pg: Database, tmp_path: Path
) -> None:
    """Row 2b: rows of it were delivered, so an empty log is no empty execution."""
    async with service(pg.dsn, tmp_path / "chain.db", dangling_s=600) as sidecar:
        await pg.insert([event_row(E, 2, prev=1)])
        await sidecar.verdict(E, "pending_visibility")
        await pg.execute(f"DELETE FROM noetl.event WHERE execution_id = {E}")
        after = await sidecar.verdict(E, "log_pruned")
        assert after.held == 0
        assert (await sidecar.read(E)).events is None
        assert sidecar.value("shadow_verdict_total", verdict="empty") == 0


async def test_a_row_that_waited_and_left_the_log_is_waited_for_no_more(pg: Database, tmp_path: Path) -> None:
    """It was delivered before the log was read, and the read lacks it: there is nothing to store."""
    async with service(pg.dsn, tmp_path / "chain.db", dangling_s=600) as sidecar:
        await _matched(sidecar, pg, 2)
        await pg.insert([event_row(E, 4, prev=3)])
        assert (await sidecar.seen(E, 3)).held == 1
        await pg.execute("DELETE FROM noetl.event WHERE event_id = 4")
        await pg.insert([event_row(E, 5, prev=2)])
        await sidecar.stored(E, 3)
        await sidecar.verdict(E, "match")
        await sidecar.idle()
        assert (await sidecar.partition(E)).held == 0
        assert [event.event_id for event in (await sidecar.read(E)).events or ()] == [1, 2, 5]


async def test_a_row_changed_while_there_was_no_horizon_diverges(pg: Database, tmp_path: Path) -> None:
    """A new epoch takes every lane's H; what changed meanwhile lies below the next one."""
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await _matched(sidecar, pg, 2)
        await sidecar.caught_up()
    await pg.execute(_change(1))
    await pg.execute("SELECT pg_stat_reset_shared('bgwriter')")
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await sidecar.verdict(E, "divergent")
        assert sidecar.divergences() == {"payload": 1}
        assert (await sidecar.read(E)).events is None
