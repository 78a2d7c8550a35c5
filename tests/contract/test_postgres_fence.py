"""One writer: the epoch that fences, the count that says what became of a lost commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from sidecar.core.event import Event
from sidecar.errors import StoreBusy, StoreError, StoreFenced, StoreLocked
from sidecar.store import ChainStore
from sidecar.store.postgres.writer import FencedWriter
from sidecar.store.unit import StoreUnit
from tests.contract.events import E, chain
from tests.contract.postgres import ONE_AND_THREE, PostgresBackend, alone
from tests.support.pooler import pooler
from tests.support.storeserver import said


@pytest.fixture(params=ONE_AND_THREE)
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresBackend]:
    made: PostgresBackend = request.param()
    yield made
    made.remove()


@pytest.fixture
async def store(postgres: PostgresBackend) -> AsyncIterator[ChainStore]:
    async with postgres.open() as opened:
        yield opened


def writer_of(store: ChainStore) -> FencedWriter:
    assert isinstance(store._writer, FencedWriter)
    return store._writer


class Losing:
    """A driver's connection that is lost in a commit, before the server has it or after."""

    def __init__(self, raw: Any, *, done: bool) -> None:
        self._raw = raw
        self._done = done
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    async def execute(self, script: str, **options: Any) -> str:
        if script != "COMMIT":
            text: str = await self._raw.execute(script, **options)
            return text
        if self._done:
            await self._raw.execute(script, **options)
        self.lost += 1
        self._raw.terminate()
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")


async def test_who_was_taken_over_commits_nothing_any_more(postgres: PostgresBackend) -> None:
    async with postgres.open() as old:
        await old.populate_from_log(E, chain(1, 2))
        async with postgres.open() as new:
            with pytest.raises(StoreFenced, match="taken over by another start of process") as fenced:
                await old.populate_from_log(E, chain(1, 2, 3))
            assert fenced.value.exit_code == 20
            assert not fenced.value.retryable
            assert await new.chain(E) == chain(1, 2)
            await new.populate_from_log(E, chain(1, 2, 3))
            with pytest.raises(StoreFenced):
                await old.append(Event(E, 4, 3, None, "x", "{}"))
            assert await new.chain(E) == chain(1, 2, 3)


async def test_a_taker_waits_for_the_transaction_under_way(postgres: PostgresBackend) -> None:
    """The old writer is in the middle of its unit: its commit stands, and is seen by who comes next."""
    inside, go_on = asyncio.Event(), asyncio.Event()
    async with postgres.open() as old:

        async def slow(unit: StoreUnit) -> None:
            await unit.rows("INSERT INTO meta (key, value) VALUES (?, ?)", ("told", "once"))
            inside.set()
            await go_on.wait()

        async def take() -> ChainStore:
            return await postgres.open()

        unit = asyncio.create_task(old.transact(slow))
        await inside.wait()
        taking = asyncio.create_task(take())
        for _ in range(200):  # the taker is seen to wait for the row
            waiting = await said(
                postgres.place.dsn, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'"
            )
            if waiting:
                break
            await asyncio.sleep(0.01)
        assert waiting
        assert not taking.done()
        go_on.set()
        new = await taking
        try:
            assert await new.query("SELECT value FROM meta WHERE key = 'told'") == [("once",)]
            await unit
            with pytest.raises(StoreFenced):
                await old.append(chain(1)[0])
        finally:
            await new.close()


@alone
@pytest.mark.parametrize("done", [True, False])
async def test_a_commit_without_an_answer_is_looked_up(store: ChainStore, done: bool) -> None:
    await store.populate_from_log(E, chain(1))
    writer, then = writer_of(store), list[str]()
    writer._raw = losing = Losing(writer._raw, done=done)
    before = writer.epoch

    async def work(unit: StoreUnit) -> int:
        unit.append(())
        await unit.rows("INSERT INTO meta (key, value) VALUES (?, ?)", ("told", "once"))
        unit.on_commit(lambda: then.append("then"))
        return 7

    if done:
        assert await store.transact(work) == 7
    else:
        with pytest.raises(StoreBusy):
            await store.transact(work)
    assert losing.lost == 1
    assert writer.epoch == (before or 0) + 1
    kept = await store.query("SELECT value FROM meta WHERE key = 'told'")
    assert (kept, then) == ([("once",)] * done, ["then"] * done)
    await store.populate_from_log(E, chain(1, 2))
    assert await store.chain(E) == chain(1, 2)


