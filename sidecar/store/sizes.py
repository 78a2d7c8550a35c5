"""How big a store is, and what room is left to it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sidecar.errors import StoreError


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes.  `free` None: who holds the disk does not tell."""

    used: int
    free: int | None
    wal: int


def sizes(path: Path) -> Sizes:
    """The database file, its write-ahead log, and what its file system has left.

    Raises:
        StoreError: the file or its folder is gone.
    """
    wal = path.with_name(path.name + "-wal")
    try:
        left = os.statvfs(path.parent)
        used, log = path.stat().st_size, wal.stat().st_size if wal.exists() else 0
    except OSError as error:
        raise StoreError(
            f"the store's file cannot be looked at: {error.strerror}",
            hint="put it back, or start again: a new store fills itself from the log",
        ) from None
    return Sizes(used, left.f_bavail * left.f_frsize, log)
