"""Cancelled at every await there is: no half-open transaction, no lost lock, whole or nothing.

The awaits are counted, not guessed: each run of a call is cancelled at its n-th suspension, for
n from the first to the last, once in the task of the caller and once in the task that holds
the transaction, as the end of a loop does it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from types import coroutine
from typing import Any, TypeVar

import pytest

from sidecar.core.authority import StoredEvent
from sidecar.core.horizon import Cursor
from sidecar.errors import Forked, NotHead
from sidecar.store import ChainStore
from sidecar.store.connection import Connection
from sidecar.store.unit import StoreUnit
from tests.contract.backends import SqliteBackend
from tests.contract.events import chain, long_chain
from tests.support.sqlite import raw

T = TypeVar("T")
PATIENCE_S = 10.0


class Suspensions:
    """Counts the suspensions of a task and cancels it at the chosen ones."""

    def __init__(self, first: int, cancels: int) -> None:
        self.seen = 0
        self._at = range(first, first + cancels)

    @property
    def reached(self) -> bool:
        return self.seen >= self._at.start

    @coroutine
    def of(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run `work`, looking on wherever it gives up its turn."""
        step: Callable[[], Any] = partial(work.send, None)
        while True:
            try:
                waiting = step()
            except StopIteration as end:
                result: T = end.value
                return result
            self.seen += 1
            if self.seen in self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                step = partial(work.send, (yield waiting))
            except asyncio.CancelledError as error:
                step = partial(work.throw, error)


# The calls


async def unit_of_work(store: ChainStore, e: int) -> None:
    async def work(unit: StoreUnit) -> None:
        for row in (StoredEvent(seq, event) for seq, event in enumerate(long_chain(3, execution_id=e), 1)):
            unit.append((row,))
            await unit.chain(e)
        unit.put_cursor(Cursor(str(e), 1, "e", "s", "t", 1))

    await store.transact(work)


async def refused_populate(store: ChainStore, e: int) -> None:
    """The marker is committed, the event is not: the savepoint on its way back."""
    with suppress(NotHead):
        await store.populate(chain(9, execution_id=e)[0])


async def forked_replication(store: ChainStore, e: int) -> None:
    with suppress(Forked):
        await store.populate_replicated(chain(9, 8, execution_id=e)[1], 1)


async def populate(store: ChainStore, e: int) -> None:
    await store.populate_from_log(e, long_chain(3, execution_id=e))


async def nothing(store: ChainStore, e: int) -> None:
    return


async def covered(store: ChainStore, e: int) -> None:
    await store.populate_from_log(e, chain(5, execution_id=e))


Call = Callable[[ChainStore, int], Coroutine[Any, Any, None]]
CALLS: list[tuple[Call, Call]] = [
    (nothing, unit_of_work),
    (nothing, populate),
    (covered, refused_populate),
    (covered, forked_replication),
]
NAMES = [call.__name__ for _, call in CALLS]


async def state(store: ChainStore, e: int) -> object:
    partition = await store.partition(e)
    mark = partition and (partition.head_seq, partition.watermark, partition.coverage)
    return await store.chain(e), mark, str(e) in await store.cursors()


async def after(store: ChainStore, e: int, ready: Call, call: Call) -> tuple[object, object]:
    """What an execution looks like before and after the whole call."""
    await ready(store, e)
    before = await state(store, e)
    await call(store, e)
    return before, await state(store, e)


def same(one: object, other: object, e: int, reference: int) -> bool:
    """Whether two executions stand alike; their ids differ."""
    return repr(one).replace(str(e), "E") == repr(other).replace(str(reference), "E")


async def sound(store: ChainStore) -> None:
    """The connection is free and outside of any transaction, and takes the next unit."""
    async with asyncio.timeout(PATIENCE_S):
        assert await store.transact(_gseq) >= 0
    assert not raw(store._writer).in_transaction
    assert not store._writer._lock.locked()


async def _gseq(unit: StoreUnit) -> int:
    return unit.gseq


async def cancelled(work: Awaitable[None]) -> bool:
    task = asyncio.ensure_future(work)
    await asyncio.wait({task})
    if task.cancelled():
        return True
    task.result()
    return False


@pytest.mark.parametrize(("ready", "call"), CALLS, ids=NAMES)
@pytest.mark.parametrize("cancels", [1, 2])
async def test_the_caller_is_cancelled_at_every_await(
    sqlite: SqliteBackend, ready: Call, call: Call, cancels: int
) -> None:
    async with sqlite.open() as store:
        _, whole = await after(store, 10_000, ready, call)
        ended = 0
        for nth in itertools.count(1):
            e = 10_000 + nth
            await ready(store, e)
            suspensions = Suspensions(nth, cancels)

            async def counted(suspensions: Suspensions = suspensions, e: int = e) -> None:
                rival = asyncio.create_task(ready(store, 90_000 + e))
                try:
                    await suspensions.of(call(store, e))
                finally:
                    await rival

            stopped = await cancelled(counted())
            await sound(store)
            if not suspensions.reached:
                break
            assert stopped
            # The hold had begun, or it never did.
            before, now = await before_and_now(store, e, ready)
            assert same(now, whole, e, 10_000) or now == before
            ended += same(now, whole, e, 10_000)
        assert nth > 1
        assert ended > 0


async def before_and_now(store: ChainStore, e: int, ready: Call) -> tuple[object, object]:
    """What the untouched execution looks like, beside what stands."""
    twin = e + 50_000
    await ready(store, twin)
    untouched = repr(await state(store, twin)).replace(str(twin), str(e))
    now = await state(store, e)
    return (now if repr(now) == untouched else untouched), now


@pytest.mark.parametrize(("ready", "call"), CALLS, ids=NAMES)
@pytest.mark.parametrize("cancels", [1, 2, 4])
async def test_the_holder_is_cancelled_at_every_await(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch, ready: Call, call: Call, cancels: int
) -> None:
    real = Connection._transaction
    current: list[Suspensions] = []

    async def transaction(self: Connection, *arguments: Any) -> Any:
        if current and self is writer:
            return await current.pop().of(real(self, *arguments))
        return await real(self, *arguments)

    monkeypatch.setattr(Connection, "_transaction", transaction)
    async with sqlite.open() as store:
        writer = store._writer
        _, whole = await after(store, 10_000, ready, call)
        undone = 0
        for nth in itertools.count(1):
            e = 10_000 + nth
            await ready(store, e)
            suspensions = Suspensions(nth, cancels)
            current.append(suspensions)
            await cancelled(call(store, e))
            await sound(store)
            before, now = await before_and_now(store, e, ready)
            if not suspensions.reached:
                break
            assert same(now, whole, e, 10_000) or now == before
            undone += now == before
        assert nth > 3
        assert undone > 1
