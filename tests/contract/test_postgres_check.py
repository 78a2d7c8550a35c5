"""`store check` of a store in PostgreSQL: the same contradictions by the same names as in a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.cli import entry
from sidecar.core.due import Due
from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.horizon import Cursor
from sidecar.errors import StoreBusy, StoreFormatError
from sidecar.store.check import check as check_file
from sidecar.store.postgres.check import check
from sidecar.store.unit import StoreUnit
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain
from tests.contract.postgres import ONE_AND_THREE, PostgresBackend, near_lenders
from tests.contract.test_sqlite_check import named
from tests.support.storeserver import fresh_url

EXECUTIONS = (ID_MIN, -5, 0, 7, E, ID_MAX)
WRONG = (
    "DELETE FROM event WHERE execution_id = 7 AND exec_seq = 2",
    "UPDATE event SET prev_event_id = 99 WHERE execution_id = 0 AND exec_seq = 2",
    f"UPDATE partition SET head_event_id = 99, parent_execution_id = 1 WHERE execution_id = {ID_MIN}",
    f"UPDATE partition SET wm_first = NULL, held = -1 WHERE execution_id = {ID_MAX}",
    "UPDATE partition SET label = 'fork', verdict = 'fine' WHERE execution_id = -5",
    f"DELETE FROM partition WHERE execution_id = {E}",
    f"UPDATE event SET gseq = 1000 WHERE execution_id = {E} AND exec_seq = 1",
    f"UPDATE event SET gseq = 1 WHERE execution_id = {E} AND exec_seq = 2",
    "UPDATE event SET gseq = -1 WHERE execution_id = 9 AND exec_seq = 1",
    "UPDATE due SET tries = -1, pending_since = NULL",
    "UPDATE tail_cursor SET horizon = -1",
    "INSERT INTO apply_cursor (shard, seq) VALUES (0, -1)",
    "INSERT INTO replica_position (replica, gseq, moved_at) VALUES ('', 1, 1)",
)


@pytest.fixture(params=ONE_AND_THREE)
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresBackend]:
    made: PostgresBackend = request.param()
    yield made
    made.remove()


async def fill(opening: Any) -> None:
    async with opening as store:
        for number, execution_id in enumerate(EXECUTIONS):
            ids = (3 * number + 1, 3 * number + 2, 3 * number + 3)
            await store.populate_from_log(execution_id, chain(*ids, execution_id=execution_id))
        await store.populate_from_log(8, ())
        for event in chain(1, 2, execution_id=9):
            await store.populate(event)
        await store.apply_replicated(chain(1, 2, execution_id=10, parent=7)[1], 2)

        async def more(unit: StoreUnit) -> None:
            unit.put_due(Due(E, due_at=1, pending_key="dangling_prev:1", pending_since=1))
            unit.put_cursor(Cursor("live", 5, "e", "s", "t", 1))

        await store.transact(more)


async def test_it_finds_what_the_check_of_a_file_finds(
    postgres: PostgresBackend, sqlite: SqliteBackend
) -> None:
    await fill(postgres.open())
    await fill(sqlite.open())
    pages: list[int] = []
    good = await check(postgres.url, limit=2, moved=pages.append)
    assert good == check_file(sqlite.path)
    assert (good.exit_code, good.executions, good.incomplete) == (0, len(EXECUTIONS) + 3, 1)
    assert (sum(pages), max(pages)) == (good.executions, 2)
    for sql in WRONG:
        postgres.run(sql)
        sqlite.run(sql)
    lite = check_file(sqlite.path)
    for limit in (1, 2, 500):
        full = await check(postgres.url, limit=limit)
        assert named(full) == named(lite)
        assert (full.kinds, full.exit_code) == (lite.kinds, 1)
        assert (full.executions, full.events) == (lite.executions, lite.events)
    assert len(lite.kinds) == 13


async def test_an_empty_table_of_writers_is_found(postgres: PostgresBackend) -> None:
    await fill(postgres.open())
    postgres.run("DELETE FROM writer")
    assert named(await check(postgres.url)) == {(None, "cursor")}
    postgres.run("INSERT INTO writer (epoch, unit, holder, taken_at) VALUES (1, 1, 'nobody', now())")


async def test_beside_a_writer_that_goes_on_it_finds_nothing(postgres: PostgresBackend) -> None:
    await fill(postgres.open())
    async with postgres.open() as store:
        done, ended = 0, asyncio.Event()

        async def write() -> None:
            nonlocal done
            while not ended.is_set():
                written, last = divmod(done, 36)
                await store.populate_from_log(
                    100 + written, chain(*range(1, last + 4), execution_id=100 + written)
                )
                done += 1

        writing, raced = asyncio.create_task(write()), 0
        while raced < 2:
            before = done
            assert (await check(postgres.url, limit=2)).findings == []
            raced += done > before
        ended.set()
        await writing


async def test_a_number_of_a_lender_is_counted_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lenders commit before the count: what it does not know yet is looked for again, then named."""
    spread = near_lenders()
    await fill(spread.open())
    ((high,),) = spread.run("SELECT high FROM sequence WHERE dataset = 'event'")
    spread.run("UPDATE sequence SET high = 1 WHERE dataset = 'event'")
    looks = list[float]()

    async def counted(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            spread.run("UPDATE sequence SET high = $1 WHERE dataset = 'event'", high)

    monkeypatch.setattr(asyncio, "sleep", counted)
    assert (await check(spread.url)).findings == []
    assert len(looks) == 2
    spread.run("UPDATE sequence SET high = 1 WHERE dataset = 'event'")
    assert set((await check(spread.url)).kinds) == {"gseq"}
    spread.remove()


async def test_a_server_that_is_away_is_no_answer(postgres: PostgresBackend) -> None:
    with pytest.raises(StoreBusy):
        await check("postgresql://nobody@/d?host=/nowhere")
    with pytest.raises(StoreFormatError, match="holds no chain store"):
        await check(fresh_url())


def test_a_page_that_the_server_cannot_read_is_damage(
    postgres: PostgresBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fill(postgres.open()))
    assert entry(["store", "check", "--store", postgres.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 3 * len(EXECUTIONS) + 3
    postgres.run("UPDATE partition SET held = -1 WHERE execution_id = 7")
    assert entry(["store", "check", "--store", postgres.url]) == 1
    assert "held is -1" in capsys.readouterr().err
    postgres.break_head()
    assert entry(["store", "check", "--store", postgres.url, "--json"]) == 20
    told = json.loads(capsys.readouterr().out)
    assert (told["damaged"], told["kinds"]) == (True, {"damage": 1})
