"""Kills around a store in PostgreSQL: of the writer, of its server, of one of three servers.

After each, the cursor is never ahead of its rows, and nothing is served that is not whole.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from sidecar.core.horizon import Cursor
from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog
from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.errors import StoreBusy, StoreError, StoreFenced
from sidecar.store import ChainStore
from sidecar.store.postgres.url import place_of
from sidecar.store.unit import StoreUnit
from tests.conftest import StartServer
from tests.contract.events import long_chain
from tests.contract.postgres import ONE_AND_THREE, PostgresBackend, near_lenders, three_lenders
from tests.faults.test_store_kill import killed_after
from tests.support import lenders
from tests.support.databases import Database, beside
from tests.support.load import Load
from tests.support.service import service
from tests.support.storeserver import fresh_url, said

OF_ONE = 10
ROWS = 20


NEAR_AND_FAR = [
    pytest.param(near_lenders, id="databases"),
    pytest.param(three_lenders, id="servers", marks=pytest.mark.torture),
]


@pytest.fixture(params=ONE_AND_THREE)
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresBackend]:
    made: PostgresBackend = request.param()
    yield made
    made.remove()


@pytest.fixture(params=NEAR_AND_FAR)
def spread(request: pytest.FixtureRequest) -> Iterator[PostgresBackend]:
    made: PostgresBackend = request.param()
    yield made
    made.remove()


@pytest.fixture
def lending() -> Iterator[tuple[EmbeddedPostgres, ...]]:
    """The servers that lend to the other tests, too: started anew afterwards, as a test may leave them."""
    yield lenders.servers()
    for server in lenders.servers():
        (server.data / "standby.signal").unlink(missing_ok=True)
        server.restart()


async def write(store: ChainStore, batch: int) -> None:
    """Ten executions and a cursor that says so, in one unit."""

    async def work(unit: StoreUnit) -> None:
        read = LogRead(store.clock.now())
        ids = range(batch * OF_ONE, (batch + 1) * OF_ONE)
        await unit.populate([ExecutionLog(e, long_chain(ROWS, execution_id=e), read) for e in ids])
        unit.put_cursor(Cursor("live", batch, "e", "s", "t", 1))

    await store.transact(work)


async def check(store: ChainStore, *, torn: bool = False) -> int:
    """The cursor; every batch up to it is there, and every execution is whole or not there at all.

    Args:
        torn: Of the batch after it some executions may be there.
    """
    cursors = await store.cursors()
    cursor = cursors["live"].horizon if cursors else 0
    assert cursor is not None
    executions = [e async for e in store.executions(low=1)]
    promised = range(OF_ONE, (cursor + 1) * OF_ONE)
    assert set(promised) <= set(executions), "a cursor ahead of its rows"
    allowed = range(OF_ONE, (cursor + 1 + torn) * OF_ONE)
    assert set(executions) <= set(allowed)
    for answer in (await store.guarded_reads(executions)).values():
        assert answer.events is not None
        assert len(answer.events) == ROWS
    return cursor


async def write_on(store: ChainStore, done: int, written: list[int]) -> None:
    """Batch after batch, without end."""
    for batch in count(done + 1):
        await write(store, batch)
        written.append(batch)


@asynccontextmanager
async def reopened(url: str) -> AsyncIterator[ChainStore]:
    """Opened as soon as its servers answer."""
    async with asyncio.timeout(30):
        while True:
            try:
                store = await ChainStore.open(url)
            except StoreBusy:
                await asyncio.sleep(0.05)
                continue
            break
    async with store:
        yield store


# The writer


def kill_in_a_loop(url: str, kills: int, longest: float, seed: int) -> None:
    moments = random.Random(seed)

    async def cursor_and_rows() -> tuple[int, list[int]]:
        async with ChainStore.open(url) as store:
            cursor = (await store.cursors())["live"].horizon
            assert cursor is not None
            executions = [e async for e in store.executions(low=1)]
            answers = await store.guarded_reads(executions)
            assert all(
                answer.events is not None and len(answer.events) == ROWS for answer in answers.values()
            )
            alone = [e async for e in store.executions(high=-1)]
            assert all(answer.events is None for answer in (await store.guarded_reads(alone)).values())
            return cursor, executions

    for _ in range(kills):
        acknowledged = killed_after(url, moments.uniform(0.0, longest))
        cursor, executions = asyncio.run(cursor_and_rows())
        assert cursor >= acknowledged
        assert executions == list(range(OF_ONE, (cursor + 1) * OF_ONE))


def test_a_writer_killed_again_and_again(postgres: PostgresBackend) -> None:
    kill_in_a_loop(postgres.url, kills=2, longest=0.2, seed=3)


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_a_writer_killed_more_often(postgres: PostgresBackend) -> None:
    kill_in_a_loop(postgres.url, kills=8, longest=0.4, seed=4)


# The server


async def test_a_server_killed_in_a_unit_takes_the_unit_along_and_nothing_else(
    pg_server: StartServer,
) -> None:
    """The store stays open: it pauses, and goes on when the server is back."""
    server = await pg_server({"fsync": "off"}, event_table=False)
    url = fresh_url(dsn=server.dsn())
    inside = asyncio.Event()
    async with ChainStore.open(url) as store:
        await write(store, 1)

        async def work(unit: StoreUnit) -> None:
            read = LogRead(store.clock.now())
            await unit.populate([ExecutionLog(99, long_chain(ROWS, execution_id=99), read)])
            await unit.chain(99)
            inside.set()
            server.kill()
            await unit.chain(99)

        with pytest.raises(StoreBusy):
            await store.transact(work)
        assert inside.is_set()
        with pytest.raises(StoreBusy):
            await write(store, 2)
        with pytest.raises(StoreBusy):
            await store.chain(10)
        server.restart()
        assert await check(store) == 1
        await write(store, 2)
        assert await check(store) == 2
        assert await store.chain(99) == ()


@pytest.mark.torture
async def test_a_server_that_became_a_standby_is_waited_for(pg_server: StartServer) -> None:
    server = await pg_server({"fsync": "off"}, event_table=False)
    await be_a_standby_for_a_while(fresh_url(dsn=server.dsn()), server, said="0A000")


async def be_a_standby_for_a_while(url: str, server: EmbeddedPostgres, *, said: str) -> None:
    """It reads and does not write; nobody is fenced, and it goes on when it is the primary again."""
    async with ChainStore.open(url) as store:
        await write(store, 1)
        server.halt()
        (server.data / "standby.signal").touch()
        server.restart()
        for _ in range(2):
            with pytest.raises(StoreBusy, match=said):
                await write(store, 2)
        assert await check(store) == 1
        server.halt()
        (server.data / "standby.signal").unlink()
        server.restart()
        await write(store, 2)
        assert await check(store) == 2


@pytest.mark.torture
async def test_a_server_killed_at_any_moment(pg_server: StartServer) -> None:
    server = await pg_server({"fsync": "off"}, event_table=False)
    await kill_at_any_moment(fresh_url(dsn=server.dsn()), server)


async def kill_at_any_moment(url: str, server: EmbeddedPostgres, *, torn: bool = False) -> None:
    """`torn`: it is one of several, so a commit may be half done."""
    moments = random.Random(6)
    for _ in range(8):
        async with reopened(url) as store:
            written = [await check(store, torn=torn)]
            loop = asyncio.get_running_loop()
            loop.call_later(moments.uniform(0.05, 0.6), server.kill)
            # Also a StoreError without a remedy: whether the last commit was done could not be told.
            with pytest.raises(StoreError) as ended:
                await write_on(store, written[-1], written)
            assert not isinstance(ended.value, StoreFenced)
            server.restart()
            async with reopened(url) as again:
                assert await check(again, torn=torn) in (written[-1], written[-1] + 1)


# Several servers


async def test_a_commit_that_only_some_servers_did_is_harmless(spread: PostgresBackend) -> None:
    """One refuses its commit after another one has done it: rows, but no cursor; the process has to end."""
    async with spread.open() as store:
        await write(store, 1)
    # Who is asked first has nobody before it, and the order is the server's: then another one refuses.
    left = await _torn(spread, 2) or await _torn(spread, 1)
    assert 0 < len(left) < OF_ONE, "some of the batch is there"
    async with spread.open() as store:
        numbers = spread.run("SELECT max(gseq) FROM event")[0][0]
        await write(store, 2)
        assert await check(store) == 2
        assert spread.run("SELECT count(*), count(DISTINCT gseq), max(gseq) > $1 FROM event", numbers) == [
            (20 * ROWS, 20 * ROWS, True)
        ]


async def _torn(spread: PostgresBackend, leaf: int) -> list[int]:
    """Write a batch whose commit that leaf's server refuses; what is there of it afterwards."""
    async with spread.open() as store:
        with _refusing(spread, leaf), pytest.raises(StoreError, match="may disagree") as torn:
            await write(store, 2)
        assert not torn.value.retryable
    async with spread.open() as store:
        assert await check(store, torn=True) == 1
        return [e async for e in store.executions(low=20)]