async def test_a_lost_connection_takes_its_transaction_along(
    store: ChainStore, postgres: PostgresBackend
) -> None:
    async def work(unit: StoreUnit) -> None:
        await unit.rows("INSERT INTO meta (key, value) VALUES (?, ?)", ("told", "never"))
        pid = (await unit.rows("SELECT pg_backend_pid()"))[0][0]
        await said(postgres.place.dsn, "SELECT pg_terminate_backend($1)", pid)
        await unit.rows("SELECT 1")

    with pytest.raises(StoreBusy):
        await store.transact(work)
    assert await store.query("SELECT value FROM meta WHERE key = 'told'") == []
    await store.populate_from_log(E, chain(1))
    assert await store.chain(E) == chain(1)


async def test_a_server_that_was_put_back_ends_the_writer(
    store: ChainStore, postgres: PostgresBackend
) -> None:
    """A standby that was behind, or an older copy, must not be written on with what we remember."""
    await store.populate_from_log(E, chain(1))
    postgres.run("UPDATE writer SET unit = unit - 1")
    writer_of(store)._drop()
    with pytest.raises(StoreError, match="lost what it had committed") as lost:
        await store.populate_from_log(E, chain(1, 2))
    assert not lost.value.retryable


async def test_a_second_sidecar_sees_that_somebody_writes(postgres: PostgresBackend) -> None:
    """Looked for, it refuses and names the one that writes; one that is silent is taken over."""
    async with postgres.open() as first:
        stop = asyncio.Event()

        async def writes() -> None:
            while not stop.is_set():
                await first.advance_apply_cursor(1, (await first.load_apply_cursor(1)) + 1)

        writing = asyncio.create_task(writes())
        with pytest.raises(StoreLocked, match="in use by process"):
            await ChainStore.open(postgres.url, look_s=0.3)
        stop.set()
        await writing
        async with await ChainStore.open(postgres.url, look_s=0.05) as second:
            await second.append(chain(1)[0])
        with pytest.raises(StoreFenced):
            await first.append(chain(1)[0])


async def test_the_engine_is_asked_who_it_is(postgres: PostgresBackend) -> None:
    """Also those that only lend leaves: one of them may be the server that is compared."""
    lenders = postgres.lenders.nodes if postgres.lenders is not None else ()
    servers = [postgres.place.dsn, *(each.dsn for each in lenders)]
    asked = "SELECT system_identifier::text FROM pg_control_system()"
    identities = [(await said(dsn, asked))[0][0] for dsn in servers]
    async with postgres.open():
        pass
    for here in identities:
        for opened in (ChainStore.open, ChainStore.open_readonly):
            with pytest.raises(StoreError, match="the server whose log it is compared with"):
                await opened(postgres.url, not_on=here)
    async with ChainStore.open(postgres.url, not_on="1"):
        pass


@pytest.mark.pgbouncer
async def test_a_transaction_pooler_changes_nothing(postgres: PostgresBackend) -> None:
    """No session lock, no session state: what is needed is said in every transaction."""
    place = postgres.place
    async with pooler(place.dsn, backends=3) as dsn:
        url = f"{dsn}&schema={place.schema}&partitions={place.partitions}"
        async with ChainStore.open(url) as old:
            await asyncio.gather(*(old.populate_from_log(e, chain(1, 2, execution_id=e)) for e in range(30)))
            reads = await asyncio.gather(*(old.chain_if_authoritative(e) for e in range(30)))
            assert {len(read.events or ()) for read in reads} == {2}
            assert len(await old.summer.between(0, 29)) == 30
            async with ChainStore.open(url) as new:
                with pytest.raises(StoreFenced):
                    await old.append(chain(1, 2, 3, execution_id=1)[2])
                await new.append(chain(1, 2, 3, execution_id=1)[2])
                assert len(await new.chain(1)) == 3
