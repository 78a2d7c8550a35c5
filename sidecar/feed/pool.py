"""Rows that were delivered and are not stored, and which versions of a row were seen before.

All of it lives in memory and is changed only after the commit that counted it, before the next
transaction begins; the partition's `held` says after a restart that something is missing here.
How many rows may wait is `core.settle`'s to decide.  Source: spec 2.12 steps 1, 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from sidecar.core.horizon import TailRow
from sidecar.core.ports import ExecutionLog, Key

Version = tuple[int, str]
"""The raw xmin of a row and the epoch it was seen in: after a crash an xmin is used again."""

REFUSED_KEYS_MAX: Final = 65_536
"""Row versions remembered that were delivered and found no place: bounds memory only."""


class HeldBack:
    """The pools of all executions.  `rows`: how many rows wait in all of them together."""

    def __init__(self) -> None:
        self.rows = 0
        self._pools: dict[int, dict[int, TailRow]] = {}
        self._refused: dict[Key, Version] = {}

    def of(self, execution_id: int) -> Mapping[int, TailRow]:
        """The waiting rows of one execution by event id."""
        return self._pools.get(execution_id, {})

    def knows(self, row: TailRow) -> bool:
        """Whether this version of the row was delivered before, by another lane.

        Each lane hands a row over once; one that is not stored would count once a lane.
        """
        event = row.event
        pooled = self.of(event.execution_id).get(event.event_id)
        known = self._refused.get((event.execution_id, event.event_id)) if pooled is None else version(pooled)
        return known == version(row)

    def keep(self, pools: Mapping[int, Mapping[int, TailRow]], refused: Mapping[Key, Version]) -> None:
        """Replace the pools of some executions; `refused` are row versions that found no place."""
        for i, pool in pools.items():
            before = self._pools.pop(i, {})
            if pool:
                self._pools[i] = dict(pool)
            self.rows += len(pool) - len(before)
        self._refused |= refused
        for key in tuple(islice(self._refused, max(0, len(self._refused) - REFUSED_KEYS_MAX))):
            del self._refused[key]

    def drop(self, execution_id: int) -> None:
        """Empty the pool of one execution; its rows are remembered as refused."""
        pool = self.of(execution_id)
        self.keep({execution_id: {}}, {(execution_id, key): version(row) for key, row in pool.items()})


def version(row: TailRow) -> Version:
    return row.xmin, row.epoch


def still_in_log(pool: Mapping[int, TailRow], log: ExecutionLog | None) -> Mapping[int, TailRow]:
    """The pool without rows that a later complete log read lacks.

    A crash of the server or somebody's DELETE took them: waiting for them would never end.
    """
    if not pool or log is None or log.events is None or not log.read.whole:
        return pool
    present = {event.event_id for event in log.events}
    began = log.read.began_at
    return {key: row for key, row in pool.items() if key in present or row.seen_at >= began}
