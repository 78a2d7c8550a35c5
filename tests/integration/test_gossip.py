"""Three real nodes of kinship on loopback, each with its own store.  Source: spec 7."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from sidecar.core.membership import fold, live
from tests.support.divided import network
from tests.support.gossip import KEY, OTHER_KEY, Node, node
from tests.support.service import value

pytest.importorskip("kinship", reason="the extra gossip is not installed")


async def replayed(one: Node) -> None:
    """The log from empty comes to what the record shows."""
    records = await one.runtime.ops_after(0, 10_000)
    assert live(fold(record.op for record in records).values()) == await one.runtime.list_live()


async def test_three_nodes_join_and_one_leaves(tmp_path: Path) -> None:
    async with node(tmp_path, "a") as a, node(tmp_path, "b", a.addr, shard=1) as b:
        async with node(tmp_path, "c", a.addr, shard=2) as c:
            for one, others in ((a, "bc"), (b, "ac"), (c, "ab")):
                await one.shows(*others)
            by_name = {worker.worker_id: worker for worker in await a.runtime.list_live()}
            assert by_name["c"].contract == f"shard=2;addr={c.addr}"
            assert by_name["b"].contract == f"shard=1;addr={b.addr}"
        await a.shows("b")
        await b.shows("a")
        assert ("c", "deregister") in await a.ops()
        assert a.results("refused") == 0
        for one in (a, b):
            await replayed(one)


@asynccontextmanager
async def peer(folder: Path, name: str, other: str) -> AsyncIterator[str]:
    """A node as a process, killed at the end of the block; its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.peer", str(folder), name, other, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        addr = (await process.stdout.readline()).decode().strip()
        assert addr
        yield addr
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


async def test_a_node_that_is_killed_is_seen_and_recorded(tmp_path: Path) -> None:
    async with node(tmp_path, "a") as a, node(tmp_path, "b", a.addr) as b:
        async with peer(tmp_path, "c", a.addr) as addr:
            for one, other in ((a, "b"), (b, "a")):
                await one.shows(other, "c")
                worker = await one.runtime.get("c")
                assert worker is not None
                assert worker.contract == f"shard=0;addr={addr}"
            assert await a.sink.tick() == 3  # with itself
        for one, other in ((a, "b"), (b, "a")):
            await one.shows(other)
            kinds = [kind for name, kind in await one.ops() if name == "c"]
            assert (kinds[0], kinds[-1]) == ("register", "deregister")
            await replayed(one)
        # Nobody beats who is not there any more.
        assert await a.sink.tick() == 2
        assert await a.live() == {"b"}


async def test_a_node_under_a_new_name_at_its_address_is_renamed(tmp_path: Path) -> None:
    async with node(tmp_path, "a", suspicion_mult=10) as a:
        async with peer(tmp_path, "b", a.addr) as bind:
            await a.shows("b")
        async with node(tmp_path, "b2", a.addr, bind=bind) as b2:
            assert b2.addr == bind
            await a.shows("b2")
            assert a.told("rename") == 1
            ops = await a.ops()
            assert ops.index(("b2", "register")) < ops.index(("b", "deregister"))
            assert await a.live() == {"b2"}
            await replayed(a)


async def test_a_node_comes_back_at_another_address(tmp_path: Path) -> None:
    """A pod that was killed: its new life is there before its old one is noticed dead."""
    async with node(tmp_path, "a", suspicion_mult=15) as a:
        async with peer(tmp_path, "b", a.addr) as before:
            await a.shows("b")
        (tmp_path / "again").mkdir()
        async with node(tmp_path / "again", "b", a.addr) as b:
            assert b.addr != before
            await b.shows("a")
            assert a.alive() == 3
            # Its old life is found dead later; that is no news of it.
            await a.holds(lambda: a.alive() == 2)
            worker = await a.runtime.get("b")
            assert worker is not None
            assert worker.contract == f"shard=0;addr={b.addr}"
            assert ("b", "deregister") not in await a.ops()
            await replayed(a)
        await a.shows()


async def test_a_partition_takes_each_side_for_dead_and_heals(tmp_path: Path) -> None:
    async with network() as net, AsyncExitStack() as running:
        nodes: dict[str, Node] = {}
        bound = {}
        for name in "abc":
            bound[name], known = await net.place()
            peers = [one.addr for one in nodes.values()]
            nodes[name] = await running.enter_async_context(
                node(tmp_path, name, *peers, bind=bound[name], advertise=known)
            )
            assert nodes[name].addr == known
        a, b, c = nodes.values()
        for one in nodes.values():
            await one.shows(*({"a", "b", "c"} - {one.name}))
        assert c.told("rejoin") == 1  # when it came to know its address
        net.cut(bound["c"])
        await a.shows("b")
        await b.shows("a")
        await c.shows()
        assert net.dropped > 0
        await c.comes(lambda: c.told("idle"))
        net.heal()
        for one in nodes.values():
            await one.shows(*({"a", "b", "c"} - {one.name}))
        # It had to contradict its own death.
        await c.comes(lambda: c.told("rejoin"), 2)
        assert (await c.ops()).count(("c", "register")) >= 2
        for one in nodes.values():
            await replayed(one)
            assert one.results("refused") == 0


