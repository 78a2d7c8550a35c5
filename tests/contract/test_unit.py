"""One unit of work: what it answers, what it leaves, over every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from sidecar.core.authority import Coverage, Partition, StoredEvent, Watermark
from sidecar.core.due import Due
from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.horizon import Cursor
from sidecar.core.populate import LogRead
from sidecar.core.ports import EpochSpan, ExecutionLog, Store
from sidecar.errors import Invalid, InvariantError, PartitionUnreadable
from tests.contract.backends import Backend, Contract, ContractUnit
from tests.contract.events import E, chain, long_chain
from tests.support.changing import replace

FULL = Partition(
    execution_id=E,
    parent_execution_id=4,
    head_seq=2,
    head_event_id=10,
    watermark=Watermark(1, 2),
    coverage=Coverage(90, 2),
    held=3,
    rows_seen=8,
    head_anchor=2**40,
    head_epoch="s/00000001/1/2",
    label="fork",
    labelled_at=11,
    revoked_reason="fork",
    revoked_at=12,
    terminal=True,
    verdict="divergent",
    verdict_at=13,
    counted_kinds=frozenset({"payload", "edge"}),
    first_seen_at=14,
    last_change_at=15,
    verdict_rows=16,
    head_commit_lsn=2**64 - 1,
)
DUE = Due(E, 1, 2, 3, 4, 5, 6, 7, "dangling:9", 8, 9)
CURSOR = Cursor("late", 2**33, "s/1/2/3", "noetl.event|0/1", "tree", 1_700_000_000_000_000)


def as_port(store: Contract) -> Store:
    """The type checker holds the implementation against core's port here."""
    return store


async def test_a_commit_position_is_kept_once_and_only_with_a_stored_event(store: Contract) -> None:
    first, second = chain(90, 10)
    high = 2**64 - 1

    async def put(unit: ContractUnit) -> dict[int, int]:
        unit.append([StoredEvent(1, first), StoredEvent(2, second)])
        unit.put_commits({(E, first.event_id): high, (E, first.event_id + second.event_id + 1): 7})
        unit.put_commits({(E, first.event_id): 1})
        return await unit.commits(E)

    async def again(unit: ContractUnit) -> dict[int, int]:
        unit.put_commits({(E, first.event_id): 1, (E, second.event_id): 16})
        return await unit.commits(E)

    assert await store.transact(put) == {first.event_id: high}
    assert await store.transact(again) == {first.event_id: high, second.event_id: 16}
    assert await store.transact(lambda unit: unit.commits(E + 1)) == {}


async def test_records_come_back_as_they_were_put(store: Contract) -> None:
    async def put(unit: ContractUnit) -> None:
        unit.put_partition(FULL)
        unit.put_due(DUE)
        unit.put_cursor(CURSOR)

    await store.transact(put)
    assert await store.partition(E) == FULL
    assert await store.due((E,)) == {E: DUE}
    assert await store.cursors() == {"late": CURSOR}


async def test_a_cursor_without_horizon_stays_without(store: Contract) -> None:
    async def put(unit: ContractUnit) -> None:
        unit.put_cursor(replace(CURSOR, horizon=None))

    await store.transact(put)
    assert (await store.cursors())["late"].horizon is None


async def test_buffered_records_are_seen_in_the_same_unit(store: Contract) -> None:
    async def work(unit: ContractUnit) -> None:
        unit.put_partition(Partition(1))
        unit.put_partition(Partition(2))
        unit.put_partition(Partition(1, held=5))
        unit.put_due(Due(1, 5))
        unit.put_due(Due(2, 6))
        unit.drop_due(2)
        assert await unit.partitions((1, 2, 3)) == {1: Partition(1, held=5), 2: Partition(2)}
        assert await unit.due((1, 2, 3)) == {1: Due(1, 5)}

    await store.transact(work)
    assert await store.partitions((1, 2, 3)) == {1: Partition(1, held=5), 2: Partition(2)}
    assert await store.due((1, 2)) == {1: Due(1, 5)}


