"""D8, the runtime store: operations, their sequence, their origin, what another process finds.

Source: spec 6.2, 6.4.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from sidecar.core.event import ID_MAX
from sidecar.core.membership import (
    Op,
    OpKind,
    OpOrigin,
    TrustedLocalOrigin,
    Unauthorised,
    Worker,
    fold,
    live,
    registered,
)
from sidecar.errors import Invalid, OpRefused, StoreError
from sidecar.store import ChainStore
from sidecar.store.runtime import (
    ALL_LATEST,
    DATASET,
    LATEST,
    OPS_MAX,
    RuntimeRecord,
    RuntimeStore,
    RuntimeWork,
    latest_of,
)
from tests.contract.backends import SqliteBackend
from tests.contract.postgres import PostgresBackend, three_lenders

REFUSED_IDS = (
    "", "  ", "..", ".", "...", "../../etc/passwd", "a/b", " node-a", "node a", "node-a\n", "nöde", "n" * 257,
)  # fmt: skip
ACCEPTED_IDS = ("node-a", "noetl-server-rust-0", "shard.3", "a:b", "A_1-2.3", "n" * 256)


class Refusing:
    """An origin that stands behind nothing, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Op] = []

    def authorize(self, op: Op) -> Unauthorised:
        self.asked.append(op)
        return Unauthorised(f"nobody answers for {op.worker_id}")


LONG = ("postgres", "spread")


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.torture) for name in LONG)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteBackend | PostgresBackend]:
    if request.param == "sqlite":
        yield SqliteBackend(tmp_path)
        return
    made = PostgresBackend() if request.param == "postgres" else three_lenders()
    yield made
    made.remove()


@pytest.fixture
async def store(place: SqliteBackend | PostgresBackend) -> AsyncIterator[ChainStore]:
    async with place.open() as opened:
        yield opened


@pytest.fixture
def d8(store: ChainStore) -> RuntimeStore:
    return RuntimeStore(store)


async def log(d8: RuntimeStore) -> list[tuple[int, str, str, int, str]]:
    records = await d8.ops_after(0, 10_000)
    return [(r.op_seq, r.op.worker_id, r.op.kind.value, r.op.heartbeat, r.op.contract) for r in records]


async def test_a_worker_comes_beats_and_goes(d8: RuntimeStore) -> None:
    assert await d8.register("a", "c") == 1
    assert [await d8.heartbeat("a"), await d8.heartbeat("a")] == [2, 3]
    assert await d8.get("a") == Worker("a", "c", 3)
    assert await d8.deregister("a")
    assert await d8.get("a") is None
    assert not await d8.deregister("a")
    assert await log(d8) == [
        (1, "a", "register", 1, "c"),
        (2, "a", "heartbeat", 2, "c"),
        (3, "a", "heartbeat", 3, "c"),
        (4, "a", "deregister", 3, ""),
    ]


async def test_registering_again_begins_anew(d8: RuntimeStore) -> None:
    await d8.register("a", "old")
    await d8.heartbeat("a")
    assert await d8.register("a", "new") == 1
    assert await d8.get("a") == Worker("a", "new", 1)


async def test_i48_an_operation_that_is_none_is_refused_and_the_log_is_unchanged(d8: RuntimeStore) -> None:
    await d8.register("a", "c")
    before = await log(d8)
    for kind in (OpKind.REGISTER, OpKind.HEARTBEAT):
        with pytest.raises(Invalid, match="heartbeat"):
            await d8.append(Op("a", kind, 0, "c"))
    for worker_id in REFUSED_IDS:
        with pytest.raises(Invalid, match="worker id"):
            await d8.register(worker_id, "c")
    for contract in ("x" * 4097, "ö" * 2049, "\ud800"):
        with pytest.raises(Invalid, match="contract"):
            await d8.register("b", contract)
    assert await log(d8) == before


async def test_what_is_allowed_is_accepted_to_the_last_byte(d8: RuntimeStore) -> None:
    for worker_id in ACCEPTED_IDS:
        assert await d8.register(worker_id, "ö" * 2048) == 1
    assert await d8.append(Op("gone", OpKind.DEREGISTER, 0, "")) == len(ACCEPTED_IDS) + 1
    assert [w.worker_id for w in await d8.list_live()] == sorted(ACCEPTED_IDS)


async def test_i49_a_heartbeat_for_a_worker_that_left_resurrects_nothing(d8: RuntimeStore) -> None:
    await d8.register("a", "c")
    await d8.deregister("a")
    before = await log(d8)
    assert await d8.heartbeat("a") is None
    assert await d8.heartbeat("never") is None
    assert await d8.beat() == 0
    assert await log(d8) == before
    assert await d8.list_live() == []


