"""Decide what is an operation of the fleet's record, what it comes to, and who is who.

The record is a log of operations; what a worker is now is its latest one, and one that says
deregister, or none at all, is nobody.  A heartbeat goes on from a live one only, so nothing
that was forgotten comes back by it.  No clock is read: a quiet worker is still registered.
Source: spec 6.4, 7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol, TypeGuard

from sidecar.core.event import ID_MAX

WORKER_ID_MAX_BYTES: Final = 256
CONTRACT_MAX_BYTES: Final = 4096
INCARNATIONS: Final = 2**64
SHARD_MAX: Final = 2**32 - 1

_ALPHABET: Final = re.compile(r"[A-Za-z0-9_.:-]+", re.ASCII)
_CONTRACT: Final = re.compile(r"shard=(0|[1-9][0-9]{0,9});addr=([^;]*)", re.ASCII)


class OpKind(StrEnum):
    """What an operation does."""

    REGISTER = "register"
    HEARTBEAT = "heartbeat"
    DEREGISTER = "deregister"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation, not yet numbered.

    `heartbeat`: how many heartbeats its worker has had, the registration included; one that
    leaves carries its last.  `contract`: what the worker says of itself; empty when it leaves.
    """

    worker_id: str
    kind: OpKind
    heartbeat: int
    contract: str


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that is registered."""

    worker_id: str
    contract: str
    heartbeat: int


class OpFault(StrEnum):
    """Why an operation is none, in the order in which it is asked."""

    NO_ID = "the worker id is empty"
    LONG_ID = f"the worker id is longer than {WORKER_ID_MAX_BYTES} bytes"
    DOTS = "the worker id is made of dots"
    ALPHABET = "the worker id has other characters than letters, digits, - _ . :"
    LONG_CONTRACT = f"the contract is longer than {CONTRACT_MAX_BYTES} bytes"
    HEARTBEAT = "the heartbeat is out of range; a live worker's begins at 1"


def validate_op(op: Op) -> OpFault | None:
    """The first rule that the operation breaks, None for a valid one.

    A dot alone is a legal character, so the alphabet would let `..` in; that is a rule of its own.
    """
    worker_id = _bytes(op.worker_id)
    if not worker_id:
        return OpFault.NO_ID
    if len(worker_id) > WORKER_ID_MAX_BYTES:
        return OpFault.LONG_ID
    if not op.worker_id.strip("."):
        return OpFault.DOTS
    if _ALPHABET.fullmatch(op.worker_id) is None:
        return OpFault.ALPHABET
    if len(_bytes(op.contract)) > CONTRACT_MAX_BYTES:
        return OpFault.LONG_CONTRACT
    least = 0 if op.kind is OpKind.DEREGISTER else 1
    if not least <= op.heartbeat <= ID_MAX:
        return OpFault.HEARTBEAT
    return None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# Operations upon the latest one


def registered(worker_id: str, contract: str) -> Op:
    """The operation that registers, for the first time or anew: the count begins at 1."""
    return Op(worker_id, OpKind.REGISTER, 1, contract)


def beaten(latest: Op | None) -> Op | None:
    """The heartbeat that follows; None when there is nobody to beat."""
    if not is_live(latest):
        return None
    return replace(latest, kind=OpKind.HEARTBEAT, heartbeat=latest.heartbeat + 1)


def deregistered(latest: Op | None) -> Op | None:
    """The operation that ends a registration; None when there is none."""
    if not is_live(latest):
        return None
    return replace(latest, kind=OpKind.DEREGISTER, contract="")


def is_live(latest: Op | None) -> TypeGuard[Op]:
    """Whether a worker with this latest operation is registered."""
    return latest is not None and latest.kind is not OpKind.DEREGISTER


def fold(ops: Iterable[Op]) -> dict[str, Op]:
    """The latest operation of every worker; `ops` in the order of their numbers."""
    return {op.worker_id: op for op in ops}


def live(latest: Iterable[Op], *, since: int = 0) -> list[Worker]:
    """The registered ones with at least `since` heartbeats, by id."""
    workers = (Worker(op.worker_id, op.contract, op.heartbeat) for op in latest if is_live(op))
    return sorted((w for w in workers if w.heartbeat >= since), key=lambda worker: worker.worker_id)


# Who may say so


@dataclass(frozen=True, slots=True)
class Unauthorised:
    """An operation that its origin does not stand behind; `why` names the worker it claims."""

    why: str


class OpOrigin(Protocol):
    """Who answers for operations; asked for each valid one before anything is written."""

    def authorize(self, op: Op) -> Unauthorised | None:
        """None: the operation may be recorded."""
        ...


class TrustedLocalOrigin:
    """This process itself: every valid operation is its own.  Right for nobody else's."""

    def authorize(self, op: Op) -> Unauthorised | None:
        return None


# Who is who


@dataclass(frozen=True, slots=True)
class Identity:
    """A node of the fleet: where it listens, what it works on, what it is called, which life it is in.

    `addr`: `ip:port`, empty for one that listens to nobody.  `instance` is its worker id.
    """

    addr: str
    shard: int
    instance: str
    incarnation: int = 0

    @property
    def contract(self) -> str:
        """What is recorded of it."""
        return f"shard={self.shard};addr={self.addr}"

    def renewed(self) -> Identity:
        """The same node in its next life."""
        return replace(self, incarnation=(self.incarnation + 1) % INCARNATIONS)

    def wins(self, other: Identity) -> bool:
        """Whether of two that claim one address this one has it: only the newer life.

        Equal is no win.  The other way round a node that came back would be turned away for ever.
        """
        return self.incarnation > other.incarnation


@dataclass(frozen=True, slots=True)
class Place:
    """What a contract says: a shard, and an address or none."""

    shard: int
    addr: str | None


def place_of(contract: str) -> Place | None:
    """What the contract says; None for a text that is no contract of an `Identity`."""
    found = _CONTRACT.fullmatch(contract)
    if found is None or int(found[1]) > SHARD_MAX:
        return None
    return Place(int(found[1]), found[2] or None)
