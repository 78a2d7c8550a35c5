"""This sidecar in the record of the fleet: it registers, beats, and leaves on a clean stop.

The record is the store's own (D8), so whoever opens the store after a crash finds who was there.
One sidecar writes a store: whatever else the record shows as live at a start was left by an
earlier life or seen by it, and nobody watches it any more, so it is let go of; who is alive
comes again.  Nothing that happens here slows or ends anything else.  Source: spec 6.4, 7.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from sidecar.core.membership import Identity, Worker, place_of, registered, validate_op
from sidecar.errors import ConfigError, StoreError
from sidecar.settings import Settings, variable
from sidecar.store.runtime import RuntimeStore, RuntimeWork

RETRY_S: Final = 5.0
OFF: Final = "off"
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_.:-]", re.ASCII)


def own_identity(settings: Settings) -> Identity:
    """Who this sidecar is.

    Raises:
        ConfigError: NOETL_CHAIN_INSTANCE is no name of a worker.
    """
    given = settings.instance
    instance = _FOREIGN.sub("-", socket.gethostname()) if given is None else given.strip()
    own = Identity("", settings.shard.index, instance)
    fault = validate_op(registered(own.instance, own.contract))
    if fault is not None:
        why = str(fault) if given is not None else f"the host's name is none: {fault}"
        raise ConfigError(f"{variable('instance')}: {why}", hint="name this sidecar, as `noetl-chain-0`")
    return own


class Fleet:
    """Runs beside everything else.

    Args:
        runtime: The record, written by this process itself.
        beating: The same, with the origin that answers for those that are beaten; None: `runtime`.
        beat_s: Seconds between two heartbeats.
        gossip: How gossip stands, for people.
    """

    def __init__(
        self,
        runtime: RuntimeStore,
        own: Identity,
        log: FilteringBoundLogger,
        *,
        beat_s: float,
        beating: RuntimeStore | None = None,
        gossip: Callable[[], str] = lambda: OFF,
    ) -> None:
        self._runtime = runtime
        self._beating = runtime if beating is None else beating
        self._gossip = gossip
        self._own = own
        self._log = log
        self._beat_s = beat_s
        self._entering = asyncio.Lock()
        self._tried = self._registered = False
        self._said = ""

    @asynccontextmanager
    async def present(self) -> AsyncIterator[None]:
        """Leave the record at a good end of the block: it was through, or it was cancelled.

        Whom this sidecar saw goes with it: nobody sees them here any more.
        """
        clean = False
        try:
            yield
            clean = True
        except asyncio.CancelledError:
            clean = True
            raise
        finally:
            # A stop may have come while the registration was being written.
            if clean and self._tried:
                await self._leave()

    async def run(self) -> None:
        """Register, then beat without end; a store that cannot be written now is tried again."""
        while True:
            pause = self._beat_s
            try:
                await self._step()
            except StoreError as error:
                if self._said != str(error):
                    self._log.warning("fleet_not_recorded", reason=str(error), hint=error.hint)
                self._said = str(error)
                pause = min(pause, RETRY_S)
            else:
                self._said = ""
            await asyncio.sleep(pause)

    async def _step(self) -> None:
        if await self._joined() is None:
            await self._beating.beat()

    async def alone(self) -> int:
        """Let go of everybody else: nobody sees them now.  How many there were.

        This sidecar registers first if it has not: once, so that it forgets nobody who comes after this.

        Raises:
            StoreError: nothing was written.
        """
        gone = await self._joined()
        return await self._runtime.transact(self._forget) if gone is None else gone

    async def _joined(self) -> int | None:
        """Register and let go of everybody else; None, and nothing is written, when that was done."""
        async with self._entering:
            if self._registered:
                return None
            self._tried = True
            gone = await self._runtime.transact(self._enter)
            self._registered = True
        self._log.info("fleet_joined", worker_id=self._own.instance, shard=self._own.shard, left_over=gone)
        return gone

    async def _enter(self, work: RuntimeWork) -> int:
        await work.register(self._own.instance, self._own.contract)
        return await self._forget(work)

    async def _forget(self, work: RuntimeWork) -> int:
        others = [worker_id for worker_id in await work.live() if worker_id != self._own.instance]
        await work.look_up(others)
        for worker_id in others:
            await work.deregister(worker_id)
        return len(others)

    async def _leave(self) -> None:
        async def work(unit: RuntimeWork) -> None:
            await self._forget(unit)
            await unit.deregister(self._own.instance)

        try:
            await self._runtime.transact(work)
        except StoreError as error:
            self._log.warning("fleet_not_left", reason=str(error), hint=error.hint)

    async def document(self) -> dict[str, Any]:
        """The document of `/api/v1/fleet`.

        Raises:
            StoreError: the store cannot be read.
        """
        live = await self._runtime.list_live()
        return {
            "self": self._own.instance,
            "gossip": self._gossip(),
            "members": [_member(each, self._own) for each in live],
        }


def nobody_known() -> dict[str, Any]:
    """The document while no store is open."""
    return {"self": None, "gossip": OFF, "members": None}


def _member(worker: Worker, own: Identity) -> dict[str, Any]:
    place = place_of(worker.contract)
    return {
        "worker_id": worker.worker_id,
        "self": worker.worker_id == own.instance,
        "shard": None if place is None else place.shard,
        "addr": None if place is None else place.addr,
        "heartbeat": worker.heartbeat,
    }
