"""Decide whether a path still names the file that was opened.

A file that is removed or replaced under a running program stays open, and SQLite would go on
committing into something that nobody can find any more.
"""

from __future__ import annotations

import os
from pathlib import Path

from sidecar.errors import StoreError


class Place:
    """The file that `path` names now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _named(path)

    def check(self) -> None:
        """Raises:
        StoreError: the path names another file by now, or none.
        """
        if self._file is None or _named(self._path) != self._file:
            raise StoreError(
                f"the store {self._path} was removed or replaced while it was open",
                hint="start again: what is missing in the file that stands there is read from the log",
            )


def _named(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