async def test_i52_an_origin_that_refuses_is_seen_through_the_append(d8: RuntimeStore) -> None:
    await d8.register("a", "c")
    before = await log(d8)
    origin = Refusing()
    refused = d8.with_origin(origin)
    for call in (
        refused.register("b", "c"),
        refused.heartbeat("a"),
        refused.deregister("a"),
        refused.append(registered("b", "c")),
    ):
        with pytest.raises(OpRefused, match=r"nobody answers for [ab]"):
            await call
    assert await refused.beat() == 0
    assert await log(d8) == before
    assert [op.kind.value for op in origin.asked] == [
        "register", "heartbeat", "deregister", "register", "heartbeat",
    ]  # fmt: skip
    # The control: the default origin lets the same operation pass, as does one that accepts.
    default: OpOrigin = TrustedLocalOrigin()
    assert await d8.append(registered("b", "c")) == len(before) + 1
    assert await d8.with_origin(default).append(registered("b", "c")) == len(before) + 2


async def test_an_operation_that_is_none_is_not_shown_to_the_origin(d8: RuntimeStore) -> None:
    origin = Refusing()
    with pytest.raises(Invalid):
        await d8.with_origin(origin).register("..", "c")
    assert origin.asked == []


async def test_one_refusal_takes_nothing_else_of_its_transaction_along(d8: RuntimeStore) -> None:
    async def work(unit: RuntimeWork) -> None:
        await unit.register("a", "c")
        with pytest.raises(Invalid):
            await unit.register("..", "c")
        await unit.heartbeat("a")

    await d8.transact(work)
    assert [each[1:4] for each in await log(d8)] == [("a", "register", 1), ("a", "heartbeat", 2)]


async def test_a_failure_takes_back_the_whole_transaction(d8: RuntimeStore) -> None:
    async def work(unit: RuntimeWork) -> None:
        await unit.register("a", "c")
        raise StoreError("the disk")

    with pytest.raises(StoreError):
        await d8.transact(work)
    assert await log(d8) == []
    assert await d8.register("a", "c") == 1


async def test_a_write_that_ends_in_its_middle_leaves_no_hole_in_the_sequence(sqlite: SqliteBackend) -> None:
    """Many operations are several statements of one transaction: all of them count, or none."""
    async with sqlite.open() as store:
        d8 = RuntimeStore(store)
        await d8.register("a", "c")
        sqlite.run(
            "CREATE TRIGGER cut BEFORE INSERT ON d8_runtime WHEN NEW.worker_id = 'last'"
            " BEGIN SELECT raise(ABORT, 'no'); END"
        )

        async def crowd(unit: RuntimeWork) -> None:
            for number in range(OPS_MAX):
                await unit.register(f"w{number}", "c")
            await unit.register("last", "c")

        with pytest.raises(StoreError):
            await d8.transact(crowd)
        assert len(await log(d8)) == 1
    async with sqlite.open() as store:
        d8 = RuntimeStore(store)
        assert await d8.append(registered("b", "c")) == 2
        assert live(fold(record.op for record in await d8.ops_after(0, 9)).values()) == await d8.list_live()


async def test_one_that_cannot_be_beaten_holds_up_nobody_else(d8: RuntimeStore) -> None:
    """Its count has come to its end; the others have theirs."""
    await d8.append(Op("a", OpKind.HEARTBEAT, ID_MAX, "c"))
    await d8.register("b", "c")
    assert await d8.beat() == 1
    assert await d8.list_live() == [Worker("a", "c", ID_MAX), Worker("b", "c", 2)]


async def test_the_live_ones_by_id_and_by_heartbeats(d8: RuntimeStore) -> None:
    for worker_id in ("c", "a", "b", "gone"):
        await d8.register(worker_id, worker_id)
    await d8.deregister("gone")
    await d8.heartbeat("b")
    assert await d8.list_live() == [Worker("a", "a", 1), Worker("b", "b", 2), Worker("c", "c", 1)]
    assert await d8.list_live_since(2) == [Worker("b", "b", 2)]
    assert await d8.list_live_since(3) == []


async def test_a_beat_is_one_heartbeat_of_everybody(d8: RuntimeStore) -> None:
    count = OPS_MAX + 3

    async def crowd(unit: RuntimeWork) -> None:
        for number in range(count):
            await unit.register(f"w{number:04}", "c")
        await unit.deregister("w0000")

    await d8.transact(crowd)
    assert [await d8.beat(), await d8.beat()] == [count - 1, count - 1]
    assert {w.heartbeat for w in await d8.list_live()} == {3}


