"""Which executions fall to which sidecar: one rule, in Postgres's words and in ours.

An execution's shard is PostgreSQL's `hashint8extended(execution_id, 0)`, a signed 64-bit number,
modulo the count of shards, never negative.  Every statement that follows, sweeps, counts, sums or
lists the log takes its condition from here; what is asked by name (a list of execution ids) is
not filtered.  Source: design 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidecar.errors import invariant

_U32: Final = 0xFFFFFFFF
_START: Final = (0x9E3779B9 + 4 + 3923095) & _U32


@dataclass(frozen=True, slots=True)
class Shard:
    """Number `index` of `count` shards; both are in the scope of every saved horizon."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        invariant(0 <= self.index < self.count, "a shard's index lies below the count")

    def __str__(self) -> str:
        return f"{self.index} of {self.count}"

    def owns(self, execution_id: int) -> bool:
        """Whether an execution falls to this shard."""
        return self.count == 1 or shard_of(execution_id, self.count) == self.index

    def filter_sql(self, column: str) -> str:
        """The same as a condition on a bigint column, to stand behind others; empty for a single shard."""
        if self.count == 1:
            return ""
        # % keeps the sign of a negative hash.
        hashed = f"hashint8extended({column}, 0) % {self.count}"
        return f" and ({hashed} + {self.count}) % {self.count} = {self.index}"


def shard_of(execution_id: int, count: int) -> int:
    """The index of the shard an execution falls to."""
    return hashint8extended(execution_id) % count


def hashint8extended(value: int, seed: int = 0) -> int:
    """PostgreSQL's hashint8extended(value, seed), signed as Postgres shows it.

    Args:
        value: Within -2^63 and 2^63 - 1.
        seed: Within 0 and 2^64 - 1.
    """
    low, high = value & _U32, value >> 32 & _U32
    # The halves fold so that the same number hashes alike as int2, int4 and int8.
    return _hash_uint32(low ^ (high if value >= 0 else high ^ _U32), seed)


def _hash_uint32(k: int, seed: int) -> int:
    """hash_bytes_uint32_extended(k, seed): the last round of Jenkins's lookup3 over one word."""
    a = b = c = _START
    if seed:
        a, b, c = _mixed((a + (seed >> 32)) & _U32, (b + seed) & _U32, c)
    a = (a + k) & _U32
    c = ((c ^ b) - _rotated(b, 14)) & _U32
    a = ((a ^ c) - _rotated(c, 11)) & _U32
    b = ((b ^ a) - _rotated(a, 25)) & _U32
    c = ((c ^ b) - _rotated(b, 16)) & _U32
    a = ((a ^ c) - _rotated(c, 4)) & _U32
    b = ((b ^ a) - _rotated(a, 14)) & _U32
    c = ((c ^ b) - _rotated(b, 24)) & _U32
    return (b << 32 | c) - (b >> 31 << 64)


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    """One round of lookup3's mix."""
    for first, second, third in ((4, 6, 8), (16, 19, 4)):
        a, c = ((a - c) ^ _rotated(c, first)) & _U32, (c + b) & _U32
        b, a = ((b - a) ^ _rotated(a, second)) & _U32, (a + c) & _U32
        c, b = ((c - b) ^ _rotated(b, third)) & _U32, (b + a) & _U32
    return a, b, c


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _U32
