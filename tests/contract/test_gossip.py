"""Seven notifications, their rules, and what the record holds afterwards.  Source: spec 7."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import accumulate

import pytest

from sidecar.core.membership import Identity, Op, Unauthorised, Worker, fold, is_live, live
from sidecar.errors import StoreError
from sidecar.fleet.notification import (
    KINDS,
    Active,
    Defunct,
    Idle,
    MemberDown,
    MemberUp,
    Notification,
    Rejoin,
    Rename,
)
from sidecar.fleet.origin import Claims, GossipOrigin, OwnAnd, RejectUnsigned
from sidecar.fleet.roster import Roster
from sidecar.fleet.sink import Deregistered, GossipSink, Ignored, Refused, Registered
from sidecar.store import ChainStore
from sidecar.store.runtime import RuntimeStore
from tests.contract.backends import SqliteBackend

A = Identity("10.0.0.5:7946", 0, "node-a", 1)
A2 = Identity("10.0.0.5:7946", 0, "node-a2", 2)
B = Identity("10.0.0.6:7946", 1, "node-b", 1)


@pytest.fixture
async def store(sqlite: SqliteBackend) -> AsyncIterator[ChainStore]:
    async with sqlite.open() as opened:
        yield opened


@pytest.fixture
def d8(store: ChainStore) -> RuntimeStore:
    return RuntimeStore(store)


@pytest.fixture
def sink(d8: RuntimeStore) -> GossipSink:
    return GossipSink(d8, "own")


async def ops(d8: RuntimeStore) -> list[Op]:
    return [record.op for record in await d8.ops_after(0, 10_000)]


def test_there_are_seven_and_no_other() -> None:
    assert [kind.label for kind in KINDS] == [
        "member_up", "member_down", "rename", "rejoin", "active", "idle", "defunct",
    ]  # fmt: skip


async def test_each_of_the_seven_by_its_rule(sink: GossipSink, d8: RuntimeStore) -> None:
    own = Identity("10.0.0.1:7946", 0, "own", 3)
    told = (
        MemberUp(A), MemberUp(B), MemberDown(B), MemberDown(B), Rename(A, A2), Rejoin(own),
        Active(), Idle(), Defunct(),
    )  # fmt: skip
    assert await sink.apply(told) == [
        Registered("node-a"), Registered("node-b"), Deregistered("node-b"), Ignored(), Registered("node-a2"),
        Registered("own"), Ignored(), Ignored(), Ignored(),
    ]  # fmt: skip
    assert await d8.list_live() == [Worker("node-a2", A2.contract, 1), Worker("own", own.contract, 1)]
    assert len(await ops(d8)) == 6


async def test_i50_a_rename_with_both_sides_down_lists_nobody(sink: GossipSink, d8: RuntimeStore) -> None:
    assert await sink.apply([Rename(A, A2)]) == [Ignored()]  # never heard of
    await sink.apply([MemberUp(A), MemberDown(A)])
    before = await ops(d8)
    assert await sink.apply([Rename(A, A2)]) == [Ignored()]
    assert await ops(d8) == before
    assert await d8.list_live() == []
    # The new one is alive after all: it comes up by itself.
    assert await sink.apply([MemberUp(A2)]) == [Registered("node-a2")]
    assert [worker.worker_id for worker in await d8.list_live()] == ["node-a2"]


async def test_i51_a_rename_never_leaves_both_names_out(sink: GossipSink, d8: RuntimeStore) -> None:
    await sink.apply([MemberUp(A), Rename(A, A2)])
    log = await ops(d8)
    (new,) = [n for n, op in enumerate(log) if op.worker_id == "node-a2"]
    (old,) = [n for n, op in enumerate(log) if op.worker_id == "node-a" and not is_live(op)]
    assert new < old
    prefixes = list(accumulate(([op] for op in log), lambda before, op: [*before, *op]))
    assert all(live(fold(prefix).values()) for prefix in prefixes)
    assert await d8.list_live() == [Worker("node-a2", A2.contract, 1)]


async def test_a_rename_that_ends_in_its_middle_has_not_begun(
    sink: GossipSink, d8: RuntimeStore, sqlite: SqliteBackend
) -> None:
    """Both operations or none: after a crash the old name is there, and it can be given again."""
    await sink.apply([MemberUp(A)])
    before = await ops(d8)
    sqlite.run(
        "CREATE TRIGGER cut BEFORE INSERT ON d8_runtime WHEN NEW.event = 'deregister'"
        " BEGIN SELECT raise(ABORT, 'no'); END"
    )
    with pytest.raises(StoreError):
        await sink.apply([Rename(A, A2)])
    assert await ops(d8) == before
    assert [worker.worker_id for worker in await d8.list_live()] == ["node-a"]
    sqlite.run("DROP TRIGGER cut")
    assert await sink.apply([Rename(A, A2)]) == [Registered("node-a2")]
    assert [record.op_seq for record in await d8.ops_after(0, 9)] == [1, 2, 3]


async def test_who_follows_one_that_the_record_never_took_is_there(
    sink: GossipSink, d8: RuntimeStore
) -> None:
    """Its predecessor's name was refused, so there is nothing to rename; it is alive and comes up."""
    bad = replace(A, instance="node a")
    view = Roster(Identity("10.0.0.1:7946", 0, "own", 1))
    view.joined("1", bad)
    first = await sink.apply(view.changes())
    assert [type(each) for each in first] == [Ignored, Refused]
    view.joined("2", A2)
    assert await sink.apply(view.changes()) == [Ignored(), Registered("node-a2")]
    assert [worker.worker_id for worker in await d8.list_live()] == ["node-a2"]


