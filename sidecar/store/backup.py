"""A copy of a store that a sidecar may be writing: one instant of it, in one file.

The copy is made from one snapshot, which lets the writer go on and keeps SQLite from starting
over at each of its commits; the write-ahead log grows meanwhile.  It gets its name only when it
is whole, checked and on the disk, so what stands under that name is a store.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from sidecar.errors import ConfigError, StoreCorrupt, StoreError
from sidecar.store.failure import sqlite_errors
from sidecar.store.format import Marker, gate, make_private, uri

PAGES_PER_STEP: Final = 1000
_COMPANIONS: Final = ("", "-wal", "-shm", "-journal")


def backup(source: Path, target: Path, moved: Callable[[int, int], None] = lambda done, total: None) -> int:
    """Copy the store at `source` to `target`; its size in bytes.

    Args:
        moved: Called after every step with the pages that are copied and that there are.

    Raises:
        ConfigError: `target` exists, or something of an earlier database stands beside it.
        StoreError: the store cannot be read, or the copy cannot be written or is not whole;
            nothing is left under either name.
    """
    _check_target(target)
    # Of this process alone: two copies to one name meet at the end, and one of them is refused.
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        _copied(source, part, moved)
        _check_copy(part)
        _to_disk(part)
        _named(part, target)
    finally:
        for suffix in _COMPANIONS:
            with suppress(FileNotFoundError):
                part.with_name(part.name + suffix).unlink()
    return target.stat().st_size


def _check_target(target: Path) -> None:
    if not target.parent.is_dir():
        raise ConfigError(f"the folder {target.parent} does not exist", hint="create it first")
    for suffix in _COMPANIONS:
        beside = target.with_name(target.name + suffix)
        if beside.exists() or beside.is_symlink():
            raise _exists(beside)


def _exists(path: Path) -> ConfigError:
    return ConfigError(f"{path} exists and is not overwritten", hint="name a file that does not exist")


def _copied(source: Path, part: Path, moved: Callable[[int, int], None]) -> None:
    def step(status: int, remaining: int, total: int) -> None:
        moved(total - remaining, total)

    make_private(part)
    with (
        sqlite_errors(),
        closing(sqlite3.connect(uri(source, "ro"), uri=True, isolation_level=None)) as store,
        closing(sqlite3.connect(uri(part, "rwc"), uri=True, isolation_level=None)) as copy,
    ):
        # The backup uses the transaction that is open; its own would end with every step, and
        # the next one begin again when the writer has committed in between.
        store.execute("BEGIN")
        store.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        store.backup(copy, pages=PAGES_PER_STEP, progress=step, sleep=0)
        # One file, which needs no other beside it to be read.
        copy.execute("PRAGMA journal_mode = DELETE")


def _check_copy(part: Path) -> None:
    with sqlite_errors(), closing(sqlite3.connect(uri(part, "ro"), uri=True)) as copy:
        found = copy.execute("PRAGMA integrity_check(1)").fetchall()
    if found != [("ok",)] or gate(part) is not Marker.MATCHED:
        raise StoreCorrupt(
            "the copy is not whole: so is the store", hint="noetl-chain store check says what is wrong"
        )


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise _unwritten(error) from error
    finally:
        os.close(descriptor)


def _named(part: Path, target: Path) -> None:
    try:
        os.link(part, target)  # unlike a rename it never replaces what came in between
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without hard links
        if target.exists():
            raise _exists(target) from None
        try:
            part.rename(target)
        except OSError as error:
            raise _unwritten(error) from error
    _to_disk(target.parent)


def _unwritten(error: OSError) -> StoreError:
    return StoreError(f"the copy cannot be written: {error.strerror}", hint="check the disk it goes to")
