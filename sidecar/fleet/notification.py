"""What a membership protocol tells, seven things and no other.

Any protocol of the SWIM family can be the source.  A notification is an observation of one node;
what it comes to is decided by `sink`, and whether it is recorded by the store.  Source: spec 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from sidecar.core.membership import Identity


@dataclass(frozen=True, slots=True)
class MemberUp:
    """A peer is alive that was unknown or gone."""

    node: Identity
    label: ClassVar[str] = "member_up"


@dataclass(frozen=True, slots=True)
class MemberDown:
    """A peer is gone: it left, or it was suspected and did not object."""

    node: Identity
    label: ClassVar[str] = "member_down"


@dataclass(frozen=True, slots=True)
class Rename:
    """At one address a newer identity stands in the place of an older one."""

    old: Identity
    new: Identity
    label: ClassVar[str] = "rename"


@dataclass(frozen=True, slots=True)
class Rejoin:
    """This node renewed itself."""

    node: Identity
    label: ClassVar[str] = "rejoin"


@dataclass(frozen=True, slots=True)
class Active:
    """This node has peers."""

    label: ClassVar[str] = "active"


@dataclass(frozen=True, slots=True)
class Idle:
    """This node has no peer any more."""

    label: ClassVar[str] = "idle"


@dataclass(frozen=True, slots=True)
class Defunct:
    """This node takes no part any more."""

    label: ClassVar[str] = "defunct"


Notification = MemberUp | MemberDown | Rename | Rejoin | Active | Idle | Defunct
KINDS: Final = (MemberUp, MemberDown, Rename, Rejoin, Active, Idle, Defunct)


class Source(Protocol):
    """A membership protocol that runs."""

    async def take(self, limit: int) -> Sequence[Notification]:
        """What was told since the last call, at most `limit` in their order; waits for the first.

        Raises:
            GossipError: it runs no more; nothing that was told is lost.
        """
        ...
