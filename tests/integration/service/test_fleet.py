"""The sidecar in its own record of the fleet.  Source: spec 6.4."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from structlog.testing import capture_logs

from sidecar.core.membership import Identity, OpKind, Worker
from sidecar.errors import ConfigError, StoreError
from sidecar.fleet.notification import MemberUp, Rejoin
from sidecar.fleet.sink import GossipSink
from sidecar.service.fleet import Fleet, own_identity
from sidecar.service.membership import membership
from sidecar.service.told import Instruments
from sidecar.settings import Settings
from sidecar.store import ChainStore
from sidecar.store.runtime import OPS_MAX, RuntimeStore, RuntimeWork
from sidecar.telemetry import logs
from sidecar.telemetry.health import Health
from sidecar.telemetry.metrics import Metrics
from tests.support.databases import Database
from tests.support.gossip import KEY, OTHER_KEY
from tests.support.running import Running, fetched
from tests.support.service import service, value

T = TypeVar("T")


async def test_it_registers_beats_is_shown_and_leaves(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store, instance="node-a", fleet_beat_s=0.1) as running:
        d8 = RuntimeStore(running.store)

        async def beaten() -> bool:
            worker = await d8.get("node-a")
            return worker is not None and worker.heartbeat >= 3

        await running.until(beaten)
        assert running.board.fleet is not None
        told = await running.board.fleet()
        assert told["self"] == "node-a"
        (member,) = told["members"]
        assert member.pop("heartbeat") >= 3
        assert member == {"worker_id": "node-a", "self": True, "shard": 0, "addr": None}
        await running.looked()
        assert running.value("fleet_live_workers") == 1
        assert running.board.status()["fleet"] == {"live_workers": 1}
    assert await RuntimeStore.cold_load(str(store)) == {}
    async with ChainStore.open_readonly(str(store)) as reader:
        (last,) = await reader.query("SELECT event, contract FROM d8_runtime ORDER BY op_seq DESC LIMIT 1")
    assert last == (OpKind.DEREGISTER.value, "")


@pytest.mark.torture
async def test_who_was_killed_stays_in_the_record_until_the_next_start(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    async with Running.start(pg.dsn, store, NOETL_CHAIN_INSTANCE="old") as running:
        joined = await running.says("fleet_joined")
        assert (joined["worker_id"], joined["left_over"]) == ("old", 0)
        assert (await fetched(f"{await running.api()}/api/v1/fleet"))[0] == 200
        assert await running.stopped(signal.SIGKILL) == -signal.SIGKILL
    assert await RuntimeStore.cold_load(str(store)) == {"old": Worker("old", "shard=0;addr=", 1)}
    async with Running.start(pg.dsn, store, NOETL_CHAIN_INSTANCE="new") as running:
        assert (await running.says("fleet_joined"))["left_over"] == 1
        told = json.loads((await fetched(f"{await running.api()}/api/v1/fleet"))[1])
        assert [each["worker_id"] for each in told["members"]] == ["new"]
        assert await running.stopped(signal.SIGTERM) == 0
    assert await RuntimeStore.cold_load(str(store)) == {}


async def test_who_fails_does_not_say_that_it_left(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"

    async def fails() -> None:
        async with service(pg.dsn, store, instance="a") as running:
            d8 = RuntimeStore(running.store)

            async def there() -> bool:
                return await d8.get("a") is not None

            await running.until(there)
            raise StoreError("not a clean end")

    with pytest.raises(StoreError, match="not a clean end"):
        await fails()
    assert list(await RuntimeStore.cold_load(str(store))) == ["a"]


def test_a_name_that_no_worker_may_have_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="NOETL_CHAIN_INSTANCE"):
        own_identity(Settings.given(instance="a b"))
    assert (
        own_identity(Settings.given(instance=" a ", shard_index=2, shard_count=3)).contract == "shard=2;addr="
    )


def test_a_hosts_name_is_made_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "möbius pc.lan")
    assert own_identity(Settings.given()).instance == "m-bius-pc.lan"


async def posture(store: ChainStore, **given: Any) -> tuple[str, int, list[tuple[str, str]]]:
    """How gossip stands, how many loops run, and what the start warned of."""
    instruments = Instruments(Metrics(), Health(), logs.get("test"))
    with capture_logs() as lines:
        seen = membership(Settings.given(instance="a", **given), store, instruments)
    warned = [(line["variable"], line["missing"]) for line in lines if line["event"] == "gossip_is_off"]
    gossip = (await seen.fleet.document())["gossip"]
    assert value(instruments.metrics.registry, "gossip_configured") == (gossip not in ("off", "no_key"))
    return gossip, len(seen.loops), warned


async def test_gossip_is_off_until_a_place_and_a_key_are_there(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    bind, file = "NOETL_CHAIN_GOSSIP_BIND", "NOETL_CHAIN_GOSSIP_KEY_FILE"
    place = "127.0.0.1:0"
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        assert await posture(store) == ("off", 1, [])
        assert await posture(store, gossip_bind=place) == ("no_key", 1, [(bind, file)])
        assert await posture(store, gossip_key_file=key) == ("off", 1, [(file, bind)])
        pytest.importorskip("kinship", reason="the extra gossip is not installed")
        assert await posture(store, gossip_bind=place, gossip_key_file=key) == ("down", 2, [])
        key.write_text(f"{KEY}\n{OTHER_KEY}\n")
        assert await posture(store, gossip_bind=place, gossip_key_file=key) == ("down", 2, [])


async def test_without_a_key_this_sidecar_beats_and_nobody_else_does(tmp_path: Path) -> None:
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        d8 = RuntimeStore(store)
        instruments = Instruments(Metrics(), Health(), logs.get("test"))
        seen = membership(Settings.given(instance="a", fleet_beat_s=0.1), store, instruments)
        running = asyncio.create_task(seen.fleet.run())
        try:
            async with asyncio.timeout(10):
                while await d8.get("a") is None:  # noqa: ASYNC110 - the loop tells nobody
                    await asyncio.sleep(0.01)
                await d8.register("b", "c")  # as if an earlier build had left it in between
                while (await d8.list_live_since(4)) == []:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)
        finally:
            running.cancel()
            await asyncio.wait({running})
        assert await d8.get("b") == Worker("b", "c", 1)


PEER = Identity("10.0.0.5:7946", 1, "b", 1)


async def test_who_is_seen_before_this_sidecar_registered_is_not_let_go_of(tmp_path: Path) -> None:
    """A store that takes nothing at first: gossip may be the first of the two that it takes again."""
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        d8, own = RuntimeStore(store), Identity("", 0, "a")
        fleet = Fleet(d8, own, logs.get("test"), beat_s=0.1)
        assert await fleet.alone() == 0
        there = replace(own, addr="10.0.0.1:7946")
        await GossipSink(d8, "a").apply([Rejoin(there), MemberUp(PEER)])
        async with fleet.present():
            running = asyncio.create_task(fleet.run())
            try:
                async with asyncio.timeout(10):
                    while not await d8.list_live_since(2):  # noqa: ASYNC110 - the loop tells nobody
                        await asyncio.sleep(0.01)
                found = {worker.worker_id: worker.contract for worker in await d8.list_live()}
            finally:
                running.cancel()
                await asyncio.wait({running})
        assert found == {"a": there.contract, "b": PEER.contract}
        assert await d8.list_live() == []


async def test_a_crowd_is_let_go_of_in_a_few_statements(tmp_path: Path) -> None:
    """At a stop there is a second; who holds the key of the fleet may have shown it thousands."""
    count = 2 * OPS_MAX
    statements: list[str] = []

    class Counted(RuntimeStore):
        async def transact(self, work: Callable[[RuntimeWork], Awaitable[T]]) -> T:
            async def counted(unit: RuntimeWork) -> T:
                rows = unit._unit.rows

                async def one(sql: str, parameters: Sequence[Any] = ()) -> Sequence[Any]:
                    statements.append(sql)
                    return await rows(sql, parameters)

                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(unit._unit, "rows", one)
                    return await work(unit)

            return await super().transact(counted)

    async def crowd(unit: RuntimeWork) -> None:
        for number in range(count):
            await unit.register(f"w{number}", "c")

    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        d8 = RuntimeStore(store)
        await d8.transact(crowd)
        assert await Fleet(Counted(store), Identity("", 0, "a"), logs.get("test"), beat_s=1).alone() == count
        assert 0 < len(statements) < 10
        assert [worker.worker_id for worker in await d8.list_live()] == ["a"]


async def test_a_stop_in_the_middle_of_the_registration_leaves_the_record(tmp_path: Path) -> None:
    """Its transaction is finished, and nobody is told that it was."""

    class Stopped(RuntimeStore):
        async def transact(self, work: Callable[[RuntimeWork], Awaitable[T]]) -> T:
            result = await super().transact(work)
            if stopping.is_set():
                return result
            stopping.set()
            raise asyncio.CancelledError

    stopping = asyncio.Event()
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        fleet = Fleet(Stopped(store), Identity("", 0, "a"), logs.get("test"), beat_s=0.1)
        with pytest.raises(asyncio.CancelledError):
            async with fleet.present():
                await fleet.run()
        d8 = RuntimeStore(store)
        assert [record.op.kind.value for record in await d8.ops_after(0, 9)] == ["register", "deregister"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"gossip_bind": "127.0.0.1:0", "key": "too short"}, "keys is not usable"),
        ({"gossip_bind": "127.0.0.1:0", "key": f"{KEY}\nno key"}, "keys is not usable"),
        ({"gossip_bind": ":1", "key": KEY}, "bind is not usable"),
        ({"gossip_bind": "127.0.0.1:0", "key": " "}, "GOSSIP_KEY_FILE is empty"),
        ({"gossip_bind": "127.0.0.1:0", "gossip_key_file": "/nowhere"}, "GOSSIP_KEY_FILE cannot be read"),
    ],
)
async def test_what_gossip_cannot_use_stops_the_start_and_is_not_repeated(
    tmp_path: Path, given: dict[str, Any], named: str
) -> None:
    pytest.importorskip("kinship", reason="the extra gossip is not installed")
    if "key" in given:
        (tmp_path / "key").write_text(given.pop("key"))
        given["gossip_key_file"] = tmp_path / "key"
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        with pytest.raises(ConfigError, match=named) as refused:
            await posture(store, **given)
    assert "too short" not in str(refused.value)
    assert KEY not in str(refused.value)


async def test_without_the_package_the_start_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kinship", None)
    (tmp_path / "key").write_text(KEY)
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        assert await posture(store) == ("off", 1, [])
        with pytest.raises(ConfigError, match="kinship") as refused:
            await posture(store, gossip_bind="127.0.0.1:0", gossip_key_file=tmp_path / "key")
    assert "noetl-chain[gossip]" in refused.value.hint


def test_peers_are_addresses_divided_by_commas() -> None:
    given = Settings.given(gossip_peers="a:1, [::1]:2")
    assert given.gossip_peers == ("a:1", "[::1]:2")
    assert Settings.given(gossip_peers=" ").gossip_peers == ()
    assert Settings.given(gossip_bind=" ").gossip_bind is None
    for text in ("a", "a:1,", "a:x"):
        with pytest.raises(ConfigError, match="GOSSIP_PEERS"):
            Settings.given(gossip_peers=text)


@pytest.mark.torture
async def test_three_sidecars_see_each_other_and_one_that_is_killed(pg: Database, tmp_path: Path) -> None:
    """The whole program, by its settings alone, with the protocol's own times."""
    pytest.importorskip("kinship", reason="the extra gossip is not installed")
    (tmp_path / "key").write_text(KEY)
    ports = [free_port() for _ in range(3)]
    peers = ",".join(f"127.0.0.1:{port}" for port in ports)
    async with AsyncExitStack() as opened:
        sidecars = [
            await opened.enter_async_context(
                Running.start(
                    pg.dsn,
                    tmp_path / f"{number}.db",
                    NOETL_CHAIN_INSTANCE=f"node-{number}",
                    NOETL_CHAIN_GOSSIP_BIND=f"127.0.0.1:{port}",
                    NOETL_CHAIN_GOSSIP_PEERS=peers,
                    NOETL_CHAIN_GOSSIP_KEY_FILE=str(tmp_path / "key"),
                    NOETL_CHAIN_FLEET_BEAT_S="0.5",
                )
            )
            for number, port in enumerate(ports)
        ]
        for sidecar in sidecars:
            await shows(sidecar, {"node-0", "node-1", "node-2"})
        assert await sidecars[2].stopped(signal.SIGKILL) == -signal.SIGKILL
        for sidecar in sidecars[:2]:
            await shows(sidecar, {"node-0", "node-1"})
        assert await sidecars[1].stopped(signal.SIGTERM) == 0
        await shows(sidecars[0], {"node-0"})
        scraped = await sidecars[0].get("/metrics")
        assert "noetl_chain_gossip_up 1.0" in scraped
        assert 'noetl_chain_gossip_results_total{result="refused"} 0.0' in scraped
        assert await sidecars[0].stopped(signal.SIGTERM) == 0
    assert await RuntimeStore.cold_load(str(tmp_path / "1.db")) == {}


async def shows(sidecar: Running, names: set[str]) -> None:
    """Wait until the fleet is these, each beaten."""
    members: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        while True:
            told = json.loads((await fetched(f"{await sidecar.api()}/api/v1/fleet"))[1])
            members = told["members"] or []
            shown = {each["worker_id"] for each in members if each["heartbeat"] > 1}
            if shown == names and len(members) == len(names) and told["gossip"] == "up":
                return
            await asyncio.sleep(0.1)


def free_port() -> int:
    with closing(socket.socket(type=socket.SOCK_DGRAM)) as place:
        place.bind(("127.0.0.1", 0))
        port: int = place.getsockname()[1]
    return port
