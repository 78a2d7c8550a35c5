"""Rows that were delivered and are not stored, and which versions of a row were seen before.

All of it lives in memory and is changed only after the commit that counted it, before the next
transaction begins; the partition's `held` says after a restart that something is missing here.
How many rows may wait is `core.settle`'s to decide.  Source: spec 2.12 steps 1, 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
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
        self._forgot = False

    def forgot(self) -> bool:
        """Whether versions were forgotten since the last time this was asked."""
        forgot, self._forgot = self._forgot, False
        return forgot

    def of(self, execution_id: int) -> Mapping[int, TailRow]:
        """The waiting rows of one execution by event id."""
        return self._pools.get(execution_id, {})

    def news(self, rows: Iterable[TailRow]) -> list[TailRow]:
        """The rows of a batch that no lane has delivered yet, each key once, in its last version.

        Of a row that was inserted and changed since the last look the lane `wal` shows both.
        """
        news: dict[Key, TailRow] = {}
        for row in rows:
            key = row.event.execution_id, row.event.event_id
            earlier = news.pop(key, None)
            if earlier is None and self.knows(row):
                self.learn(row)
                continue
            told = self.told(row)
            again = earlier is None or version(earlier) == version(row)
            news[key] = told if again else replace(told, xid=None)
        return list(news.values())

    def knows(self, row: TailRow) -> bool:
        """Whether this version of the row was delivered before, by another lane.

        Each lane hands a row over once; one that is not stored would count once a lane.  Of a
        transaction that changed it twice the lane `wal` may show both versions, in two pieces.
        """
        pooled = self.of(row.event.execution_id).get(row.event.event_id)
        return self._known(row) == version(row) and (pooled is None or pooled.event == row.event)

    def told(self, row: TailRow) -> TailRow:
        """The row, without its xid where another version was delivered before: that is an update's."""
        known = self._known(row)
        return row if known is None or known == version(row) else replace(row, xid=None)

    def _known(self, row: TailRow) -> Version | None:
        event = row.event
        pooled = self.of(event.execution_id).get(event.event_id)
        if pooled is not None:
            return version(pooled)
        return self._refused.get((event.execution_id, event.event_id))

    def learn(self, row: TailRow) -> None:
        """Take the position of a commit from a row that waits here without one: the WAL came second."""
        pool = self._pools.get(row.event.execution_id, {})
        pooled = pool.get(row.event.event_id)
        if row.commit_lsn is not None and pooled is not None and pooled.commit_lsn is None:
            pool[row.event.event_id] = replace(pooled, commit_lsn=row.commit_lsn)

    def keep(self, pools: Mapping[int, Mapping[int, TailRow]], refused: Mapping[Key, Version]) -> None:
        """Replace the pools of some executions; `refused` are row versions that found no place."""
        for i, pool in pools.items():
            before = self._pools.pop(i, {})
            if pool:
                self._pools[i] = dict(pool)
            self.rows += len(pool) - len(before)
        self._refused |= refused
        for key in tuple(islice(self._refused, max(0, len(self._refused) - REFUSED_KEYS_MAX))):
            self._forgot = True
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
