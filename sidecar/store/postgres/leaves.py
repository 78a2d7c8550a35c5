"""Which leaf of the hash-partitioned tables an execution falls to, as PostgreSQL decides it.

A statement about several executions is sent once for each leaf it touches, so that each goes to
one partition and, where partitions stand on several servers, to one server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from sidecar.core.shards import hashint8extended

K = TypeVar("K")

_SEED: Final = 0x7A5B22367996DCFD
_ADDED: Final = 0x49A0F4DD15E5A8E3
_U64: Final = 2**64 - 1


def leaf(execution_id: int, partitions: int) -> int:
    """The remainder that `FOR VALUES WITH (MODULUS partitions, REMAINDER …)` names."""
    # hash_combine64 of nothing and the column's hash.
    return (hashint8extended(execution_id, _SEED) + _ADDED & _U64) % partitions


def by_leaf(execution_ids: Iterable[int], partitions: int) -> dict[int, list[int]]:
    """The executions by leaf, in their order."""
    found: dict[int, list[int]] = {}
    for execution_id in execution_ids:
        found.setdefault(leaf(execution_id, partitions), []).append(execution_id)
    return found
