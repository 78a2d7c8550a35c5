"""From one node's view of a SWIM cluster to the seven notifications.

A protocol tells of nodes by names of its own, one a life.  What is told on is who stands behind
them: of several lives that claim one address, or one instance, the newest has it; equal is no
win, whoever has it keeps it.  The view is compared with what was told before, and the difference
is told, so a whole view after lost events is no case of its own.  A node in the place of another
one at the same address is a rename, and then it is up: a record that never took the old name takes
no rename.  Nothing here waits, and nothing is known that was not told.
Source: spec 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cmp_to_key

from sidecar.core.membership import Identity
from sidecar.fleet.notification import Active, Idle, MemberDown, MemberUp, Notification, Rejoin, Rename


class Roster:
    """The peers that are alive, and those that were told of as up.

    Args:
        own: This node; its address and its instance are its own, whoever else claims them.
    """

    def __init__(self, own: Identity) -> None:
        self.own = own
        self._alive: dict[str, Identity] = {}
        self._told: dict[str, Identity] = {}

    def joined(self, name: str, node: Identity) -> None:
        """A peer is alive, or says something else of itself.  `name`: the protocol's."""
        self._alive[name] = node

    def gone(self, name: str) -> None:
        """A peer left or died."""
        self._alive.pop(name, None)

    def seen(self, nodes: Mapping[str, Identity]) -> None:
        """The whole view; who is not in it is not there."""
        self._alive = dict(nodes)

    def changes(self) -> list[Notification]:
        """What is different since the last call; those that come in front of those that go."""
        before, now = self._told, self._standing()
        fresh = [node for node in now.values() if before.get(node.instance) != node]
        leaving = {node.addr: node for node in before.values() if node.instance not in now}
        told: list[Notification] = [Active()] if now and not before else []
        for node in fresh:
            old = leaving.pop(node.addr, None)
            told += [MemberUp(node)] if old is None else [Rename(old, node), MemberUp(node)]
        told += [MemberDown(node) for node in leaving.values()]
        self._told = now
        return [*told, Idle()] if before and not now else told

    def renewed(self) -> list[Notification]:
        """This node raised its own life: the others had taken it for gone, or were about to."""
        self.own = self.own.renewed()
        return [Rejoin(self.own)]

    def _standing(self) -> dict[str, Identity]:
        """By instance.  Who wins over others chooses first, of equals who was told of: one answer."""
        addresses = {self.own.addr}
        standing = {self.own.instance: self.own}
        told_first = sorted(self._alive.values(), key=lambda node: self._told.get(node.instance) != node)
        for node in sorted(told_first, key=cmp_to_key(_in_turn)):
            if node.addr not in addresses and node.instance not in standing:
                addresses.add(node.addr)
                standing[node.instance] = node
        del standing[self.own.instance]
        return standing


def _in_turn(one: Identity, other: Identity) -> int:
    return other.wins(one) - one.wins(other)
