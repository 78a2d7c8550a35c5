"""How far an audit has come, and what it handed over: together or not at all.  Source: design 3.4."""

from __future__ import annotations

import pytest

from sidecar.core.audit import Round, Standing
from sidecar.core.due import Due
from sidecar.core.ports import Unit
from sidecar.errors import StoreError
from sidecar.store.audit import ROUNDS_KEPT, StoreAuditBook
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain


async def nothing(unit: Unit) -> None:
    return


def seen(sqlite: SqliteBackend) -> dict[int, str]:
    return dict(sqlite.run("SELECT execution_id, seen FROM audit_seen"))


async def test_a_store_that_was_never_audited_has_no_round(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        assert await StoreAuditBook(store).latest() == (None, None)
        assert seen(sqlite) == {}


async def test_a_round_comes_back_as_it_was_saved_and_the_last_end_with_it(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        book = StoreAuditBook(store)
        await book.latest()
        for progress, ended in (
            (Round(1, None, 10), None),
            (Round(1, E, 10, 20, executions=3, differing=2), 20),
            (Round(2, 2**62, 30, None, executions=5, differing=4), 20),
        ):
            await book.save(progress, {}, (), nothing)
            assert await book.latest() == (progress, ended)
    async with sqlite.open() as store:
        assert await StoreAuditBook(store).latest() == (progress, 20)


async def test_executions_are_counted_up_to_the_bound_with_it(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        for execution_id in (1, 5, 9):
            await store.populate_from_log(execution_id, chain(1, 2, execution_id=execution_id))
        book = StoreAuditBook(store)
        assert [await book.executions(up_to) for up_to in (0, 4, 5, 9)] == [0, 1, 2, 3]


async def test_what_stands_beside_the_rows_is_told_of_everyone_asked(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        book = StoreAuditBook(store)
        await book.latest()
        for execution_id in (1, 2):
            await store.populate_from_log(execution_id, chain(1, 2, execution_id=execution_id))
        sqlite.run("UPDATE partition SET verdict = 'match', verdict_rows = 2 WHERE execution_id = 1")

        async def hand_over(unit: Unit) -> str:
            unit.put_due(Due(3, due_at=1, first_seen_at=1))
            return "done"

        assert await book.save(Round(1, 2, 10), {1: "a", 3: "c"}, (), hand_over) == "done"
        assert await book.standings((1, 2, 3, 4)) == {
            1: Standing("match", 2, waiting=False, seen="a"),
            2: Standing(),
            3: Standing(waiting=True, seen="c"),
            4: Standing(),
        }
        assert await book.standings(()) == {}


async def test_a_fingerprint_is_replaced_forgotten_and_goes_with_its_execution(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        book = StoreAuditBook(store)
        await book.latest()
        await store.populate_from_log(1, chain(1, execution_id=1))

        async def first_read(unit: Unit) -> None:
            """An execution that has no record yet, and waits."""
            unit.put_due(Due(3, due_at=1, first_seen_at=1))

        await book.save(Round(1, 1, 10), {1: "a", 2: "b", 3: "c", 4: "d"}, (), first_read)
        await book.save(Round(1, 1, 10), {1: "A"}, (4,), nothing)
        assert seen(sqlite) == {1: "A", 2: "b", 3: "c"}, "the round goes on"
        await book.save(Round(1, 1, 10, 20), {5: "e"}, (), nothing)
        assert seen(sqlite) == {1: "A", 3: "c", 5: "e"}, "5 is handed over by this very transaction"


async def test_so_many_rounds_are_kept_and_the_end_of_one_lets_go_of_the_oldest(
    sqlite: SqliteBackend,
) -> None:
    async with sqlite.open() as store:
        book = StoreAuditBook(store)
        await book.latest()
        for number in (1, 2, 3):
            await book.save(Round(number, None, number), {}, (), nothing)
        await book.save(Round(ROUNDS_KEPT + 2, None, 9), {}, (), nothing)
        kept = "SELECT round FROM audit_progress ORDER BY round"
        assert sqlite.run(kept) == [(1,), (2,), (3,), (ROUNDS_KEPT + 2,)]
        await book.save(Round(ROUNDS_KEPT + 2, None, 9, 10), {}, (), nothing)
        assert sqlite.run(kept) == [(3,), (ROUNDS_KEPT + 2,)]


async def test_work_that_fails_leaves_no_progress(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        book = StoreAuditBook(store)
        await book.latest()

        async def fails(unit: Unit) -> None:
            unit.put_due(Due(3, due_at=1, first_seen_at=1))
            raise StoreError("meant")

        with pytest.raises(StoreError, match="meant"):
            await book.save(Round(1, 1, 10, 20), {1: "a"}, (), fails)
        assert await book.latest() == (None, None)
        assert (seen(sqlite), sqlite.run("SELECT * FROM due")) == ({}, [])