async def test_a_rename_to_its_own_name_registers_anew(sink: GossipSink, d8: RuntimeStore) -> None:
    moved = Identity("10.0.0.9:7946", 0, "node-a", 2)
    await sink.apply([MemberUp(A), Rename(A, moved)])
    assert await d8.list_live() == [Worker("node-a", moved.contract, 1)]


async def test_a_tick_beats_the_live_and_counts_them(sink: GossipSink, d8: RuntimeStore) -> None:
    assert await sink.tick() == 0
    await sink.apply([MemberUp(A), MemberUp(B), MemberDown(B)])
    assert [await sink.tick(), await sink.tick()] == [1, 1]
    assert await d8.list_live_since(3) == [Worker("node-a", A.contract, 3)]


async def test_nobody_else_speaks_for_this_node(sink: GossipSink, d8: RuntimeStore) -> None:
    await d8.register("own", "c")
    before = await ops(d8)
    impostor = Identity("10.6.6.6:1", 9, "own", 99)
    told: list[Notification] = [
        MemberUp(impostor),
        MemberDown(impostor),
        Rename(impostor, A),
        Rename(A, impostor),
    ]
    await sink.apply([MemberUp(A)])
    assert await sink.apply(told) == [Ignored()] * 4
    assert (await ops(d8))[: len(before)] == before
    assert await d8.get("own") == Worker("own", "c", 1)
    assert await d8.get("node-a") is not None


async def test_an_operation_that_nobody_signed_never_reaches_the_log(d8: RuntimeStore) -> None:
    claims = Claims(b"k" * 32)
    for origin, why in ((RejectUnsigned(), "no signing key"), (GossipOrigin(claims), "not signed")):
        sink = GossipSink(d8.with_origin(OwnAnd("own", origin)), "own")
        (refused,) = await sink.apply([MemberUp(A)])
        assert isinstance(refused, Refused)
        assert "node-a" in refused.why
        assert why in refused.why
        assert await ops(d8) == []
    # The control: the same notification, by the same way, once its claim was heard.
    claims.heard(A.instance, A.contract, claims.sign(A.instance, A.contract))
    assert await GossipSink(d8.with_origin(GossipOrigin(claims)), "own").apply([MemberUp(A)]) == [
        Registered("node-a")
    ]
    assert len(await ops(d8)) == 1


async def test_a_name_that_no_worker_may_have_is_refused_and_the_others_go_on(
    sink: GossipSink, d8: RuntimeStore
) -> None:
    bad = Identity("10.0.0.7:1", 0, "../../etc/passwd", 1)
    first, second, third = await sink.apply([MemberUp(A), MemberUp(bad), MemberUp(B)])
    assert (first, third) == (Registered("node-a"), Registered("node-b"))
    assert isinstance(second, Refused)
    assert [worker.worker_id for worker in await d8.list_live()] == ["node-a", "node-b"]


async def test_a_rename_that_is_refused_leaves_the_old_name(d8: RuntimeStore) -> None:
    class OldOnly:
        def authorize(self, op: Op) -> Unauthorised | None:
            return None if op.worker_id == "node-a" else Unauthorised(f"not {op.worker_id}")

    sink = GossipSink(d8.with_origin(OldOnly()), "own")
    await sink.apply([MemberUp(A)])
    assert await sink.apply([Rename(A, A2)]) == [Refused("not node-a2")]
    assert [worker.worker_id for worker in await d8.list_live()] == ["node-a"]


async def test_a_batch_that_was_not_written_can_be_given_again(
    d8: RuntimeStore, sqlite: SqliteBackend
) -> None:
    sink = GossipSink(d8, "own")
    await sink.apply([MemberUp(A)])
    sqlite.run("CREATE TRIGGER full BEFORE INSERT ON d8_runtime BEGIN SELECT raise(ABORT, 'no'); END")
    told: list[Notification] = [MemberUp(B), MemberDown(A)]
    with pytest.raises(StoreError):
        await sink.apply(told)
    assert [worker.worker_id for worker in await d8.list_live()] == ["node-a"]
    sqlite.run("DROP TRIGGER full")
    assert await sink.apply(told) == [Registered("node-b"), Deregistered("node-a")]
