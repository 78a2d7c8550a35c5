"""Retention: what goes, what stays, who reads meanwhile, and where the pages go."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.core.verdict import Verdict
from sidecar.store import ChainStore
from sidecar.store import retention as letting_go
from sidecar.store.check import check
from sidecar.store.format import uri
from sidecar.store.retention import CANDIDATES, DAY_US, Dropped, Retention
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain, long_chain

KEEP = 7 * DAY_US


@pytest.fixture(autouse=True)
def _no_spare_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letting_go, "FREE_PAGES_KEPT", 0)


async def stored(store: ChainStore, *executions: int, rows: int = 3, body: str = "{}") -> None:
    for execution_id in executions:
        await store.populate_from_log(execution_id, long_chain(rows, execution_id=execution_id, body=body))


def judged(
    sqlite: SqliteBackend,
    store: ChainStore,
    execution_id: int,
    *,
    days: float,
    verdict: str = "log_pruned",
    log_rows: int = 0,
    changed_days: float | None = None,
) -> None:
    """Put a verdict of so many days ago on it, and the last row there or elsewhere."""
    now = store.clock.now()
    at = now - int(days * DAY_US)
    changed = at if changed_days is None else now - int(changed_days * DAY_US)
    sqlite.run(
        "UPDATE partition SET verdict = ?, verdict_at = ?, verdict_rows = ?, last_change_at = ?"
        " WHERE execution_id = ?",
        verdict, at, log_rows, changed, execution_id,
    )  # fmt: skip


async def test_a_partition_goes_whose_log_is_gone_long_enough(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await stored(store, 1, 2, 3)
        judged(sqlite, store, 1, days=8)
        judged(sqlite, store, 2, days=6)
        dropped = await Retention(store, KEEP).step()
        assert (dropped.executions, dropped.rows) == (1, 3)
        assert [e async for e in store.executions()] == [2, 3]
        assert await store.chain(1) == ()
        assert (await store.chain_if_authoritative(1)).reason == "not_populated"
        assert (await Retention(store, KEEP).step()).executions == 0
    assert check(sqlite.path).findings == []


@pytest.mark.parametrize("verdict", sorted(set(Verdict) - {Verdict.LOG_PRUNED}))
async def test_any_other_verdict_stays(sqlite: SqliteBackend, verdict: str) -> None:
    async with sqlite.open() as store:
        await stored(store, E)
        judged(sqlite, store, E, days=1000, verdict=verdict)
        assert (await Retention(store, KEEP).step()).executions == 0


@pytest.mark.parametrize(
    "young", [{"days": 6.9}, {"days": 100, "changed_days": 6.9}, {"days": 100, "log_rows": 1}]
)
async def test_young_changed_or_half_gone_stays(sqlite: SqliteBackend, young: dict[str, float]) -> None:
    """A log that lost its first rows only would be read, refused and told again at once."""
    async with sqlite.open() as store:
        await stored(store, E)
        judged(sqlite, store, E, **young)  # type: ignore[arg-type]
        assert (await Retention(store, KEEP).step()).executions == 0
        assert len(await store.chain(E)) == 3


async def test_what_waits_to_be_judged_stays(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await stored(store, E)
        judged(sqlite, store, E, days=100)
        sqlite.run("INSERT INTO due (execution_id, due_at) VALUES (?, 1)", E)
        assert (await Retention(store, KEEP).step()).executions == 0


async def test_what_changed_since_it_was_chosen_stays(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice is made outside the transaction, so it is made again inside."""
    async with sqlite.open() as store:
        await stored(store, 1, 2)
        for execution_id in (1, 2):
            judged(sqlite, store, execution_id, days=100)
        query, changed = store.query, False

        async def then_change(sql: str, parameters: object = ()) -> list[tuple[int, ...]]:
            nonlocal changed
            found = await query(sql, parameters)  # type: ignore[arg-type]
            if sql == CANDIDATES:
                changed = True
                sqlite.run("INSERT INTO due (execution_id, due_at) VALUES (1, 1)")
            return found

        monkeypatch.setattr(store, "query", then_change)
        assert (await Retention(store, KEEP).step()).executions == 1
        assert changed
        assert [e async for e in store.executions()] == [1]


