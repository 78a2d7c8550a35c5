"""Decide whether a file is a chain store of this layout, before anything else in it is read.

The marker FORMAT_VERSION is written once, with the layout, and never overwritten.  Any other
number, an empty or an unreadable one refuses; a failed read is a failure, never "new".  An
incompatible edit of the layout and the next number belong in one commit.  Source: spec 2.2.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sidecar.errors import StoreError, StoreFormatError
from sidecar.sql import scripts
from sidecar.store.failure import sqlite_errors

FORMAT_VERSION: Final = 1
_COLUMNS: Final = (
    "SELECT t.name || '.' || c.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c"
    " WHERE t.type = 'table'"
)
_U32 = re.compile(r"[0-9]{1,10}", re.ASCII)


class Marker(Enum):
    """What the gate found."""

    ABSENT = "absent"
    MATCHED = "matched"


def judged(found: object) -> Marker:
    """Whether a marker's value is ours; None is an absent one.

    Raises:
        StoreFormatError: it is not; the message names both versions.
    """
    if found is None:
        return Marker.ABSENT
    text = found.strip() if isinstance(found, str) else repr(found)
    if _U32.fullmatch(text) is None:
        raise _refused(f"{text[:40]!r}, which is no version," if text else "an empty marker")
    if int(text) != FORMAT_VERSION:
        raise _refused(f"version {int(text)}")
    return Marker.MATCHED


def _refused(found: str) -> StoreFormatError:
    return StoreFormatError(
        f"the store's FORMAT_VERSION says {found} and this program reads version {FORMAT_VERSION}",
        hint="use the program that wrote it, or start a new store: the log is the source",
    )


def gate(path: Path) -> Marker:
    """Read the marker of the file at `path`, through a connection that cannot write.

    Raises:
        StoreFormatError: another layout, or a database that is no chain store.
        StoreError: the file cannot be read; it is not taken for a new one.
    """
    try:
        path.stat()
    except FileNotFoundError:
        return Marker.ABSENT
    except OSError as error:
        raise StoreError(f"the store {path} cannot be examined: {error.strerror}") from error
    with sqlite_errors(), closing(sqlite3.connect(uri(path, "ro"), uri=True, timeout=5.0)) as connection:
        tables = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        }
        if not tables:
            return Marker.ABSENT
        if not {"meta", "partition", "event"} <= tables:
            raise StoreFormatError(
                f"{path} is an SQLite database, but no chain store", hint="name another file"
            )
        row = connection.execute("SELECT value FROM meta WHERE key = 'FORMAT_VERSION'").fetchone()
        marker = judged("" if row is not None and row[0] is None else row and row[0])
        lacking = sorted(_layout_columns() - _columns(connection))
    if lacking:
        raise StoreFormatError(
            f"{path} was made by an earlier build: it has no column {lacking[0]}",
            hint="start a new store: the log is the source",
        )
    return marker


def _columns(connection: sqlite3.Connection) -> frozenset[str]:
    return frozenset(name for (name,) in connection.execute(_COLUMNS))


@cache
def _layout_columns() -> frozenset[str]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for script in scripts("store"):
            connection.executescript(script.text)
        return _columns(connection)


def gate_all(path: Path, replicas: Sequence[Path]) -> None:
    """Read the marker of a store and of its replicas before anything is written to any of them.

    One of another layout refuses them all; new and known ones may stand side by side.  A replica
    whose marker cannot be read is not taken for a new one: it is away, and whoever opens it
    meets the same failure.

    Raises:
        StoreFormatError: another layout.
        StoreError: the store itself cannot be read.

    Source: spec 2.2, replica rule.
    """
    gate(path)
    for replica in replicas:
        try:
            gate(replica)
        except StoreFormatError:
            raise
        except StoreError:
            continue


def initialise(path: Path) -> None:
    """Write layout and marker where there is none, in one transaction.

    Call with the store's lock held.  A file that already has the tables and lost only the
    marker gets the marker.

    Raises:
        StoreError: nothing was written.
    """
    make_private(path)
    with (
        sqlite_errors(),
        closing(sqlite3.connect(uri(path, "rwc"), uri=True, isolation_level=None)) as connection,
    ):
        connection.execute("PRAGMA page_size = 4096")
        # Only a new file can take it: pages that retention frees then go back to the disk.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        present = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        layout = "" if present else "".join(script.text for script in scripts("store"))
        # One script: the driver would commit before a script that begins no transaction.
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{layout}\n"
            f"INSERT INTO meta (key, value) VALUES ('FORMAT_VERSION', '{FORMAT_VERSION}');\nCOMMIT;"
        )


def make_private(path: Path) -> None:
    """Make the file, if there is none, so that others than owner and group cannot read it.

    It will hold payloads.  SQLite gives its write-ahead log the same rights.

    Raises:
        StoreError: it cannot be made.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))
    except OSError as error:
        raise StoreError(f"the store {path} cannot be made: {error.strerror}") from error


def uri(path: Path, mode: str) -> str:
    """The path as SQLite's URI.  `mode`: ro, rw (the file must exist) or rwc."""
    return f"file:{quote(str(path))}?mode={mode}"