async def test_dropped_records_are_gone(store: Contract) -> None:
    async def put(unit: ContractUnit) -> None:
        unit.put_due(DUE)
        unit.put_cursor(CURSOR)

    async def drop(unit: ContractUnit) -> None:
        assert await unit.due((E,)) == {E: DUE}
        unit.drop_due(E)
        unit.drop_cursor("late")
        assert await unit.due((E,)) == {}

    await store.transact(put)
    await store.transact(drop)
    assert await store.due((E,)) == {}
    assert await store.cursors() == {}


ROWS = tuple(StoredEvent(seq, event, "log", 6 + seq) for seq, event in enumerate(chain(90, 10), 1))


async def by_chain(unit: ContractUnit) -> object:
    return await unit.chain(E) == ROWS


async def by_find(unit: ContractUnit) -> object:
    return await unit.find(((E, 10), (E, 11), (E + 1, 90))) == {(E, 10): ROWS[1]}


async def by_row_counts(unit: ContractUnit) -> object:
    return await unit.row_counts((E, E + 1)) == {E: (2, 2), E + 1: (0, 0)}


async def by_populate(unit: ContractUnit) -> object:
    log = ExecutionLog(E, chain(90, 10), LogRead(9))
    return (await unit.populate((log,)))[E].outcome.label == "in_sync"


@pytest.mark.parametrize("sees", [by_chain, by_find, by_row_counts, by_populate])
async def test_appended_rows_are_seen_before_they_are_committed(
    store: Contract, sees: Callable[[ContractUnit], Awaitable[object]]
) -> None:
    async def work(unit: ContractUnit) -> None:
        unit.append(ROWS)
        assert await sees(unit)
        assert await store.stored_chain(E) == ()  # another reader sees none of it yet

    await store.transact(work)
    assert await store.stored_chain(E) == ROWS


async def test_one_populate_of_many_executions(store: Contract) -> None:
    events = {e: long_chain(3, execution_id=e) for e in (1, 2, 3)}
    await store.populate_from_log(2, events[2][:2])
    logs = [ExecutionLog(e, rows, LogRead(store.clock.now())) for e, rows in events.items()]
    answers = await store.transact(lambda unit: unit.populate(logs))
    assert [answers[e].outcome.label for e in (1, 2, 3)] == ["extended"] * 3
    assert {e: (await store.chain_if_authoritative(e)).events for e in events} == events


async def test_an_execution_twice_in_one_populate_is_our_bug(store: Contract) -> None:
    log = ExecutionLog(E, chain(1), LogRead(store.clock.now()))
    with pytest.raises(InvariantError):
        await store.transact(lambda unit: unit.populate((log, log)))


async def test_a_log_with_a_foreign_event_is_our_bug(store: Contract) -> None:
    log = ExecutionLog(E, chain(1, execution_id=E + 1), LogRead(store.clock.now()))
    with pytest.raises(InvariantError):
        await store.transact(lambda unit: unit.populate((log,)))


async def test_cursor_and_rows_commit_together_or_not_at_all(store: Contract) -> None:
    async def work(unit: ContractUnit, *, fail: bool) -> None:
        unit.append((StoredEvent(1, chain(1)[0], "log", 1),))
        unit.put_cursor(CURSOR)
        unit.put_due(DUE)
        unit.put_partition(FULL)
        await unit.chain(E)  # the rows are in the database, uncommitted
        if fail:
            raise LookupError

    with pytest.raises(LookupError):
        await store.transact(lambda unit: work(unit, fail=True))
    assert (await store.cursors(), await store.chain(E), await store.due((E,))) == ({}, (), {})
    assert await store.partition(E) is None
    await store.transact(lambda unit: work(unit, fail=False))
    assert (await store.cursors(), await store.chain(E)) == ({"late": CURSOR}, chain(1))


