"""Every exception of this program on one screen, by whose fault it is.

Findings (a fork, a divergence, a stale read) are values, never exceptions.  An exception
here says that somebody has to act: the operator, Postgres, our disk, or us.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn


class SidecarError(Exception):
    """A failure with a remedy.  `str()` is one line without secrets; `hint` says what to do."""

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(SidecarError):
    """The operator's: a setting, an argument, a gate."""

    exit_code = 2


class SourceError(SidecarError):
    """Postgres's: it cannot be reached, or will not let us read."""

    exit_code = 10


class SourceUnavailable(SourceError):
    """The connection failed or broke; trying again later may help."""

    retryable = True


class SourceContractError(SourceError):
    """A promise was broken: a column is gone, a right is missing, a standby instead of a primary."""


class SourceReplaced(SourceContractError):
    """Another table stands under the name: what was looked up at the start is no longer true.

    Trying again cannot help; the next start looks it up anew.
    """


class StoreError(SidecarError):
    """Our disk's: the chain store cannot be used."""

    exit_code = 20


class StoreBusy(StoreError):
    """Somebody else holds the database; trying again may help."""

    retryable = True


class StoreFull(StoreError):
    """The disk is full.  SQLite has rolled back; nothing was lost; free space and it goes on."""

    retryable = True


class StoreLocked(StoreError):
    """Another sidecar owns this store file."""


class StoreFenced(StoreError):
    """Another sidecar took this store over: nothing of this one is committed any more."""


class StoreFormatError(StoreError):
    """The store was written by another layout: refused, its marker untouched."""


class StoreCorrupt(StoreError):
    """The store contradicts itself; never continue."""


class PartitionUnreadable(StoreCorrupt):
    """What the store holds of one execution contradicts itself; the others can be read.

    It says nothing of that execution, and nothing about the store as a whole.
    """


class Invalid(StoreError):
    """A call's argument is not a chain event (bad id, write-once key taken).  No event was written."""


class OpRefused(StoreError):
    """Whoever is to answer for an operation of the fleet's record does not.  Nothing was written."""


class NotHead(StoreError):
    """An append named a predecessor that is not the head.  The head has not moved.

    `expected` is the id at the head (None: empty partition), `got` the one named.
    """

    def __init__(self, expected: int | None, got: int | None) -> None:
        super().__init__(f"append names predecessor {got}, the head is {expected}")
        self.expected = expected
        self.got = got


class GapAt(StoreError):
    """A chain names an event that is not stored.  `missing` is its id; nothing was changed."""

    def __init__(self, execution_id: int, missing: int) -> None:
        super().__init__(f"execution {execution_id}: event {missing} is missing")
        self.execution_id = execution_id
        self.missing = missing


class Forked(StoreError):
    """A replicated event meets another one under its key or in its place.  What stood there stays.

    `first` is the id that is stored, `second` the one that came (the same id: other content,
    or another place); `prev` is the predecessor that the second one names.
    """

    def __init__(self, execution_id: int, prev: int | None, first: int, second: int) -> None:
        super().__init__(f"execution {execution_id}: after {prev} stands {first}, replicated was {second}")
        self.execution_id = execution_id
        self.prev = prev
        self.first = first
        self.second = second


class GossipError(SidecarError):
    """The network's: this node takes no part in the fleet's gossip.  Trying again may help."""

    retryable = True


class InvariantError(SidecarError):
    """Our bug: not caught, not retried."""


def invariant(condition: object, message: str) -> None:
    """Raise InvariantError unless `condition` holds.  A bare assert would vanish under -O."""
    if not condition:
        broken(message)


def broken(message: str) -> NoReturn:
    """Raise InvariantError where no value can be right."""
    raise InvariantError(message)
