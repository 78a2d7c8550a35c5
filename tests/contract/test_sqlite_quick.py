"""A small chain is read in the caller's thread; whatever is long or in the way, is not.

What is answered is the business of the contract; here is told by which connection.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest

from sidecar.core.authority import Reason
from sidecar.errors import Invalid, StoreCorrupt, StoreError
from sidecar.store import ChainStore, quick
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain, long_chain
from tests.support import sqlite as behind
from tests.support.changing import replace

Read = Callable[[ChainStore], Awaitable[object]]
READS: dict[str, Read] = {
    "raw": lambda store: store.chain(E),
    "guarded": lambda store: store.chain_if_authoritative(E),
}


async def asked(store: ChainStore, read: Read) -> tuple[int, int]:
    """Statements that a read ran in the caller's thread and in the other one."""
    here: list[str] = []
    there: list[str] = []
    behind.quick(store)._raw.set_trace_callback(here.append)
    await behind.raw(store._points).set_trace_callback(there.append)
    await read(store)
    behind.quick(store)._raw.set_trace_callback(None)
    await behind.raw(store._points).set_trace_callback(None)  # type: ignore[arg-type] # None takes it away again
    return len(here), len(there)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_hundred_events_are_read_without_a_change_of_thread(
    sqlite: SqliteBackend, read: Read
) -> None:
    async with sqlite.open() as store:
        await store.populate_from_log(E, long_chain(100))
        assert await asked(store, read) == (1, 0)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_long_chain_is_read_in_the_other_thread(sqlite: SqliteBackend, read: Read) -> None:
    events = long_chain(quick.ROWS + 1)
    async with sqlite.open() as store:
        await store.populate_from_log(E, events)
        assert await asked(store, read) == (1, 1)
        assert await store.chain(E) == (await store.chain_if_authoritative(E)).events == events


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_large_bodies_are_read_in_the_other_thread(sqlite: SqliteBackend, read: Read) -> None:
    body = "x" * (quick.LENGTH // 2 + 1)
    events = tuple(replace(event, body=body) for event in chain(1, 2))
    async with sqlite.open() as store:
        await store.populate_from_log(E, events)
        assert await asked(store, read) == (1, 1)
        assert await store.chain(E) == (await store.chain_if_authoritative(E)).events == events


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_many_reads_in_a_row_leave_others_their_turn(sqlite: SqliteBackend, read: Read) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with sqlite.open() as store:
        await store.populate_from_log(E, chain(1, 2))
        task = asyncio.create_task(other())
        for _ in range(20):
            await read(store)
        task.cancel()
    assert turns >= 20


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_read_sees_what_was_committed_right_before(sqlite: SqliteBackend, read: Read) -> None:
    """No snapshot is kept from one read to the next."""
    events = long_chain(5)
    async with sqlite.open() as store:
        for length in range(1, 6):
            await store.populate_from_log(E, events[:length])
            await read(store)
            assert await store.chain(E) == (await store.chain_if_authoritative(E)).events == events[:length]
        (busy, _, _) = (await store._writer.rows("PRAGMA wal_checkpoint(TRUNCATE)"))[0]
    assert busy == 0


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_what_is_in_the_way_is_said_as_by_every_read(sqlite: SqliteBackend, read: Read) -> None:
    async with sqlite.open() as store:
        with pytest.raises(Invalid):
            await store.chain(2**63)
        await store.populate_from_log(E, chain(1, 2))
        with closing(sqlite3.connect(sqlite.path)) as other:
            other.execute("ALTER TABLE event RENAME TO away")
        with pytest.raises(StoreError, match="no such table"):
            await read(store)
    with pytest.raises(StoreError, match="closed"):
        await read(store)


async def test_a_malformed_claim_is_damage_for_a_small_chain_too(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await store.populate_from_log(E, chain(1, 2))
        for column, what in (("wm_first", "watermark"), ("cov_total", "coverage")):
            with closing(sqlite3.connect(sqlite.path)) as other, other:
                (before,) = other.execute(f"SELECT {column} FROM partition").fetchone()
                other.execute(f"UPDATE partition SET {column} = NULL")
            with pytest.raises(StoreCorrupt, match=f"{what} of execution {E} is malformed"):
                await store.chain_if_authoritative(E)
            with closing(sqlite3.connect(sqlite.path)) as other, other:
                other.execute(f"UPDATE partition SET {column} = ?", (before,))
        assert (await store.chain_if_authoritative(E)).reason is None


@pytest.mark.parametrize("flag", ["held", "reread", "changed"])
async def test_each_flag_alone_holds_the_answer_back(sqlite: SqliteBackend, flag: str) -> None:
    async with sqlite.open() as store:
        await store.populate_from_log(E, chain(1, 2))
        with closing(sqlite3.connect(sqlite.path)) as other, other:
            if flag == "held":
                other.execute("UPDATE partition SET held = 1")
            else:
                other.execute(f"INSERT INTO due (execution_id, due_at, {flag}) VALUES (?, 1, 1)", (E,))
        assert (await store.chain_if_authoritative(E)).reason is Reason.ROWS_HELD_BACK