async def test_the_engine_sequence_is_global_and_never_reissued(backend: Backend) -> None:
    async def gseq_high(store: Contract) -> int:
        async def work(unit: ContractUnit) -> int:
            return unit.gseq

        return await store.transact(work)

    async with backend.open() as store:
        await store.populate_from_log(1, long_chain(3, execution_id=1))
        await store.append(chain(5, execution_id=2)[0])
        assert await gseq_high(store) == 4
        with pytest.raises(Invalid):
            await store.append(replace(chain(5, execution_id=2)[0], prev_event_id=5))
    backend.drop_event(1, 3)
    async with backend.open() as store:
        reopened = await gseq_high(store)
        # Leaves on several servers: numbers may be given there that were never counted here.
        assert reopened > 4 if getattr(backend, "lenders", None) else reopened == 4
        await store.append(chain(5, 6, execution_id=2)[1])
        assert await gseq_high(store) == reopened + 1


async def test_on_commit_runs_after_the_commit_and_before_the_next_unit(store: Contract) -> None:
    order: list[str] = []

    async def first(unit: ContractUnit) -> None:
        unit.on_commit(lambda: order.append("committed"))
        order.append("first")

    async def second(_: ContractUnit) -> None:
        order.append("second")

    await asyncio.gather(store.transact(first), store.transact(second))
    assert order == ["first", "committed", "second"]


async def test_on_commit_does_not_run_after_a_rollback(store: Contract) -> None:
    ran: list[int] = []

    async def work(unit: ContractUnit) -> None:
        unit.on_commit(lambda: ran.append(1))
        unit.append((StoredEvent(1, chain(1)[0]), StoredEvent(1, chain(1)[0])))

    with pytest.raises(Invalid):
        await store.transact(work)
    assert ran == []


async def test_epochs_keep_first_and_last_sight(store: Contract) -> None:
    async def see(unit: ContractUnit, epoch: str, now: int) -> None:
        await unit.see_epoch(epoch, now)

    for epoch, now in (("b/1/2/3", 5), ("a", 7), ("b/1/2/3", 9), ("b/1/2/3", 8), ("b/1/2/3", 4)):
        await store.transact(partial(see, epoch=epoch, now=now))
    spans = (EpochSpan("b/1/2/3", 4, 9), EpochSpan("a", 7, 7))
    assert await store.epochs() == spans
    assert await store.transact(lambda unit: unit.epochs()) == spans


async def test_due_now_is_what_is_due_oldest_first(store: Contract) -> None:
    entries = (
        Due(1, 100),
        Due(2, 50),
        Due(3, 900),
        Due(4, 800, reread=1),
        Due(5, 700, changed=1),
        Due(6, 600, labelled=1),
        Due(7, 500, terminal_seen=1),
        Due(8, 40, reread=1),
        Due(9, 400, first_seen_at=1, last_row_at=1, pending_since=1, tries=1),
    )

    async def put(unit: ContractUnit) -> None:
        for due in entries:
            unit.put_due(due)

    await store.transact(put)
    assert await store.due_now(100, 10) == [8, 2, 1], "a flag alone does not overrule a pause"
    assert await store.due_now(100, 2) == [8, 2]
    assert await store.due_now(39, 10) == []


async def test_missing_keeps_the_order_of_the_question(store: Contract) -> None:
    await store.populate_from_log(E, chain(90, 10))
    keys = [(E, 5), (E, 10), (E + 1, 90), (E, 90), (E, 5)]
    assert await store.missing(keys) == [(E, 5), (E + 1, 90), (E, 5)]
    assert await store.missing([]) == []


