"""A small chain is read where it is asked for, not in another thread.

A hundred rows from SQLite take less time than the two changes of thread around them.  What a
read in the caller's thread may cost is bounded: it waits for no lock, and it stops at ROWS rows
or LENGTH characters of body.  Whatever is longer or unusual, an error included, is answered with
None, and the ordinary connection reads it anew.  What is left is a disk that answers slowly:
some dozens of pages when the chain is in no cache.  Nothing in a running sidecar reads this way.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Final

from sidecar.errors import StoreError
from sidecar.store.connection import Row
from sidecar.store.failure import sqlite_errors
from sidecar.store.format import uri
from sidecar.store.place import Place

ROWS: Final = 256
LENGTH: Final = 512 * 1024
_LAST: Final = itemgetter(-1)
_PIECE: Final = 16
"""Rows between two looks at the length; the largest bodies seen have 300 kB."""


class Quick:
    """A connection that cannot write, used in the thread of the event loop.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._place = Place(path)
        with sqlite_errors():
            # Made in another thread, so that opening does not hold up the loop either.
            self._raw = sqlite3.connect(
                uri(path, "ro"), uri=True, isolation_level=None, timeout=0, check_same_thread=False
            )
            for pragma in ("query_only = ON", "mmap_size = 0"):
                self._raw.execute(f"PRAGMA {pragma}").fetchall()

    def rows(self, sql: str, execution_id: int) -> list[Row] | None:
        """All rows of one statement about one execution, if they are few and nothing is in the way.

        Args:
            sql: Its last column is a body or NULL.
        """
        found: list[Row] = []
        length = 0
        try:
            self._place.check()
            with closing(self._raw.execute(sql, (execution_id,))) as cursor:
                while piece := cursor.fetchmany(_PIECE):
                    found += piece
                    length += sum(map(len, filter(None, map(_LAST, piece))))
                    if len(found) > ROWS or length > LENGTH:
                        return None
        except (sqlite3.Error, StoreError, OverflowError):
            return None  # closed, busy, damaged, replaced, no 64-bit id: said by the other connection
        return found

    def close(self) -> None:
        with sqlite_errors():
            self._raw.close()