async def test_another_key_joins_nothing_and_is_counted(tmp_path: Path) -> None:
    async with node(tmp_path, "a") as a, node(tmp_path, "b", a.addr) as b:
        await a.shows("b")
        await b.shows("a")
        before = await a.ops()
        async with node(tmp_path, "w", a.addr, key=OTHER_KEY) as wrong:
            await a.comes(a.frames_refused)
            await a.comes(a.frames_refused, a.frames_refused() + 3)  # it goes on trying
            assert await wrong.live() == set()
        assert await a.ops() == before
        assert await b.live() == {"a"}


async def test_in_the_middle_of_a_change_of_keys_both_halves_see_each_other(tmp_path: Path) -> None:
    async with (
        node(tmp_path, "a", key=f"{KEY} {OTHER_KEY}") as a,
        node(tmp_path, "b", a.addr, key=f"{OTHER_KEY} {KEY}") as b,
    ):
        await a.shows("b")
        await b.shows("a")
        assert a.frames_refused() == b.frames_refused() == 0
        assert a.results("refused") == b.results("refused") == 0


async def test_frames_that_are_none_or_were_heard_before_change_nothing(tmp_path: Path) -> None:
    """Whoever reaches the port without the key: noise of any length, and what was recorded, played back."""
    async with network() as net, AsyncExitStack() as running:
        nodes: list[Node] = []
        bound = []
        for name in "ab":
            place, known = await net.place()
            bound.append(place)
            peers = [one.addr for one in nodes]
            one = node(tmp_path, name, *peers, bind=place, advertise=known)
            nodes.append(await running.enter_async_context(one))
        a, b = nodes
        await a.shows("b")
        await b.shows("a")
        recorded = net.heard[-20:]
        assert recorded
        for data in (b"", b"\0", b"x" * 1400, b"\xff" * 65_000, recorded[0][:-1], *recorded):
            await sent(bound[0], data)
        await a.comes(a.frames_refused, 5)  # the noise; what was recorded is refused, or no news
        await streamed(bound[0], b"\xff" * 70_000)
        # It hears what is new as before, from whom it knew and from whom it did not.
        async with node(tmp_path, "c", a.addr):
            await a.shows("b", "c")
        await a.shows("b")
        # Nobody else came of it; on a slow machine who is there may have been registered anew.
        assert {name for name, _ in await a.ops()} == {"a", "b", "c"}
        assert a.results("refused") == 0
        await replayed(a)


async def test_a_recording_of_yesterday_brings_nobody_back_for_long(tmp_path: Path) -> None:
    """All were stopped in between: nobody remembers the frames, and who is in them does not answer."""
    async with network() as net:
        place, known = await net.place()
        async with node(tmp_path, "a", bind=place, advertise=known) as a, node(tmp_path, "b", a.addr) as b:
            await a.shows("b")
            await b.shows("a")
            recorded = list(net.heard)
        (tmp_path / "today").mkdir()
        async with node(tmp_path / "today", "a", bind=place, advertise=known) as a:
            for data in recorded:
                await sent(place, data)
            await a.comes(a.received, len(recorded))
            await a.holds(lambda: a.alive() == 1)
            await a.shows()
            assert await a.sink.tick() == 1
            await replayed(a)


async def sent(place: str, data: bytes) -> None:
    host, _, port = place.rpartition(":")
    with socket.socket(type=socket.SOCK_DGRAM) as stranger:
        await asyncio.to_thread(stranger.sendto, data, (host, int(port)))


async def streamed(place: str, data: bytes) -> None:
    """Say something on a stream, and wait until it is hung up."""
    host, _, port = place.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with suppress(OSError):
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(30):
            await reader.read()
    writer.close()


async def test_who_is_let_in_and_does_not_sign_is_refused_by_the_record(tmp_path: Path) -> None:
    async with node(tmp_path, "a") as a:
        async with node(tmp_path, "w", a.addr, signing=OTHER_KEY) as wrong:
            await a.comes(lambda: a.results("refused"))
            assert {name for name, _ in await a.ops()} == {"a"}
            # For it nobody else signs rightly, either.
            await wrong.comes(lambda: wrong.results("refused"))
        # The control: the same name, signed.
        async with node(tmp_path, "w", a.addr, signing=KEY):
            await a.shows("w")


async def test_events_that_were_lost_are_made_good_by_the_whole_view(tmp_path: Path) -> None:
    """A record that is held up: the source drops events, and it comes right nevertheless."""
    async with node(tmp_path, "a", event_buffer=1) as a:
        a.sink.free.clear()
        async with AsyncExitStack() as running:
            others = [await running.enter_async_context(node(tmp_path, name, a.addr)) for name in "bcd"]
            for one in others:
                await one.until("a", lambda live: "a" in live)
            assert await a.live() == set()
            a.sink.free.set()
            await a.shows("b", "c", "d")
            assert value(a.metrics.registry, "gossip_events_lost_total") > 0
            await replayed(a)
        await a.shows()
