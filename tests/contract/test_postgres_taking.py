"""Who takes a store over, and what is said when it was not somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from sidecar.core.event import Event
from sidecar.errors import StoreBusy, StoreCorrupt, StoreError, StoreFenced, StoreFull
from sidecar.store import ChainStore
from sidecar.store.postgres import connection as connections
from sidecar.store.postgres import writer as writers
from sidecar.store.postgres.acknowledge import change
from sidecar.store.postgres.writer import FencedWriter
from sidecar.store.unit import StoreUnit
from tests.contract.events import E, chain
from tests.contract.postgres import ONE_AND_THREE, PostgresBackend, alone
from tests.contract.test_postgres_fence import Losing, writer_of
from tests.support.pooler import pooler


@pytest.fixture(params=ONE_AND_THREE)
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresBackend]:
    made: PostgresBackend = request.param()
    yield made
    made.remove()


@pytest.fixture
async def store(postgres: PostgresBackend) -> AsyncIterator[ChainStore]:
    async with postgres.open() as opened:
        yield opened


class Losses:
    """Of the next connections each is lost in a COMMIT: before the server has it or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *done: bool) -> None:
        self.left = list(done)
        self._connect = connections.connect
        monkeypatch.setattr(writers, "connect", self._losing)

    async def _losing(self, place: Any) -> Any:
        raw = await self._connect(place)
        return Losing(raw, done=self.left.pop(0)) if self.left else raw


@pytest.mark.parametrize("done", [(True,), (False,), (True, True), (True, False, True), (False, True)])
async def test_who_loses_the_answer_to_its_own_taking_is_not_fenced_by_itself(
    store: ChainStore, monkeypatch: pytest.MonkeyPatch, done: tuple[bool, ...]
) -> None:
    """The server went away twice: in a statement, and in the COMMIT by which the store was taken again."""
    await store.populate_from_log(E, chain(1))
    losses = Losses(monkeypatch, *done)
    writer_of(store)._drop()
    for _ in done:
        with pytest.raises(StoreBusy):
            await store.append(chain(1, 2)[1])
    assert not losses.left
    await store.append(chain(1, 2)[1])
    assert await store.chain(E) == chain(1, 2)


