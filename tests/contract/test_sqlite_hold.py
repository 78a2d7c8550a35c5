"""One hold at a time: cancellation and failure leave no trace and a usable connection."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from sidecar.core.authority import Authoritative, Partition, StoredEvent
from sidecar.core.due import Due
from sidecar.core.event import Event
from sidecar.core.horizon import Cursor
from sidecar.errors import (
    Invalid,
    InvariantError,
    NotHead,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
)
from sidecar.store import ChainStore, events
from sidecar.store.failure import sqlite_errors, translated
from sidecar.store.unit import StoreUnit
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain, long_chain
from tests.support.changing import replace
from tests.support.sqlite import raw


class Turns:
    """Counts who is inside a hold."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0

    async def work(self, unit: StoreUnit, execution_id: int) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            partitions = await unit.partitions((execution_id,))
            assert partitions == {}
            for event_row in placed(execution_id):
                unit.append((event_row,))
                await unit.chain(execution_id)
            unit.put_partition(Partition(execution_id, head_seq=3))
            unit.put_cursor(Cursor(str(execution_id), 1, "e", "s", "t", 1))
        finally:
            self.inside -= 1


def placed(execution_id: int) -> tuple[Any, ...]:
    rows = long_chain(3, execution_id=execution_id)
    return tuple(StoredEvent(seq, event, "log", 1) for seq, event in enumerate(rows, 1))


async def whole_or_nothing(store: ChainStore, execution_id: int) -> bool:
    stored = (
        len(await store.chain(execution_id)),
        await store.partition(execution_id) is not None,
        str(execution_id) in await store.cursors(),
    )
    assert stored in {(0, False, False), (3, True, True)}
    return stored[1]


