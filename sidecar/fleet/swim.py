"""The real source: a node of a `kinship` cluster (SWIM with Lifeguard, sealed frames).

The node runs on a thread of its own and waits for nobody: who reads too slowly is told that
events were lost, and looks at the whole view instead.  kinship keeps a name for the address that
had it, long after its node left, while a pod comes back under its name at another one.  So a
node's name there is one life's, and who it is travels as metadata: instance, shard, and its
signature over them and its address.  kinship's epoch is our incarnation.  A member that has said
nothing of itself yet is not told of.  Source: spec 7; ADR 0025.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

from sidecar.core.membership import SHARD_MAX, Identity
from sidecar.errors import ConfigError, GossipError
from sidecar.fleet.notification import Defunct, MemberUp, Notification, Rejoin
from sidecar.fleet.origin import Claims
from sidecar.fleet.roster import Roster

if TYPE_CHECKING:
    import kinship

CLUSTER: Final = "noetl-chain"
IDLE_S: Final = 1.0
"""How long `take` waits at most for something to tell."""
LEAVE_S: Final = 0.5
"""How long the others are told of a clean stop; the process has little time."""
NAME_PART: Final = 48
"""Of the instance in the name of a life; kinship's have at most 64 bytes."""
_SHARD: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and with whom this node gossips.

    `bind`: `host:port`.  `peers`: `host:port` of some others, itself or not.  `keys`: of the whole
    fleet, each 32 bytes in base64; the first one seals, each opens.  `more`: further fields of
    kinship's configuration.
    """

    bind: str
    peers: tuple[str, ...]
    keys: tuple[str, ...] = field(repr=False)
    more: Mapping[str, Any] = field(default_factory=dict)


def configured(endpoint: Endpoint, instance: str) -> kinship.Config:
    """The configuration of a node; no socket is opened.

    Raises:
        ConfigError: the package is not installed, or a value is not usable; the field is named.
    """
    package = _kinship()
    try:
        config: kinship.Config = package.Config.lan(
            name=_name(instance),
            bind=endpoint.bind,
            seeds=list(endpoint.peers),
            keys=list(endpoint.keys),
            cluster=CLUSTER,
            **endpoint.more,
        )
    except package.ConfigError as error:
        raise ConfigError(
            f"gossip cannot be configured: {error.field or 'a value'} is not usable",
            hint="bind and peers are host:port; a key: python -m kinship keygen",
        ) from None
    return config


def _kinship() -> Any:
    try:
        import kinship
    except ImportError:
        raise ConfigError(
            "gossip needs the package kinship",
            hint="install noetl-chain[gossip], or unset the gossip settings",
        ) from None
    return kinship


@asynccontextmanager
async def gossiping(config: kinship.Config, own: Identity, claims: Claims) -> AsyncIterator[KinshipSource]:
    """Take part until the block ends; then the others are told that this node leaves.

    Args:
        own: Who this node is; its address becomes the one that kinship gives it.

    Raises:
        GossipError: the address is taken, or no peer's name can be resolved.
    """
    package = _kinship()
    package.log_to_python(logging.ERROR)
    cluster: kinship.Cluster = package.Cluster(config.replace(name=_name(own.instance)))
    try:
        await cluster.start()
    except (OSError, package.KinshipError) as error:
        raise GossipError(f"gossip did not start: {error}") from None
    try:
        node = replace(own, addr=cluster.local.addr, incarnation=cluster.local.epoch)
        events = cluster.events()
        signature = claims.sign(node.instance, node.contract)
        await cluster.set_meta({"instance": node.instance, "shard": str(node.shard), "sig": signature})
        source = KinshipSource(cluster, events, Roster(node), claims)
        try:
            yield source
        finally:
            await source.cancelled()
            await cluster.leave(LEAVE_S)
    except package.KinshipError as error:
        raise GossipError(f"gossip ended: {error}") from None
    finally:
        await cluster.close()


class KinshipSource:
    """A `Source`; made by `gossiping`."""

    def __init__(
        self, cluster: kinship.Cluster, events: kinship.EventStream, roster: Roster, claims: Claims
    ) -> None:
        self._cluster = cluster
        self._events = events
        self._roster = roster
        self._claims = claims
        self._life = cluster.local.incarnation
        # With its address, which nobody knew before.
        self._told: deque[Notification] = deque([Rejoin(roster.own)])
        self._unsigned: dict[str, Identity] = {}
        self._next: asyncio.Task[kinship.Event | None] | None = None
        self._ended = False
        self._refused = 0
        self.lost = 0
        """Events that were lost because nobody read them in time; the whole view was read instead."""
        self._view()

    @property
    def own(self) -> Identity:
        """This node, in the life it is in."""
        return self._roster.own

    def refused_frames(self) -> int:
        """Frames since the last call that were none, not sealed with our keys, or played back."""
        stats = self._cluster.stats()
        total = stats.decode_errors + stats.decrypt_failures + stats.replays_dropped
        new, self._refused = total - self._refused, total
        return new

    async def take(self, limit: int) -> Sequence[Notification]:
        """See `Source`; after a second without anything the answer is empty."""
        self._collect()
        if not self._told:
            if self._ended:
                raise GossipError("gossip ended: the node stopped")
            await self._read(IDLE_S)
        # Only what there is room for: one event can be several notifications, and a storm of them
        # waits in the node, where its number is bounded.
        for _ in range(limit - len(self._told)):
            if not await self._read(0.0):
                break
        self._collect()
        return [self._told.popleft() for _ in range(min(limit, len(self._told)))]

    def _collect(self) -> None:
        self._told.extend(self._roster.changes())
        if not self._ended and (life := self._cluster.local.incarnation) > self._life:
            self._life = life
            self._told.extend(self._roster.renewed())

    async def _read(self, patience_s: float) -> bool:
        """Read one event; False when none came in time or none will come."""
        if self._ended:
            return False
        if self._next is None:
            self._next = asyncio.create_task(self._event())
            await asyncio.sleep(0)  # one that is there is read without a wait
        if not self._next.done():
            # The read goes on over a timeout: one that is cancelled could take its event along.
            await asyncio.wait({self._next}, timeout=patience_s)
        if not self._next.done():
            return False
        event, self._next = self._next.result(), None
        if event is None:
            self._ended = True
            self._told.append(Defunct())
        else:
            self._note(event)
        return event is not None

    async def _event(self) -> kinship.Event | None:
        import kinship

        try:
            async for event in self._events:
                return event
        except kinship.KinshipClosed:
            return None
        return None

    def _note(self, event: kinship.Event) -> None:
        import kinship

        match event:
            case kinship.MemberJoined(member=member) | kinship.MemberUpdated(member=member):
                node = self._signed(member)
                if node is not None and member.state in (kinship.State.ALIVE, kinship.State.SUSPECT):
                    self._roster.joined(member.name, node)
            case kinship.MemberDead(member=member) | kinship.MemberLeft(member=member):
                self._unsigned.pop(member.name, None)
                self._roster.gone(member.name)
            case kinship.EventsLost(count=count):
                self.lost += count
                self._view()
            case _:
                pass  # a suspect may object, a message is not for us

    def _view(self) -> None:
        nodes = {each.name: self._signed(each) for each in self._cluster.members()}
        self._unsigned = {name: node for name, node in self._unsigned.items() if name in nodes}
        self._roster.seen({name: node for name, node in nodes.items() if node is not None})

    def _signed(self, member: kinship.Member) -> Identity | None:
        """Who the member is; None while it has not said so, or has not signed it.

        Who has not signed takes nobody's place.  It is told of, once, past the roster: it is the
        record that refuses.
        """
        node = _identity(member)
        if node is None or member.name == self._cluster.local.name:
            return None
        if self._claims.heard(node.instance, node.contract, member.meta.get("sig", "")):
            return node
        if self._unsigned.get(member.name) != node:
            self._unsigned[member.name] = node
            self._told.append(MemberUp(node))
        return None

    async def cancelled(self) -> None:
        """Give up the read that is under way."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})


def _identity(member: kinship.Member) -> Identity | None:
    shard, instance = member.meta.get("shard", ""), member.meta.get("instance", "")
    if not instance or _SHARD.fullmatch(shard) is None or int(shard) > SHARD_MAX:
        return None
    return Identity(member.addr, int(shard), instance, member.epoch)


def _name(instance: str) -> str:
    return f"{instance[:NAME_PART]}.{token_hex(6)}"