@alone
async def test_a_lost_commit_is_looked_up_through_takings_that_are_lost_too(
    store: ChainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.populate_from_log(E, chain(1))
    writer = writer_of(store)
    writer._raw = Losing(writer._raw, done=True)
    losses = Losses(monkeypatch, True, False, True)
    await store.append(chain(1, 2)[1])
    assert not losses.left
    assert await store.chain(E) == chain(1, 2)


async def test_somebody_else_may_come_between_a_taking_and_its_answer(
    store: ChainStore, postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = Losses(monkeypatch, False)
    writer_of(store)._drop()
    with pytest.raises(StoreBusy):
        await store.append(chain(1)[0])
    assert not losses.left
    async with postgres.open() as other:
        with pytest.raises(StoreFenced):
            await store.append(chain(1)[0])
        assert await other.chain(E) == ()


@alone
async def test_a_full_disk_does_not_answer_what_became_of_a_commit(
    store: ChainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store cannot be taken nobody knows, and "nothing was written" would be a guess."""
    await store.populate_from_log(E, chain(1))
    writer, take, tries = writer_of(store), FencedWriter.take, list[int]()
    writer._raw = Losing(writer._raw, done=True)

    async def full(self: FencedWriter) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise StoreFull("the disk of the store's server is full")
        await take(self)

    monkeypatch.setattr(FencedWriter, "take", full)
    await store.append(chain(1, 2)[1])
    assert len(tries) == 3
    assert await store.chain(E) == chain(1, 2)


@pytest.mark.parametrize("pooled", [False, True])
async def test_a_server_that_was_put_back_is_not_called_another_sidecar(
    store: ChainStore, postgres: PostgresBackend, pooled: bool
) -> None:
    """A pooler keeps the connection over a failover; without one the store is taken again."""
    await store.populate_from_log(E, chain(1))
    before = writer_of(store).epoch or 0
    postgres.run("UPDATE writer SET unit = unit - 1")
    if not pooled:
        writer_of(store)._drop()
    with pytest.raises(StoreError, match="lost what it had committed") as lost:
        await store.append(chain(1, 2)[1])
    assert not isinstance(lost.value, StoreFenced)
    assert not lost.value.retryable
    postgres.run("UPDATE writer SET epoch = $1", before - 1)
    writer_of(store)._drop()
    with pytest.raises(StoreError, match="lost what it had committed"):
        await store.append(chain(1, 2)[1])


async def test_an_empty_table_of_writers_is_damage(store: ChainStore, postgres: PostgresBackend) -> None:
    rows = postgres.run("DELETE FROM writer RETURNING one, epoch, unit, holder, taken_at")
    try:
        with pytest.raises(StoreCorrupt, match="says nothing of who writes"):
            await store.append(chain(1)[0])
        with pytest.raises(StoreCorrupt, match="says nothing of who writes"):
            await store.append(chain(1)[0])
        for look_s in (0.0, 0.01):
            with pytest.raises(StoreCorrupt, match="says nothing of who writes"):
                await ChainStore.open(postgres.url, look_s=look_s)
    finally:
        postgres.run("INSERT INTO writer VALUES ($1, $2, $3, $4, $5)", *rows[0])


async def test_an_outage_while_the_fence_is_looked_at_fences_nobody(
    store: ChainStore, postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again, and said then."""
    async with postgres.open():
        monkeypatch.setattr(connections, "connect", away)
        monkeypatch.setattr(writers, "connect", away)
        with pytest.raises(StoreBusy):
            await store.append(chain(1)[0])
        monkeypatch.undo()
        with pytest.raises(StoreFenced, match="another start of process"):
            await store.append(chain(1)[0])


async def away(place: object) -> object:
    raise StoreBusy("the store's server does not answer")


async def opened_or_fenced(url: str) -> ChainStore | None:
    try:
        return await ChainStore.open(url)
    except StoreFenced:  # between its taking and its first read another one came
        return None


async def race(urls: list[str], rounds: int) -> int:
    """So many rounds in which all open at one instant; how often a loser was seen."""
    fenced = 0
    for number in range(rounds):
        async with AsyncExitStack() as closing:
            raced = await asyncio.gather(*map(opened_or_fenced, urls))
            opened = [each for each in raced if each is not None]
            for each in opened:
                closing.push_async_callback(each.close)
            epochs = [writer_of(each).epoch or 0 for each in opened]
            assert len(set(epochs)) == len(epochs)
            event = Event(1000 + number, 1, None, None, "x", "{}")
            answers = await asyncio.gather(*(each.append(event) for each in opened), return_exceptions=True)
            wrote = [at for at, answer in enumerate(answers) if answer == 1]
            assert wrote == [epochs.index(max(epochs))]
            losers = [answer for at, answer in enumerate(answers) if at not in wrote]
            assert all(type(answer) is StoreFenced for answer in losers)
            fenced += len(urls) - 1
            assert len(await opened[wrote[0]].chain(1000 + number)) == 1
    return fenced


async def test_of_those_who_open_at_one_instant_one_writes(postgres: PostgresBackend) -> None:
    async with postgres.open():
        pass
    assert await race([postgres.url] * 3, 6) == 12


@pytest.mark.pgbouncer
async def test_of_those_who_open_at_one_instant_one_writes_through_a_pooler(
    postgres: PostgresBackend,
) -> None:
    place = postgres.place
    async with postgres.open():
        pass
    async with pooler(place.dsn, backends=4) as dsn:
        url = f"{dsn}&schema={place.schema}&partitions={place.partitions}"
        assert await race([url, postgres.url, url], 4) == 8


@pytest.mark.parametrize("begun", [True, False])
async def test_a_unit_under_way_when_the_store_is_taken_is_whole_or_not_there(
    postgres: PostgresBackend, begun: bool
) -> None:
    """Statements of the loser reach the server before the winner comes, or never."""
    async with postgres.open():
        pass
    for _ in range(4):
        old, inside = await postgres.open(), asyncio.Event()
        writing = asyncio.create_task(old.transact(partial(three_rows, inside)))
        if begun:
            await inside.wait()
        new = await postgres.open()
        at_taking = await new.query(THREE)
        (answer,) = await asyncio.gather(writing, return_exceptions=True)
        assert await new.query(THREE) == at_taking, "nothing of the loser comes behind the winner"
        assert at_taking == [(3 if answer is None else 0,)]
        assert answer is None if begun else answer is None or type(answer) is StoreFenced
        await new.transact(lambda unit: unit.rows("DELETE FROM meta WHERE value = 'old'"))
        await old.close()
        await new.close()


THREE = "SELECT count(*) FROM meta WHERE value = 'old'"


async def three_rows(inside: asyncio.Event, unit: StoreUnit) -> None:
    inside.set()
    for key in "abc":
        await unit.rows("INSERT INTO meta (key, value) VALUES (?, ?)", (key, "old"))


A_FINDING = (
    "INSERT INTO finding (execution_id, verdict, found_at) VALUES (1, 'divergent', 5) RETURNING finding_id"
)


@pytest.mark.parametrize("done", [True, False])
async def test_an_acknowledgement_without_an_answer_is_read_back(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    async with postgres.open():
        pass
    ((finding,),) = postgres.run(A_FINDING)
    connect, left = connections.connect, [done]

    async def losing(place: Any) -> Any:
        raw = await connect(place)
        return Losing(raw, done=left.pop()) if left else raw

    monkeypatch.setattr(connections, "connect", losing)
    if done:
        assert (await change(postgres.url, finding, "known", 9)).at == 9
    else:
        with pytest.raises(StoreBusy):
            await change(postgres.url, finding, "known", 9)
    assert not left
    kept = postgres.run("SELECT acknowledged_at, acknowledged_why FROM finding")
    assert kept == [(9, "known") if done else (None, None)]


async def test_an_acknowledgement_of_which_nobody_can_tell_says_so(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with postgres.open():
        pass
    ((finding,),) = postgres.run(A_FINDING)
    connect, left = connections.connect, [True]

    async def losing(place: Any) -> Any:
        return Losing(await connect(place), done=left.pop()) if left else await away(place)

    monkeypatch.setattr(connections, "connect", losing)
    with pytest.raises(StoreError, match="cannot be told") as unknown:
        await change(postgres.url, finding, "known", 9)
    assert not unknown.value.retryable
