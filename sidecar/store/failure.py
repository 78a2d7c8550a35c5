"""Decide whose fault a driver's exception is.

SQLite says what went wrong by number; its texts and some of its names change between
versions (a STRICT violation has no name in 3.40), so only the extended code is read.
No driver exception leaves this package.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import Final

from sidecar.errors import (
    Invalid,
    InvariantError,
    PartitionUnreadable,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
)

_SQLITE_IOERR_SHMSIZE: Final = 4874  # opening on a full disk; sqlite3 has no name for it in 3.11
_SQLITE_CONSTRAINT_DATATYPE: Final = 3091  # a STRICT column refused a value
_TAKEN: Final = frozenset({sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE})
_PRIMARY: Final = 0xFF
_UNDECODABLE: Final = "Could not decode to UTF-8"


def translated(error: sqlite3.Error) -> StoreError | InvariantError:
    """The exception of ours for a driver's; the cause is kept by the caller's `from`."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None and str(error).startswith(_UNDECODABLE):
        # The driver's own: SQLite read the row, its text is no UTF-8.  The message goes on with it.
        return PartitionUnreadable(
            "a stored text is no UTF-8",
            hint="the file was damaged or written by somebody else: keep it, rebuild the partition",
        )
    if code is None:
        return InvariantError(f"the SQLite driver was misused: {error}")
    match code & _PRIMARY:
        case sqlite3.SQLITE_FULL:
            return _full()
        case sqlite3.SQLITE_IOERR:
            return _full() if code == _SQLITE_IOERR_SHMSIZE else _broken_disk(code)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy("the store is busy", hint="another program holds it; it is tried again")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StoreCorrupt(
                f"the store is damaged or no SQLite database (SQLite code {code})",
                hint="keep the file, restore a copy or start a new store: the log is the source",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StoreError(
                "the store is read-only",
                hint="give the process write permission on file and folder (for reading, too), or copy it",
            )
        case sqlite3.SQLITE_CANTOPEN:
            return StoreError(
                "the store file cannot be opened", hint="check the path and the permissions of its folder"
            )
        case sqlite3.SQLITE_CONSTRAINT:
            return _constraint(code)
        case sqlite3.SQLITE_TOOBIG:
            return Invalid("a value is larger than SQLite stores")
        case _:
            # Our statements fit the tables that the start looked at: a file of others stands there now.
            return StoreError(
                f"SQLite failed with code {code}: {error}",
                hint="was the file cut or replaced meanwhile? noetl-chain store check; the log is the source",
            )


def _full() -> StoreFull:
    return StoreFull("the disk of the store is full", hint="free space; nothing was lost, it is tried again")


def _broken_disk(code: int) -> StoreError:
    return StoreError(f"the disk of the store fails (SQLite code {code})", hint="check the disk")


def _constraint(code: int) -> Invalid:
    if code in _TAKEN:
        return Invalid("the key is taken: events are write-once")
    if code == _SQLITE_CONSTRAINT_DATATYPE:
        return Invalid("a value has another type than its column")
    return Invalid(f"a value breaks a rule of its table (SQLite code {code})")


@contextmanager
def sqlite_errors() -> Iterator[None]:
    """Turn every driver exception of the block into ours.

    Raises:
        StoreError, InvariantError: see `translated`.
        Invalid: a value that SQLite cannot hold at all.
    """
    try:
        yield
    except sqlite3.Error as error:
        ours = translated(error)
        if isinstance(ours, PartitionUnreadable):
            # Its frames hold a cursor in mid-read, and with it an old snapshot that lets nobody of
            # this connection write any more, for as long as somebody looks at the exception.
            clear_frames(error.__traceback__)
            raise ours from None
        raise ours from error
    except (OverflowError, UnicodeEncodeError) as error:
        # The message of the latter repeats the value, which may be payload.
        raise Invalid("a value is no 64-bit integer or no Unicode text") from error