class _refusing:  # noqa: N801 - reads as a verb
    """While it lasts, the server that lends `leaf` refuses every commit that wrote to it."""

    def __init__(self, spread: PostgresBackend, leaf: int) -> None:
        self._spread = spread
        assert spread.lenders is not None
        self._leaf = f'"{spread.place.schema}".event_{leaf}'
        self._node = spread.lenders.nodes[leaf].dsn

    def __enter__(self) -> None:
        self._say(
            "CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'no'; END $$;"
            f" CREATE CONSTRAINT TRIGGER refused AFTER INSERT ON {self._leaf} DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION public.refuse()"
        )

    def __exit__(self, *_: object) -> None:
        self._say(f"DROP TRIGGER refused ON {self._leaf}; SELECT 1")

    def _say(self, script: str) -> None:
        beside(said(self._node, script))


async def test_a_lender_that_is_gone_stops_what_it_holds_and_nothing_else(pg_server: StartServer) -> None:
    """kill -9 in a unit: what the two others hold is read on, and it goes on when the third is back."""
    home, lender, other = [await pg_server({"fsync": "off"}, event_table=False) for _ in range(3)]
    url = fresh_url(dsn=home.dsn())
    await spread_over(url, [home.dsn("template1"), lender.dsn(), other.dsn()])
    async with ChainStore.open(url) as store:
        await write(store, 1)
        far = await _held_by(url, 1)
        near = [min(await _held_by(url, node)) for node in (0, 2)]

        async def work(unit: StoreUnit) -> None:
            read = LogRead(store.clock.now())
            logs = [ExecutionLog(e, long_chain(ROWS, execution_id=e), read) for e in range(20, 30)]
            await unit.populate(logs)
            unit.put_cursor(Cursor("live", 2, "e", "s", "t", 1))
            await unit.chain(20)
            lender.kill()
            for e in range(20, 30):
                await unit.chain(e)

        with pytest.raises(StoreBusy):
            await store.transact(work)
        assert (await store.cursors())["live"].horizon == 1
        for e in near:
            assert len((await store.chain_if_authoritative(e)).events or ()) == ROWS
        with pytest.raises(StoreBusy):
            await store.chain_if_authoritative(min(far))
        with pytest.raises(StoreBusy):
            await write(store, 2)
        lender.restart()
        assert await check(store) == 1
        await write(store, 2)
        assert await check(store) == 2


