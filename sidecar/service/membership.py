"""Put the fleet together: the record, who answers for it, and gossip where it is configured.

Without a key nobody answers for a peer, and nothing is opened.  Source: spec 7.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sidecar.core.membership import OpOrigin
from sidecar.fleet.origin import Claims, GossipOrigin, OwnAnd, RejectUnsigned
from sidecar.fleet.sink import GossipSink
from sidecar.fleet.swim import Endpoint, configured, gossiping
from sidecar.service.fleet import OFF, Fleet, own_identity
from sidecar.service.gossip import GossipWatch
from sidecar.service.told import Instruments
from sidecar.settings import Settings, variable
from sidecar.store import ChainStore
from sidecar.store.runtime import RuntimeStore

NO_KEY: Final = "no_key"


@dataclass(frozen=True, slots=True)
class Membership:
    """`loops` run beside the line."""

    fleet: Fleet
    loops: tuple[Callable[[], Coroutine[Any, Any, None]], ...]


def membership(settings: Settings, store: ChainStore, instruments: Instruments) -> Membership:
    """This sidecar in the record of the fleet, and gossip if there is a place and a key for it.

    Raises:
        ConfigError: the name, the key or an address is not usable, or the package is missing.
    """
    own, runtime = own_identity(settings), RuntimeStore(store)
    keys = settings.gossip_keys()
    origin: OpOrigin = RejectUnsigned()
    watch: GossipWatch | None = None
    claims: Claims | None = None
    if keys:
        claims = Claims(*map(str.encode, keys))
        origin = GossipOrigin(claims)
    signed = runtime.with_origin(OwnAnd(own.instance, origin))
    fleet = Fleet(
        runtime,
        own,
        instruments.log,
        beating=signed,
        beat_s=settings.fleet_beat_s,
        gossip=lambda: _posture(settings, watch),
    )
    if settings.gossip_bind is not None and claims is not None:
        endpoint = Endpoint(str(settings.gossip_bind), settings.gossip_peers, keys)
        config = configured(endpoint, own.instance)
        watch = GossipWatch(
            GossipSink(signed, own.instance),
            partial(gossiping, config, own, claims),
            fleet.alone,
            instruments,
        )
        instruments.metrics.gossip_configured(True)
        return Membership(fleet, (fleet.run, watch.run))
    for given, missing in (("gossip_bind", "gossip_key_file"), ("gossip_key_file", "gossip_bind")):
        if getattr(settings, given) is not None:
            instruments.log.warning("gossip_is_off", variable=variable(given), missing=variable(missing))
    return Membership(fleet, (fleet.run,))


def _posture(settings: Settings, watch: GossipWatch | None) -> str:
    if watch is not None:
        return "up" if watch.up else "down"
    return OFF if settings.gossip_bind is None else NO_KEY
