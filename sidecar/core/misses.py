"""Notice that the observer no longer sees events.

A row that anything but the live lane was the first to write must be emitted by the live lane
too: by the poll that was under way, or by the next one that begins after the write, if the row's
created_at lies in that poll's range.  One that is not was missed.

Judging by a log read instead would accuse a healthy lane that is only a poll behind.  This file
keeps the list and knows no rows but those it is told.  Times named `_at` are the store's clock,
`created` is the row's own, `floor` the poll's; all microseconds.  Source: spec 4.5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

Key = tuple[int, int]
"""(execution_id, event_id)"""

WATCHED_MAX: Final = 65_536
"""More than these are not watched: bounds memory only."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A row somebody else wrote first.  `created` None: it cannot be told, so nothing is asked."""

    written_at: int
    created: int | None
    epoch: str | None


class WatchList:
    """Rows whose emission by the live lane is awaited."""

    def __init__(self) -> None:
        self._rows: dict[Key, Watched] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def watch(self, key: Key, row: Watched) -> None:
        self._rows[key] = row
        for oldest in tuple(islice(self._rows, max(0, len(self._rows) - WATCHED_MAX))):
            del self._rows[oldest]

    def emitted(self, keys: Iterable[Key]) -> None:
        """The live lane has handed these over, stored or not."""
        for key in keys:
            self._rows.pop(key, None)

    def clear(self) -> None:
        """Nothing is awaited any more."""
        self._rows.clear()

    def polled(self, *, began_at: int, floor: int, epoch: str) -> list[Key]:
        """A live poll that began at `began_at` was taken whole: the rows it should have shown.

        Args:
            floor: The least created_at that the poll's range surely includes.

        What this poll could not show is no longer awaited: it was outside the range, or of an
        epoch that has ended and may have lost it.
        """
        asked = {key: row for key, row in self._rows.items() if row.written_at < began_at}
        for key in asked:
            del self._rows[key]
        return [key for key, row in asked.items() if _was_in_range(row, floor, epoch)]


def _was_in_range(row: Watched, floor: int, epoch: str) -> bool:
    return row.epoch == epoch and row.created is not None and row.created >= floor
