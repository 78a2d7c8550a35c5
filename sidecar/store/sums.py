"""The sums of stored chains, recomputed from their rows and never from a record of them.

Each call has a connection of its own that cannot write, in a thread of its own, and one short
snapshot: the connections that feed and lanes wait for are left alone, and no checkpoint waits
for long.  Source: design 3.4.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeVar

from sidecar.core.authority import NO_JOINS
from sidecar.core.event import Event
from sidecar.core.rejoin import predecessors
from sidecar.core.sums import StoredRow, StoredSums, stored_sums
from sidecar.store import joins
from sidecar.store.connection import Row, finished
from sidecar.store.failure import sqlite_errors
from sidecar.store.format import uri
from sidecar.store.reads import EXECUTIONS

T = TypeVar("T")

_COLUMNS: Final = "exec_seq, execution_id, event_id, prev_event_id, parent_execution_id, event_type, body"
BETWEEN: Final = (
    f"SELECT {_COLUMNS} FROM event WHERE execution_id BETWEEN ? AND ? ORDER BY execution_id, exec_seq"
)
AMONG: Final = (
    f"SELECT {_COLUMNS} FROM event WHERE execution_id IN (SELECT value FROM json_each(?))"
    " ORDER BY execution_id, exec_seq"
)
STARTS: Final = (
    "SELECT execution_id, event_id, prev_event_id, parent_execution_id, event_type, body FROM event"
    " WHERE exec_seq = 1 AND execution_id IN (SELECT value FROM json_each(?))"
)
COUNTS: Final = (
    "SELECT x.execution_id, (SELECT count(*) FROM event AS e INDEXED BY event_identity"
    f" WHERE e.execution_id = x.execution_id) FROM ({EXECUTIONS}) AS x"
)


class StoreSums:
    """`core.ports.StoredSummer` over the store file at `path`, which must exist."""

    def __init__(self, path: Path, *, rejoining: bool = False) -> None:
        self._path = path
        self._rejoining = rejoining

    async def counts(self, low: int, high: int, limit: int) -> list[tuple[int, int]]:
        """(execution_id, event rows) of the first `limit` executions of a range, ascending.

        An execution of which only a record is left has no rows.
        """
        return await self._read(lambda store: list(store.execute(COUNTS, (low, high, limit))))

    async def between(self, low: int, high: int) -> dict[int, StoredSums]:
        """The sums of every execution with rows and low <= execution_id <= high."""
        return await self._summed(BETWEEN, joins.BETWEEN, (low, high))

    async def of(self, execution_ids: Collection[int]) -> dict[int, StoredSums]:
        """The same for those of some executions that have rows."""
        return await self._summed(AMONG, joins.AMONG, (json.dumps(list(execution_ids)),))

    async def _summed(self, rows: str, kept: str, parameters: tuple[object, ...]) -> dict[int, StoredSums]:
        def summed(store: sqlite3.Connection) -> dict[int, StoredSums]:
            if not self._rejoining:
                return _sums(store.execute(rows, parameters), {})
            store.execute("BEGIN")  # the rows and what joins them, of one instant
            found = joins.grouped([_text(row) for row in store.execute(kept, parameters)])
            joined = {execution_id: predecessors(each) for execution_id, each in found.items()}
            return _sums(store.execute(rows, parameters), joined)

        return await self._read(summed)

    async def starts(self, execution_ids: Collection[int]) -> dict[int, Event]:
        """The event at the first place of those that have one."""
        ids = json.dumps(list(execution_ids))
        return await self._read(lambda store: {row[0]: _event(row) for row in store.execute(STARTS, (ids,))})

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await finished(asyncio.create_task(asyncio.to_thread(_run, self._path, work)))


def _run(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    with sqlite_errors(), closing(_opened(path)) as store:
        return work(store)


def _opened(path: Path) -> sqlite3.Connection:
    store = sqlite3.connect(uri(path, "ro"), uri=True, isolation_level=None, timeout=5.0)
    # A body goes into a hash: decoding it would only find out that somebody wrote no Unicode.
    store.text_factory = bytes
    store.execute("PRAGMA query_only = ON")
    return store


def _event(row: tuple[int, int, int | None, int | None, bytes, bytes]) -> Event:
    return Event(*row[:4], row[4].decode(errors="replace"), row[5].decode(errors="replace"))


def _text(row: Row) -> Row:
    """A row with the text of its epoch; this connection answers every text as bytes."""
    return tuple(each.decode(errors="replace") if isinstance(each, bytes) else each for each in row)


def _sums(rows: Iterable[StoredRow], joined: Mapping[int, Mapping[int, int]]) -> dict[int, StoredSums]:
    return {
        execution_id: stored_sums(group, joined.get(execution_id, NO_JOINS))
        for execution_id, group in groupby(rows, key=itemgetter(1))
    }