@pytest.fixture(params=["coordinator", "lender"])
async def one_of_several(
    request: pytest.FixtureRequest, pg_server: StartServer, lending: tuple[EmbeddedPostgres, ...]
) -> tuple[str, EmbeddedPostgres, str]:
    """A new store over three servers, and one of the four with what it is."""
    home = await pg_server({"fsync": "off"}, event_table=False)
    url = fresh_url(dsn=home.dsn())
    await spread_over(url, [lender.dsn() for lender in lending])
    return url, home if request.param == "coordinator" else lending[1], request.param


@pytest.mark.torture
async def test_one_of_the_servers_killed_at_any_moment(
    one_of_several: tuple[str, EmbeddedPostgres, str],
) -> None:
    url, server, _ = one_of_several
    await kill_at_any_moment(url, server, torn=True)


@pytest.mark.torture
async def test_one_of_the_servers_that_became_a_standby_is_waited_for(
    one_of_several: tuple[str, EmbeddedPostgres, str],
) -> None:
    url, server, who = one_of_several
    await be_a_standby_for_a_while(url, server, said="0A000" if who == "coordinator" else "25006")


async def spread_over(url: str, nodes: list[str]) -> None:
    from sidecar.store.postgres.nodes import spread

    await spread(url, nodes)


async def _held_by(url: str, node: int) -> set[int]:
    """The executions of which that node holds the rows."""
    place = place_of(url)
    rows = await said(
        place.dsn,
        f'SELECT DISTINCT execution_id FROM "{place.schema}".event AS e JOIN pg_foreign_table AS t'
        " ON t.ftrelid = e.tableoid JOIN pg_foreign_server AS s ON s.oid = t.ftserver WHERE s.srvname = $1",
        f"{place.schema}_{node}",
    )
    return {row[0] for row in rows}


@pytest.mark.torture
@pytest.mark.timeout(300)
async def test_the_sidecar_over_three_servers_of_which_two_die(
    pg: Database, pg_server: StartServer, lending: tuple[EmbeddedPostgres, ...]
) -> None:
    """Under load one is killed and comes back, then another; in the end the store is the log, all match."""
    home = await pg_server({"fsync": "off"}, event_table=False)
    url = fresh_url(partitions=6, dsn=home.dsn())
    await spread_over(url, [server.dsn() for server in lending])
    load = Load(pg.dsn, total=1500, writers=6, longest_s=0.3)
    writing, victims, down = (
        asyncio.create_task(load.run()),
        [lending[1], lending[2]],
        set[EmbeddedPostgres](),
    )
    while True:
        try:
            async with service(pg.dsn, url) as sidecar:

                async def paused() -> bool:
                    return bool(sidecar.health.reasons())

                while victims:
                    await sidecar.polls(3, patience_s=60)
                    victim = victims.pop()
                    down.add(victim)
                    victim.kill()
                    await sidecar.until(paused, patience_s=60)
                    victim.restart()
                    down.discard(victim)
                await writing
                await sidecar.idle(patience_s=120)
                break
        except* StoreError:  # the process would end with 20 and be started again
            for server in down:
                server.restart()
            down.clear()
    async with ChainStore.open_readonly(url) as store:
        judged = await store.query("SELECT verdict, count(*) FROM partition GROUP BY verdict")
        assert judged == [("match", len({execution_id for execution_id, _ in load.visible}))]
        stored = await store.query("SELECT count(*), count(DISTINCT gseq) FROM event")
        assert stored == [(len(load.visible), len(load.visible))]