async def test_the_sequence_goes_on_after_a_reopen_and_after_rows_went(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await RuntimeStore(store).register("a", "c")
        await RuntimeStore(store).register("b", "c")
    async with sqlite.open() as store:
        assert await RuntimeStore(store).get("a") == Worker("a", "c", 1)
        assert await RuntimeStore(store).append(registered("c", "c")) == 3
    sqlite.run("DELETE FROM d8_runtime")
    async with sqlite.open() as store:
        assert await RuntimeStore(store).append(registered("a", "c")) == 4
        sqlite.run("DELETE FROM sequence WHERE dataset = ?", DATASET)
        assert await RuntimeStore(store).append(registered("a", "c")) == 5
    assert sqlite.run("SELECT high FROM sequence WHERE dataset = ?", DATASET) == [(5,)]


@pytest.mark.parametrize("seed", range(3))
async def test_the_log_replayed_from_empty_comes_to_who_is_live(d8: RuntimeStore, seed: int) -> None:
    """Whatever is called in whatever order: a plain dictionary, the store and a replay agree."""
    chance = Random(seed)
    model: dict[str, Worker] = {}
    wrote = 0
    for step in range(60):
        worker_id = chance.choice("abcd")
        known = model.get(worker_id)
        match chance.choice(("register", "heartbeat", "heartbeat", "deregister", "bad")):
            case "register":
                model[worker_id] = Worker(worker_id, f"c{step}", await d8.register(worker_id, f"c{step}"))
                wrote += 1
            case "heartbeat":
                beats = await d8.heartbeat(worker_id)
                assert beats == (None if known is None else known.heartbeat + 1)
                if known is not None:
                    model[worker_id] = replace(known, heartbeat=known.heartbeat + 1)
                    wrote += 1
            case "deregister":
                assert await d8.deregister(worker_id) == (known is not None)
                wrote += model.pop(worker_id, None) is not None
            case _:
                with pytest.raises(Invalid):
                    await d8.register("..", "c")
    records = await d8.ops_after(0, 1000)
    assert [record.op_seq for record in records] == list(range(1, wrote + 1))
    assert live(fold(record.op for record in records).values()) == await d8.list_live()
    assert await d8.list_live() == [model[worker_id] for worker_id in sorted(model)]


async def test_many_are_looked_up_at_once_and_what_was_written_meanwhile_counts(d8: RuntimeStore) -> None:
    for worker_id in ("a", "b", "gone"):
        await d8.register(worker_id, worker_id)
    await d8.heartbeat("b")
    await d8.deregister("gone")

    async def work(unit: RuntimeWork) -> list[int | None]:
        await unit.register("b", "new")
        await unit.look_up(["a", "b", "gone", "never", "a"])
        return [await unit.heartbeat(each) for each in ("a", "b", "gone", "never")]

    assert await d8.transact(work) == [2, 2, None, None]


async def test_another_process_finds_who_is_live(place: SqliteBackend | PostgresBackend) -> None:
    expected = {"a": Worker("a", "c", 2)}
    async with place.open() as store:
        d8 = RuntimeStore(store)
        await d8.register("a", "c")
        await d8.heartbeat("a")
        await d8.register("b", "c")
        await d8.deregister("b")
        assert await RuntimeStore.cold_load(place.url) == expected
        replayed = live(fold(record.op for record in await d8.ops_after(0, 100)).values())
        assert replayed == await d8.list_live()
    assert await RuntimeStore.cold_load(place.url) == expected


async def test_there_is_nothing_to_load_where_there_is_no_store(sqlite: SqliteBackend) -> None:
    with pytest.raises(StoreError, match="no store"):
        await RuntimeStore.cold_load(sqlite.url)


async def test_the_log_is_searched_by_worker_and_never_read_whole(sqlite: SqliteBackend) -> None:
    """A worker has thousands of heartbeats; who it is now is one search."""
    async with sqlite.open() as store:
        await RuntimeStore(store).register("a", "c")
    for sql, parameters in ((LATEST, ("a",)), (ALL_LATEST, ()), (latest_of(2), ("a", "b"))):
        plan = [row[3] for row in sqlite.run(f"EXPLAIN QUERY PLAN {sql}", *parameters)]
        scans = [step for step in plan if step.startswith("SCAN") and "worker" not in step]
        assert [step for step in scans if "wanted" not in step and "CONSTANT" not in step] == [], plan


@pytest.mark.parametrize("worker_id", ["a", "A_1-2.3"])
def test_a_record_as_json_comes_back_equal(worker_id: str) -> None:
    record = RuntimeRecord(7, Op(worker_id, OpKind.HEARTBEAT, 2, 'shard=1;addr="ö"'))
    assert RuntimeRecord.from_json(record.to_json()) == record


def test_a_record_has_exactly_its_fields() -> None:
    good = json.loads(RuntimeRecord(7, registered("a", "c")).to_json())
    assert good == {"op_seq": 7, "worker_id": "a", "event": "register", "heartbeat": 1, "contract": "c"}
    for bad in (
        {**good, "last_seen": 1},
        {key: value for key, value in good.items() if key != "contract"},
        {**good, "event": "Register"},
        {**good, "event": ["register"]},
        {**good, "heartbeat": 0},
        {**good, "heartbeat": True},
        {**good, "heartbeat": "1"},
        {**good, "op_seq": 0},
        {**good, "worker_id": ".."},
        {**good, "worker_id": None},
        [good],
    ):
        with pytest.raises(Invalid):
            RuntimeRecord.from_json(json.dumps(bad))
    with pytest.raises(Invalid):
        RuntimeRecord.from_json("{")