async def test_sums_are_exact_at_the_ends_of_64_bits(store: Contract) -> None:
    ids = {ID_MIN: (ID_MIN, ID_MIN + 1), -5: (ID_MIN, ID_MAX), 7: (ID_MAX, ID_MAX - 1, -1), ID_MAX: (ID_MAX,)}
    for execution_id, events in ids.items():
        await store.populate_from_log(execution_id, chain(*events, execution_id=execution_id))
    assert await store.sums(ID_MIN, ID_MAX) == {e: (len(of), sum(of)) for e, of in ids.items()}
    assert await store.sums(-5, 7) == {-5: (2, -1), 7: (3, 2 * ID_MAX - 2)}
    assert await store.missing([(e, i) for e, of in ids.items() for i in of]) == []
    assert [e async for e in store.executions()] == sorted(ids)
    assert {e: (await store.chain(e)) for e in ids} == {
        e: chain(*of, execution_id=e) for e, of in ids.items()
    }


async def test_executions_walks_pages_and_sees_rows_without_a_record(
    backend: Backend, store: Contract
) -> None:
    for execution_id in (1, 2, 3, 5):
        await store.populate_from_log(execution_id, ())
    backend.plant_event(1, chain(9, execution_id=4)[0])
    assert [e async for e in store.executions(page=2)] == [1, 2, 3, 4, 5]
    assert [e async for e in store.executions(2, 4, page=1)] == [2, 3, 4]
    assert [e async for e in store.executions(ID_MAX, ID_MAX, page=1)] == []


async def test_a_unit_is_dead_after_its_transaction(store: Contract) -> None:
    kept: list[ContractUnit] = []

    async def keep(unit: ContractUnit) -> None:
        kept.append(unit)

    await store.transact(keep)
    with pytest.raises(InvariantError):
        kept[0].put_due(DUE)
    with pytest.raises(InvariantError):
        await kept[0].chain(E)


async def test_the_clock_starts_above_every_time_in_the_store(backend: Backend) -> None:
    future = 4_000_000_000_000_000

    async with backend.open() as store:
        assert store.clock.now() < future
        await store.populate_from_log(1, chain(1, execution_id=1), read=LogRead(future))
    async with backend.open() as store:
        assert store.clock.now() > future

        async def see(unit: ContractUnit) -> None:
            unit.put_partition(Partition(2, revoked_at=future + 10**9))

        await store.transact(see)
    async with backend.open() as store:
        assert store.clock.now() > future + 10**9

        async def append(unit: ContractUnit) -> None:
            unit.append((StoredEvent(1, chain(1)[0], "log", future + 10**10),))

        await store.transact(append)
    async with backend.open() as store:
        assert store.clock.now() > future + 10**10


@pytest.mark.parametrize("what", ["watermark", "coverage"])
async def test_a_torn_record_is_answered_as_one_and_the_others_of_a_batch_are_written(
    backend: Backend, store: Contract, what: str
) -> None:
    for e in (1, 2, 3):
        await store.populate_from_log(e, chain(10, execution_id=e))
    getattr(backend, f"plant_{what}")(2, -1 if what == "watermark" else 10, -1)

    async def populate(unit: ContractUnit) -> list[str]:
        now = store.clock.now()
        logs = [ExecutionLog(e, chain(10, 11, execution_id=e), LogRead(now)) for e in (1, 2, 3)]
        done = await unit.populate(logs)
        torn = (await unit.partitions((2,)))[2]
        assert torn.torn is not None
        assert torn == done[2].partition
        assert (torn.torn.what, torn.watermark, torn.coverage) == (what, None, None)
        assert not done[2].written
        with pytest.raises(PartitionUnreadable):
            await unit.guarded_read(2, ignore_held=True)
        unit.put_partition(replace(torn, verdict="error", held=4))
        return [done[e].outcome.label for e in (1, 2, 3)]

    failed = "guarded_read_failed" if what == "watermark" else "populate_failed"
    assert await store.transact(populate) == ["extended", failed, "extended"]
    after = await store.partition(2)
    assert after is not None
    assert after.torn is not None, "saving it did not heal it"
    assert (after.verdict, after.held, len(await store.chain(2))) == ("error", 4, 1)
    for e in (1, 3):
        assert len((await store.chain_if_authoritative(e)).events or ()) == 2
