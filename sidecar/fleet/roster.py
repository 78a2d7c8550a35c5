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

from collections.abc import Callable, Iterable, Mapping

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
        peers = (
            node
            for node in self._alive.values()
            if node.addr != self.own.addr and node.instance != self.own.instance
        )
        placed = self._newest(peers, lambda node: node.addr)
        return self._newest(placed.values(), lambda node: node.instance)

    def _newest(self, nodes: Iterable[Identity], claim: Callable[[Identity], str]) -> dict[str, Identity]:
        """By what they claim, those that have it."""
        having: dict[str, Identity] = {}
        for node in nodes:
            other = having.get(claim(node))
            stands = self._told.get(node.instance) == node
            if other is None or node.wins(other) or (stands and not other.wins(node)):
                having[claim(node)] = node
        return having