class NthCall:
    """Does `action` right before the n-th call of the writer's driver, counted from `arm`."""

    def __init__(self, store: ChainStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.action: Callable[[], Awaitable[None]] | None = None
        self.raw = raw(store._writer)
        for name in ("execute_fetchall", "executemany"):
            monkeypatch.setattr(self.raw, name, self._counted(getattr(self.raw, name)))

    def arm(self, nth: int, action: Callable[[], Awaitable[None]]) -> None:
        self.left, self.action = nth, action

    @property
    def fired(self) -> bool:
        return self.left <= 0

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(*arguments: Any) -> Any:
            self.left -= 1
            if self.left == 0 and self.action is not None:
                await self.action()
            return await call(*arguments)

        return wrapped


@pytest.mark.parametrize("cancels", [1, 2, 3])
async def test_cancelled_at_every_call_of_the_driver_the_hold_still_ends(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch, cancels: int
) -> None:
    turns = Turns()
    async with sqlite.open() as store:
        calls = NthCall(store, monkeypatch)
        for nth in itertools.count(1):
            task = asyncio.create_task(store.transact(partial(turns.work, execution_id=nth)))
            rival = asyncio.create_task(store.transact(partial(turns.work, execution_id=1000 + nth)))

            async def cancel(task: asyncio.Task[None] = task) -> None:
                for _ in range(cancels):
                    task.cancel()
                    await asyncio.sleep(0)

            calls.arm(nth, cancel)
            await asyncio.wait((task, rival))
            if not task.cancelled():
                break
            assert await whole_or_nothing(store, nth)  # the hold had begun, so it ran to its end
            assert await whole_or_nothing(store, 1000 + nth)
            assert not raw(store._writer).in_transaction
    assert nth > 10
    assert turns.most == 1  # the lock was never given back under a running hold


async def test_cancelled_before_the_hold_begins_nothing_happens(sqlite: SqliteBackend) -> None:
    turns = Turns()
    async with sqlite.open() as store:
        first = asyncio.create_task(store.transact(partial(turns.work, execution_id=1)))
        waiting = asyncio.create_task(store.transact(partial(turns.work, execution_id=2)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((first, waiting))
        assert waiting.cancelled()
        assert await whole_or_nothing(store, 1)
        assert not await whole_or_nothing(store, 2)


async def test_a_hold_whose_task_is_cancelled_itself_rolls_back(sqlite: SqliteBackend) -> None:
    """As at the end of the loop, which cancels every task."""
    async with sqlite.open() as store:
        inside = asyncio.Event()

        async def work(unit: StoreUnit) -> None:
            unit.append(placed(1))
            await unit.chain(1)
            inside.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(store.transact(work))
        await inside.wait()
        assert store._writer._holder is not None
        store._writer._holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await store.chain(1) == ()
        assert await store.append(chain(1)[0]) == 1


async def test_open_that_is_cancelled_closes_what_it_opened(sqlite: SqliteBackend) -> None:
    """Cancelled after longer and longer pauses, until opening is quicker."""
    cancelled = 0
    for pause in itertools.count():
        task = asyncio.create_task(opened(sqlite))
        await asyncio.sleep(pause / 2000)
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            await task.result().close()
            break
        cancelled += 1
        async with sqlite.open():  # the lock is free
            pass
    assert cancelled > 3


async def opened(sqlite: SqliteBackend) -> ChainStore:
    return await sqlite.open()


async def test_close_waits_for_the_hold_and_refuses_the_next(sqlite: SqliteBackend) -> None:
    store = await sqlite.open()
    started, go_on = asyncio.Event(), asyncio.Event()

    async def work(unit: StoreUnit) -> None:
        started.set()
        await go_on.wait()
        unit.append(placed(1))

    running = asyncio.create_task(store.transact(work))
    await started.wait()
    closing = asyncio.create_task(store.close())
    await asyncio.wait((closing,), timeout=0.1)
    assert not closing.done()
    go_on.set()
    await running
    await closing
    await store.close()
    for call in (store.append(chain(1)[0]), store.chain(E)):
        with pytest.raises(StoreError, match="closed"):
            await call
    async with sqlite.open_readonly() as reader:
        assert len(await reader.chain(1)) == 3


async def test_a_hold_inside_a_hold_is_our_bug_not_a_deadlock(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:

        async def inner(unit: StoreUnit) -> None:
            await store.append(chain(1)[0])

        with pytest.raises(InvariantError):
            await store.transact(inner)
        assert await store.append(chain(1)[0]) == 1


async def test_a_failed_statement_spoils_the_hold_even_if_it_is_caught(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:

        async def careless(unit: StoreUnit) -> None:
            unit.append(placed(1))
            await unit.chain(1)
            unit.append(placed(1))
            with pytest.raises(Invalid):
                await unit.chain(1)
            with pytest.raises(Invalid):
                await unit.partitions((1,))
            unit.append(placed(2))

        with pytest.raises(Invalid):
            await store.transact(careless)
        assert await store.chain(1) == await store.chain(2) == ()
        assert await store.append(chain(1)[0]) == 1


async def test_every_statement_may_fail_and_leaves_no_trace(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns()
    async with sqlite.open() as store:
        calls = NthCall(store, monkeypatch)

        async def full() -> None:
            await calls.raw.rollback()  # as SQLite does by itself
            raise error(sqlite3.SQLITE_FULL)

        for nth in itertools.count(1):
            calls.arm(nth, full)
            work = asyncio.create_task(store.transact(partial(turns.work, execution_id=1)))
            await asyncio.wait((work,))
            if work.exception() is None:
                break
            assert isinstance(work.exception(), StoreFull)
            assert not await whole_or_nothing(store, 1)
        assert nth > 10
        assert await whole_or_nothing(store, 1)


@pytest.mark.parametrize("refused", ["not_head", "write_once"])
async def test_c13_an_engine_failure_takes_the_marker_back_too(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """A refused event leaves its marker, unless the engine fails at any call on the way."""
    event = replace(chain(9)[0], prev_event_id=None if refused == "not_head" else 2)
    event = event if refused == "not_head" else replace(event, event_id=1)
    async with sqlite.open() as store:
        await store.populate_from_log(E, chain(1, 2))
        before = await store.partition(E)
        calls = NthCall(store, monkeypatch)

        async def full() -> None:
            await calls.raw.rollback()  # as SQLite does by itself
            raise error(sqlite3.SQLITE_FULL)

        for nth in itertools.count(1):
            calls.arm(nth, full)
            with pytest.raises((StoreFull, NotHead, Invalid)) as caught:
                await store.populate(event)
            if not isinstance(caught.value, StoreFull):
                break
            assert await store.partition(E) == before
            assert not raw(store._writer).in_transaction
        assert nth > 6
        assert await store.authority(E) == Authoritative(1, 3)


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_refused_part_leaves_nothing_and_the_rest_stays(sqlite: SqliteBackend, flushed: bool) -> None:
    async def part(unit: StoreUnit) -> None:
        async with unit.savepoint():
            unit.append(placed(1))
            unit.put_partition(Partition(1, rows_seen=9))
            unit.put_partition(Partition(3))
            unit.put_due(Due(1, 1))
            unit.put_cursor(Cursor("live", 1, "e", "s", "t", 1))
            if flushed:
                assert len(await unit.chain(1)) == 3
            raise NotHead(1, 2)

    async def work(unit: StoreUnit) -> None:
        unit.put_partition(Partition(1, rows_seen=4))
        unit.append(placed(2))
        with pytest.raises(NotHead):
            await part(unit)
        assert unit.gseq == 3
        assert await unit.chain(1) == ()

    async with sqlite.open() as store:
        await store.transact(work)
        assert await store.partitions((1, 3)) == {1: Partition(1, rows_seen=4)}
        assert (await store.due((1,)), await store.cursors(), await store.chain(1)) == ({}, {}, ())
        assert len(await store.chain(2)) == 3


async def test_a_part_that_is_refused_by_a_constraint_can_be_followed_by_another(
    sqlite: SqliteBackend,
) -> None:
    async def part(unit: StoreUnit, *executions: int) -> None:
        async with unit.savepoint():
            for execution_id in executions:
                unit.append(placed(execution_id))

    async def work(unit: StoreUnit) -> None:
        unit.append(placed(1))
        with pytest.raises(Invalid, match="write-once"):
            await part(unit, 2, 1)
        await part(unit, 3)

    async with sqlite.open() as store:
        await store.transact(work)
        assert [len(await store.chain(e)) for e in (1, 2, 3)] == [3, 0, 3]


async def test_the_marker_ends_where_the_append_says_not_where_it_was_expected(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def far(unit: StoreUnit, event: Event, now: int) -> int:
        await events.apply(unit, (StoredEvent(5, event, "append", now),), now)
        return 5

    async with sqlite.open() as store:
        await store.populate_from_log(E, chain(1, 2))
        monkeypatch.setattr(events, "append", far)
        assert await store.populate(chain(1, 2, 3)[2]) == 5
        assert await store.authority(E) == Authoritative(1, 5)


def error(code: int | None) -> sqlite3.Error:
    made = sqlite3.OperationalError("text of the driver")
    if code is not None:
        made.sqlite_errorcode = code
    return made


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (13, StoreFull), (4874, StoreFull), (5, StoreBusy), (6, StoreBusy), (261, StoreBusy),
        (11, StoreCorrupt), (267, StoreCorrupt), (26, StoreCorrupt), (8, StoreError), (14, StoreError),
        (10, StoreError),
        (1555, Invalid), (2067, Invalid), (3091, Invalid), (1299, Invalid), (18, Invalid), (1, StoreError),
        (None, InvariantError),
    ],
)  # fmt: skip
def test_driver_errors_by_code(code: int | None, kind: type[Exception]) -> None:
    assert type(translated(error(code))) is kind


@pytest.mark.parametrize("value", [2**63, "\ud800"])
async def test_a_value_that_sqlite_cannot_hold_is_invalid_and_not_repeated(
    sqlite: SqliteBackend, value: object
) -> None:
    async with sqlite.open() as store:
        with pytest.raises(Invalid) as caught:
            await store._writer.rows("SELECT ?", (value,))
        assert repr(value) not in str(caught.value)


async def test_a_strict_violation_is_invalid(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        with pytest.raises(Invalid, match="type"):
            await store._writer.rows("INSERT INTO sequence VALUES ('x', 'abc')")


def test_other_exceptions_pass_through() -> None:
    with pytest.raises(KeyError), sqlite_errors():
        raise KeyError


async def test_somebody_elses_lock_is_busy_and_nothing_is_lost(sqlite: SqliteBackend) -> None:
    async with ChainStore.open(sqlite.url, busy_timeout_ms=20) as store:
        other = sqlite3.connect(sqlite.path, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreBusy):
                await store.append(chain(1)[0])
        finally:
            other.close()
        assert await store.append(chain(1)[0]) == 1


async def test_readers_see_whole_commits_beside_the_writer(sqlite: SqliteBackend) -> None:
    """Three readers poll while the chain grows; every answer is a whole prefix."""
    events = long_chain(60)
    seen: set[int] = set()
    done = asyncio.Event()

    async def read(reader: Any) -> None:
        while not done.is_set():
            answer = await reader.chain_if_authoritative(E)
            if answer.events is not None:
                assert answer.events == events[: len(answer.events)]
                seen.add(len(answer.events))

    async with sqlite.open() as store, sqlite.open_readonly() as beside:
        readers = [asyncio.create_task(read(reader)) for reader in (store, store, beside)]
        for length in range(1, 61):
            await store.populate_from_log(E, events[:length])
        done.set()
        await asyncio.gather(*readers)
    assert len(seen) > 10  # they did read while it grew


async def test_the_connections_are_set_up_as_designed(sqlite: SqliteBackend) -> None:
    async def value(store: ChainStore, pragma: str) -> Any:
        return (await store._writer.rows(f"PRAGMA {pragma}"))[0][0]

    async with sqlite.open() as store:
        assert [await value(store, name) for name in ("journal_mode", "page_size", "wal_autocheckpoint")] == [
            "wal", 4096, 8000,
        ]  # fmt: skip
        assert [await value(store, name) for name in ("synchronous", "mmap_size")] == [1, 0]
        assert await value(store, "journal_size_limit") > 0
    async with ChainStore.open(sqlite.url, synchronous="full") as store:
        assert await value(store, "synchronous") == 2
