"""A stored row is absent from a log read: was the read old, the log cut, or the store written to?

The entry is a stored id that the log read lacks, whatever 2.7 or 2.8 made of that read.  One
re-read on the primary, begun after the store was observed, decides: a row once read as
committed is visible to every later read there, so what is still absent is gone from the log
or never stood in it.  Source: spec 3.4 step 3.

What populating again comes to when every row is explained is for `judge`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.core.authority import StoredEvent
from sidecar.core.due import SECOND
from sidecar.core.ports import EpochSpan

NAMED_MAX: Final = 8
FROM_THE_LOG: Final = frozenset({"log", "replicated"})
"""Origins of rows that a log read once returned, here or at the store this one replicates."""
CRASH_LOSS: Final = 60 * SECOND
"""Rows seen less than this before an epoch's last poll may be lost by its end.

Microseconds; far above what synchronous_commit = off can lose.
"""


@dataclass(frozen=True, slots=True)
class Explained:
    """Every row that was absent stands in the fresh read; the first one was old."""


@dataclass(frozen=True, slots=True)
class LogLost:
    """The server ended and took its last commits along; `event_ids` in exec_seq order."""

    event_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogPruned:
    """The log lost its beginning or all of it; the store's copy stays as it is."""


@dataclass(frozen=True, slots=True)
class SecondWriter:
    """Nothing explains the rows.  The first ids in exec_seq order, with the origin of each.

    `absent`: how many there are; `truncated`: `event_ids` was cut.  Origin `log`: our feed
    read the row from the log at that time; anything else: somebody else wrote it.
    """

    event_ids: tuple[int, ...]
    origins: tuple[str | None, ...]
    absent: int

    @property
    def truncated(self) -> bool:
        return self.absent > len(self.event_ids)


Resolution = Explained | LogLost | LogPruned | SecondWriter


def resolve(
    absent: Sequence[StoredEvent],
    fresh_ids: Collection[int],
    *,
    root: int,
    epochs: Sequence[EpochSpan],
    read_epoch: str | None,
) -> Resolution:
    """Say why stored rows were absent from a log read.

    Args:
        absent: The stored rows that were absent at the entry, in exec_seq order.
        fresh_ids: Every id of the one complete re-read; a set for long logs.
        root: The id at the first place of the stored chain.
        epochs: All epochs of the server that the store has seen.
        read_epoch: Of the re-read.  It runs, so every other one has ended, also before a poll met it.

    Source: spec 3.4 step 3, b before a.
    """
    still = tuple(row for row in absent if row.event.event_id not in fresh_ids)
    if not still:
        return Explained()
    if all(_fell_with_its_epoch(row, epochs, read_epoch) for row in still):
        return LogLost(tuple(row.event.event_id for row in still))
    if root not in fresh_ids and not _foreign(still[0]):
        return LogPruned()
    named = still[:NAMED_MAX]
    return SecondWriter(
        tuple(row.event.event_id for row in named), tuple(row.origin for row in named), len(still)
    )


def _foreign(row: StoredEvent) -> bool:
    """Whether somebody else wrote the row: a log cannot lose what was never read from it."""
    return row.origin not in FROM_THE_LOG


def _fell_with_its_epoch(row: StoredEvent, epochs: Sequence[EpochSpan], running: str | None) -> bool:
    if row.seen_at is None:
        return False
    span = _epoch_at(row.seen_at, epochs)
    if span is None or not _has_ended(span, epochs, running):
        return False
    return span.last_seen_at - row.seen_at < CRASH_LOSS


def _epoch_at(seen_at: int, epochs: Sequence[EpochSpan]) -> EpochSpan | None:
    """The epoch that was polled when a row was seen: the last one that had begun."""
    begun = [span for span in epochs if span.first_seen_at <= seen_at]
    return max(begun, key=lambda span: span.first_seen_at, default=None)


def _has_ended(span: EpochSpan, epochs: Sequence[EpochSpan], running: str | None) -> bool:
    if running is not None:
        return span.epoch != running
    return any(other.last_seen_at > span.last_seen_at for other in epochs)
