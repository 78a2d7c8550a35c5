"""Real nodes on loopback: each with a store, its record, and the loop between gossip and both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from sidecar.core.membership import Identity
from sidecar.fleet.notification import Notification
from sidecar.fleet.origin import Claims, GossipOrigin, OwnAnd
from sidecar.fleet.sink import GossipSink, Result
from sidecar.fleet.swim import Endpoint, KinshipSource, configured, gossiping
from sidecar.service.gossip import GossipWatch
from sidecar.service.told import Instruments
from sidecar.store import ChainStore
from sidecar.store.runtime import RuntimeStore
from sidecar.telemetry.health import Health
from sidecar.telemetry.metrics import Metrics
from tests.support.service import value

PATIENCE_S: Final = 30.0
KEY: Final = "a2luc2hpcC1pcy1hLWtleS1vZi0zMi1ieXRlcy1oZXI="
OTHER_KEY: Final = "YW5vdGhlci1rZXktdGhhdC1oYXMtMzItYnl0ZXMteWU="

FAST: Final[Mapping[str, Any]] = {
    "probe_interval": 0.2,
    "probe_timeout": 0.1,
    "gossip_interval": 0.05,
    "suspicion_mult": 2,
    "suspicion_max_mult": 2,
    "push_pull_interval": 1.0,
    "reconnect_interval": 0.5,
    "rejoin_interval": 0.5,
    "gossip_to_the_dead": 5.0,
}
"""A death is noticed within about two seconds; otherwise as in production."""


class HeldSink(GossipSink):
    """Records only while `free` is set."""

    def __init__(self, runtime: RuntimeStore, own: str) -> None:
        super().__init__(runtime, own)
        self.free = asyncio.Event()
        self.free.set()

    async def apply(self, notifications: Sequence[Notification]) -> list[Result]:
        await self.free.wait()
        return await super().apply(notifications)


class Node:
    """One node that runs; made by `node`."""

    def __init__(self, runtime: RuntimeStore, name: str, metrics: Metrics, sink: HeldSink) -> None:
        self.runtime = runtime
        self.name = name
        self.metrics = metrics
        self.sink = sink
        self.source: KinshipSource | None = None

    @property
    def addr(self) -> str:
        assert self.source is not None
        return self.source.own.addr

    def alive(self) -> int:
        """How many the protocol itself takes for alive, this node included."""
        assert self.source is not None
        return len(self.source._cluster.members())

    def received(self) -> int:
        """Datagrams that the protocol took for frames of the fleet."""
        assert self.source is not None
        return self.source._cluster.stats().packets_received

    async def live(self) -> set[str]:
        """The peers that the record shows."""
        return {worker.worker_id for worker in await self.runtime.list_live()} - {self.name}

    async def shows(self, *names: str) -> None:
        """Wait until exactly these peers are live in the record."""
        await self.until(names, lambda live: live == set(names))

    async def until(self, what: object, holds: Callable[[set[str]], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds(await self.live()):  # noqa: ASYNC110 - the protocol has no event for a state
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{self.name} shows {await self.live()}, not {what}") from None

    def told(self, notification: str) -> float:
        return value(self.metrics.registry, "gossip_notifications_total", notification=notification)

    def frames_refused(self) -> float:
        return value(self.metrics.registry, "gossip_frames_refused_total")

    async def comes(self, count: Callable[[], float], least: float = 1) -> None:
        """Wait until something was counted so often."""
        await self.holds(lambda: count() >= least)

    async def holds(self, holds: Callable[[], bool]) -> None:
        """Wait until it does."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)

    def results(self, result: str) -> float:
        return value(self.metrics.registry, "gossip_results_total", result=result)

    async def ops(self) -> list[tuple[str, str]]:
        records = await self.runtime.ops_after(0, 10_000)
        return [(record.op.worker_id, record.op.kind.value) for record in records]


@asynccontextmanager
async def node(
    folder: Path,
    name: str,
    *peers: str,
    bind: str = "127.0.0.1:0",
    key: str = KEY,
    signing: str | None = None,
    shard: int = 0,
    **more: Any,
) -> AsyncIterator[Node]:
    """Run a node until the block ends; then it leaves.

    Args:
        peers: Addresses to join by.
        key: Seals its frames; several with a space between: the first one seals.  `signing`: signs its
            claims, the same by default.
    """
    own = Identity("", shard, name)
    claims = Claims(*map(str.encode, (signing or key).split()))
    config = configured(Endpoint(bind, peers, tuple(key.split()), {**FAST, **more}), name)
    instruments = Instruments(Metrics(), Health(), structlog.get_logger())
    async with ChainStore.open(str(folder / f"{name}.db")) as store:
        runtime = RuntimeStore(store)
        sink = HeldSink(runtime.with_origin(OwnAnd(name, GossipOrigin(claims))), name)
        joined = asyncio.Event()
        made: list[KinshipSource] = []

        @asynccontextmanager
        async def connect() -> AsyncIterator[KinshipSource]:
            async with gossiping(config, own, claims) as source:
                made.append(source)
                joined.set()
                yield source

        async def alone() -> int:
            return 0

        watch = GossipWatch(sink, connect, alone, instruments, pace_s=0.0)
        one = Node(runtime, name, instruments.metrics, sink)
        running = asyncio.create_task(watch.run())
        try:
            waiting = asyncio.create_task(joined.wait())
            await asyncio.wait({running, waiting}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            assert joined.is_set(), f"{name} did not start"
            one.source = made[0]
            yield one
        finally:
            running.cancel()
            await asyncio.wait({running})
            if not running.cancelled():
                running.result()
