"""Turn notifications into operations of the record, by one rule for each of the seven.

The sink decides nothing about who may: every change goes through the record's own append, where
it is validated and its origin is asked, and can be refused there.  A new name is registered
before the old one is let go of, so whoever reads the record, at any operation, finds the node
under one of the two.  Source: spec 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, assert_never

from sidecar.errors import Invalid, OpRefused
from sidecar.fleet.notification import (
    Active,
    Defunct,
    Idle,
    MemberDown,
    MemberUp,
    Notification,
    Rejoin,
    Rename,
)
from sidecar.store.runtime import RuntimeStore, RuntimeWork


@dataclass(frozen=True, slots=True)
class Registered:
    """The record shows the node, newly or anew."""

    worker_id: str
    label: ClassVar[str] = "registered"


@dataclass(frozen=True, slots=True)
class Deregistered:
    """The record shows the node no more."""

    worker_id: str
    label: ClassVar[str] = "deregistered"


@dataclass(frozen=True, slots=True)
class Ignored:
    """Nothing was written: there is nothing to record."""

    label: ClassVar[str] = "ignored"


@dataclass(frozen=True, slots=True)
class Refused:
    """The record did not take the operation; `why` is its own reason."""

    why: str
    label: ClassVar[str] = "refused"


Result = Registered | Deregistered | Ignored | Refused
RESULTS: Final = (Registered, Deregistered, Ignored, Refused)


class GossipSink:
    """Writes what gossip observes.

    Args:
        runtime: The record, with the origin that answers for what gossip says.
        own: This node's worker id.  What is told of a peer of that name is told of an impostor
            or of our own past, and ignored.
    """

    def __init__(self, runtime: RuntimeStore, own: str | None = None) -> None:
        self._runtime = runtime
        self._own = own

    async def apply(self, notifications: Sequence[Notification]) -> list[Result]:
        """Record them in their order, in one transaction.

        Returns:
            What each came to.  A refusal takes nothing else along.

        Raises:
            StoreFull, StoreBusy: none of them was recorded; they can be given again.
            StoreError: none of them was recorded.
        """

        async def work(unit: RuntimeWork) -> list[Result]:
            await unit.look_up(_asked_of(notifications))
            return [await self._recorded(unit, each) for each in notifications]

        return await self._runtime.transact(work)

    async def tick(self) -> int:
        """Count a heartbeat of everybody who is live in the record.

        Gossip tells of changes and not of life; this clock does.

        Returns:
            How many: 0 says that the adapter has stalled.
        """
        return await self._runtime.beat()

    async def _recorded(self, unit: RuntimeWork, told: Notification) -> Result:
        try:
            return await self._one(unit, told)
        except (Invalid, OpRefused) as error:
            return Refused(str(error))

    async def _one(self, unit: RuntimeWork, told: Notification) -> Result:
        match told:
            case MemberUp(node):
                if node.instance == self._own:
                    return Ignored()
                await unit.register(node.instance, node.contract)
                return Registered(node.instance)
            case Rejoin(node):
                await unit.register(node.instance, node.contract)
                return Registered(node.instance)
            case Rename(old, new):
                # Both may be down: then nobody would ever take the new name out again.  A new one
                # that is alive comes up by itself.
                if self._own in (old.instance, new.instance) or not await unit.is_live(old.instance):
                    return Ignored()
                await unit.register(new.instance, new.contract)
                if old.instance != new.instance:
                    await unit.deregister(old.instance)
                return Registered(new.instance)
            case MemberDown(node):
                if node.instance == self._own or not await unit.deregister(node.instance):
                    return Ignored()
                return Deregistered(node.instance)
            case Active() | Idle() | Defunct():
                return Ignored()
            case _:
                assert_never(told)


def _asked_of(notifications: Sequence[Notification]) -> Iterator[str]:
    """Whose latest operation the rules ask for."""
    for told in notifications:
        match told:
            case MemberDown(node):
                yield node.instance
            case Rename(old, _):
                yield old.instance
            case _:
                pass
