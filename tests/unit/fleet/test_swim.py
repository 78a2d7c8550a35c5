"""What a node of the protocol tells of is told on: in bounds, and by whoever signed it.

The cluster is scripted, with the package's own values.  Source: spec 7; ADR 0025.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sidecar.core.membership import Identity, registered
from sidecar.errors import GossipError
from sidecar.fleet.notification import MemberDown, MemberUp, Notification, Rejoin
from sidecar.fleet.origin import Claims
from sidecar.fleet.roster import Roster
from sidecar.fleet.swim import Endpoint, KinshipSource, configured, gossiping
from tests.support.gossip import KEY, OTHER_KEY

kinship = pytest.importorskip("kinship", reason="the extra gossip is not installed")

OWN = Identity("h:1", 0, "own", 10)


def member(claims: Claims, node: Identity, life: str, **said: str) -> Any:
    meta = {
        "instance": node.instance,
        "shard": str(node.shard),
        "sig": claims.sign(node.instance, node.contract),
    }
    return kinship.Member(life, node.addr, kinship.State.ALIVE, 1, {**meta, **said}, node.incarnation)


class Cluster:
    """A node whose view is given; its counters stand still."""

    def __init__(self, *members: Any) -> None:
        self.local = kinship.Member("own.1", OWN.addr, kinship.State.ALIVE, 1)
        self.there = list(members)

    def members(self) -> list[Any]:
        return [self.local, *self.there]


class Events:
    """What the node tells, as fast as it is read; then nothing."""

    def __init__(self, *events: Any) -> None:
        self._events = list(events)

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Any:
        if not self._events:
            await asyncio.Event().wait()
        return self._events.pop(0)

    def left(self) -> int:
        return len(self._events)


def source(claims: Claims, cluster: Cluster, events: Events) -> KinshipSource:
    given: tuple[Any, Any] = (cluster, events)
    return KinshipSource(*given, Roster(OWN), claims)


@pytest.mark.parametrize("order", [1, -1], ids=["older_first", "newer_first"])
async def test_of_two_lives_in_one_view_the_newer_one_is_signed_whatever_came_last(order: int) -> None:
    """Who joins after a peer was killed and came back elsewhere finds both in the first view."""
    claims = Claims(KEY.encode())
    older, newer = Identity("h:2", 0, "b", 10), Identity("h:3", 0, "b", 11)
    lives = [member(claims, older, "b.1"), member(claims, newer, "b.2")][::order]
    told = await source(claims, Cluster(*lives), Events()).take(64)
    assert [each for each in told if isinstance(each, MemberUp)] == [MemberUp(newer)]
    assert claims(registered(newer.instance, newer.contract)), "the record would refuse who is there"


def renames(claims: Claims, count: int, places: int) -> list[Any]:
    """At each address in turn a newer node in the place of the last one: two notifications an event."""
    nodes = [Identity(f"h:{n % places + 2}", 0, f"n{n}", n) for n in range(count)]
    return [kinship.MemberJoined(member(claims, node, f"{node.instance}.1")) for node in nodes]


def forgeries(claims: Claims, count: int) -> list[Any]:
    """A node that says something else of itself each time, and signs none of it."""
    one = member(claims, Identity("h:2", 0, "b", 1), "b.1")
    meta = [{**one.meta, "shard": str(n), "sig": "no"} for n in range(count)]
    return [kinship.MemberUpdated(replace(one, meta=each), {}) for each in meta]


async def test_what_waits_to_be_told_is_bounded_however_fast_it_comes() -> None:
    """More is not read than is taken: what comes too fast is lost by the node, which keeps a bound."""
    claims, limit = Claims(KEY.encode()), 8
    for storm in (renames(claims, 1000, limit), forgeries(claims, 1000)):
        feed = source(claims, Cluster(), Events(*storm))
        takes, ahead = 0, 0
        while len(await feed.take(limit)) == limit:
            takes += 1
            ahead = max(ahead, len(feed._told))
        assert takes > 100, "the storm was long"
        assert ahead <= 2 * limit
        await feed.cancelled()


async def test_whoever_signs_nothing_is_told_of_at_every_change() -> None:
    """In their order, past the roster: it is the record that refuses."""
    claims, limit = Claims(KEY.encode()), 8
    feed = source(claims, Cluster(), Events(*forgeries(claims, 50)))
    told: list[Notification] = []
    while len(part := await feed.take(limit)) == limit:
        told += part
    assert [each.node.shard for each in [*told, *part] if isinstance(each, MemberUp)] == list(range(50))
    await feed.cancelled()


async def test_everything_is_told_in_its_order_in_parts_of_any_size() -> None:
    claims = Claims(KEY.encode())
    nodes = [Identity(f"h:{n + 2}", 0, f"n{n}", 1) for n in range(5)]
    members = [member(claims, node, f"{node.instance}.1") for node in nodes]
    events = [each(m) for m in members for each in (kinship.MemberJoined, kinship.MemberLeft)]
    for limit in (1, 2, 3):
        feed = source(claims, Cluster(), Events(*events, *map(kinship.MemberJoined, members)))
        told: list[Notification] = []
        while len({n.node.instance for n in told if isinstance(n, MemberUp)}) < len(nodes):
            part: Sequence[Notification] = await feed.take(limit)
            assert len(part) <= limit
            told += part
        assert told[0] == Rejoin(OWN)
        up: set[str] = set()
        for each in told:
            match each:
                case MemberUp(node):
                    up.add(node.instance)
                case MemberDown(node):
                    up.remove(node.instance)
                case _:
                    pass
        await feed.cancelled()


async def test_a_failure_of_the_package_is_gossip_s_and_ends_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = configured(Endpoint("127.0.0.1:0", (), (KEY,), {"max_meta_bytes": 16}), "a")
    with pytest.raises(GossipError, match="gossip ended"):
        async with gossiping(config, Identity("", 0, "a"), Claims(KEY.encode())):
            pass


def test_every_key_of_the_fleet_is_given_to_the_node_the_first_one_seals() -> None:
    both = ((KEY, OTHER_KEY), (OTHER_KEY, KEY))
    ids = [configured(Endpoint("127.0.0.1:0", (), keys), "a").key_ids for keys in both]
    assert len(ids[0]) == 2
    assert ids[0] == ids[1][::-1]
    assert KEY not in repr(Endpoint("127.0.0.1:0", (), (KEY,)))