async def test_findings_stay_and_everything_else_of_it_goes(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await stored(store, 1, 2)
        for execution_id in (1, 2):
            await store.rebuild(execution_id, long_chain(3, execution_id=execution_id))
            judged(sqlite, store, execution_id, days=100)
            await store.transact(lambda unit, e=execution_id: unit.record_state(e, "match", "{}"))  # type: ignore[misc]
            sqlite.run(
                "INSERT INTO rejoin (execution_id, tip_event_id, root_event_id, xid, anchor, epoch,"
                " joined_at) VALUES (?, 1, 2, 3, 4, 'e', 5)",
                execution_id,
            )
        sqlite.run("DELETE FROM due WHERE execution_id = 1")
        assert (await Retention(store, KEEP).step()).executions == 1
    for table in ("event", "partition", "rejoin", "d3_projection"):
        assert {row[0] for row in sqlite.run(f"SELECT execution_id FROM {table}")} == {2}
    assert sqlite.run("SELECT execution_id FROM finding ORDER BY 1") == [(1,), (2,)]


async def test_no_number_is_given_again(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await stored(store, 1)
        judged(sqlite, store, 1, days=100)
        assert (await Retention(store, KEEP).step()).rows == 3
    async with sqlite.open() as store:
        assert store.committed.high == 3
        await stored(store, 2)
        assert [row[0] for row in await store.query("SELECT gseq FROM event")] == [4, 5, 6]


async def test_a_step_is_bounded_and_the_next_goes_on(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letting_go, "EXECUTIONS_MAX", 4)
    monkeypatch.setattr(letting_go, "ROWS_MAX", 7)
    async with sqlite.open() as store:
        await stored(store, *range(8))
        for execution_id in range(8):
            judged(sqlite, store, execution_id, days=100 - execution_id)
        retention = Retention(store, KEEP)
        assert [(await retention.step()).executions for _ in range(4)] == [3, 3, 2, 0]


async def test_the_choice_is_a_search_in_its_index(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await Retention(store, KEEP).step()
        plan = [row[3] for row in await store.query(f"EXPLAIN QUERY PLAN {CANDIDATES}", (0, 1))]
    assert plan[0] == "SEARCH partition USING INDEX partition_pruned (verdict_at<?)"
    assert not any("SCAN" in step or "TEMP B-TREE" in step for step in plan)


async def test_a_reader_on_its_way_keeps_its_snapshot(sqlite: SqliteBackend) -> None:
    """It has read the record; the partition goes; the rows it reads next are those of the record."""
    async with sqlite.open() as store:
        await stored(store, E)
        judged(sqlite, store, E, days=100)
        with closing(sqlite3.connect(uri(sqlite.path, "ro"), uri=True, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            ((total,),) = reader.execute("SELECT cov_total FROM partition").fetchall()
            assert (await Retention(store, KEEP).step()).executions == 1
            assert await store.chain(E) == ()
            assert len(reader.execute("SELECT * FROM event").fetchall()) == total == 3
            reader.execute("COMMIT")
            assert reader.execute("SELECT * FROM event").fetchall() == []


async def test_freed_pages_go_back_to_the_disk_a_few_a_step(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letting_go, "VACUUM_PAGES", 20)
    monkeypatch.setattr(letting_go, "VACUUMS_MAX", 2)
    async with sqlite.open() as store:
        await stored(store, 1, 2, rows=200, body="z" * 1000)
        before = await pages(store)
        judged(sqlite, store, 1, days=100)
        retention = Retention(store, KEEP)
        assert await retention.step() == Dropped(1, 200, 40)
        steps = 1
        while (await retention.step()).pages:
            steps += 1
        assert steps > 1
        assert (await store.query("PRAGMA freelist_count")) == [(0,)]
        assert await pages(store) < before * 0.7
        assert len(await store.chain(2)) == 200
    assert sqlite.path.stat().st_size == size_told(sqlite.path)
    assert check(sqlite.path).findings == []


async def pages(store: ChainStore) -> int:
    return int((await store.query("PRAGMA page_count"))[0][0])


def size_told(path: Path) -> int:
    """Bytes by the file's own header, which names its size in pages."""
    header = path.read_bytes()[:100]
    return int.from_bytes(header[28:32]) * int.from_bytes(header[16:18])


async def test_some_free_pages_stay_for_the_next_rows(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letting_go, "FREE_PAGES_KEPT", 10)
    async with sqlite.open() as store:
        await stored(store, 1, rows=200, body="z" * 1000)
        judged(sqlite, store, 1, days=100)
        await Retention(store, KEEP).step()
        assert await store.query("PRAGMA freelist_count") == [(10,)]


async def test_a_file_that_cannot_shrink_keeps_its_size(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await stored(store, 1, rows=200, body="z" * 1000)
    sqlite.run("PRAGMA journal_mode = DELETE")
    vacuumed(sqlite.path)
    async with sqlite.open() as store:
        assert await store.query("PRAGMA auto_vacuum") == [(0,)]
        judged(sqlite, store, 1, days=100)
        dropped = await Retention(store, KEEP).step()
        assert (dropped.executions, dropped.pages) == (1, 0)
        assert (await store.query("PRAGMA freelist_count"))[0][0] > 40


def vacuumed(path: Path) -> None:
    """Take the way to shrink out of a file, as a store from before has it."""
    with closing(sqlite3.connect(path)) as shell:
        shell.execute("PRAGMA auto_vacuum = NONE")
        shell.execute("VACUUM")


async def test_a_new_store_can_shrink(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        assert await store.query("PRAGMA auto_vacuum") == [(2,)]
        assert await store.query("PRAGMA page_size") == [(4096,)]
        await store.populate_from_log(E, chain(1, 2))
