"""A marker that is not ours is refused in words that name both versions and what to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.errors import StoreError, StoreFormatError
from sidecar.store import format as formats
from sidecar.store.format import Marker, gate, gate_all, initialise, judged, make_private, uri

NEW_STORE = "start a new store: the log is the source"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("", "an empty marker"),
        (" \n", "an empty marker"),
        (" x1 ", "'x1', which is no version,"),
        (b"1", "\"b'1'\", which is no version,"),
        ("y" * 60, f"'{'y' * 40}', which is no version,"),
        ("007", "version 7"),
        ("12345678901", "'12345678901', which is no version,"),
    ],
)
def test_a_refusal_says_what_stands_there(found: object, said: str) -> None:
    with pytest.raises(StoreFormatError) as error:
        judged(found)
    assert str(error.value) == f"the store's FORMAT_VERSION says {said} and this program reads version 1"
    assert error.value.hint == f"use the program that wrote it, or {NEW_STORE}"


def test_ours_matches_and_none_is_absent() -> None:
    assert (judged("1"), judged(" 0001\n"), judged(None)) == (Marker.MATCHED, Marker.MATCHED, Marker.ABSENT)


def test_a_database_of_somebody_else_and_one_of_an_earlier_build_are_named(tmp_path: Path) -> None:
    theirs, earlier = tmp_path / "theirs.db", tmp_path / "earlier.db"
    with closing(sqlite3.connect(theirs)) as connection, connection:
        connection.execute("CREATE TABLE t (x)")
    with pytest.raises(StoreFormatError) as error:
        gate(theirs)
    assert str(error.value) == f"{theirs} is an SQLite database, but no chain store"
    assert error.value.hint == "name another file"
    initialise(earlier)
    assert gate(earlier) is Marker.MATCHED
    with closing(sqlite3.connect(earlier)) as connection, connection:
        connection.execute("DROP TABLE tail_cursor")
    lacking = min(name for name in formats._layout_columns() if name.startswith("tail_cursor."))
    with pytest.raises(StoreFormatError) as error:
        gate(earlier)
    assert str(error.value) == f"{earlier} was made by an earlier build: it has no column {lacking}"
    assert error.value.hint == NEW_STORE


def test_what_cannot_be_looked_at_or_made_says_why(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 300)
    with pytest.raises(StoreError, match=r"x cannot be examined: File name too long$"):
        gate(long)
    with pytest.raises(StoreError, match=r"x cannot be made: File name too long$"):
        make_private(long)


def test_a_made_file_is_not_for_everybody_and_a_known_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    make_private(path)
    assert path.stat().st_mode & 0o777 & ~0o640 == 0
    path.write_bytes(b"x")
    make_private(path)
    assert path.read_bytes() == b"x"


def test_a_path_is_quoted_in_a_uri() -> None:
    assert uri(Path("/a b/c?d#e.db"), "ro") == "file:/a%20b/c%3Fd%23e.db?mode=ro"


def bare(path: Path, marker: str | None) -> Path:
    """A database with the three tables that are asked for, and a marker."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("meta (key, value)", "partition (x)", "event (x)"):
            connection.execute(f"CREATE TABLE {table}")
        connection.execute("INSERT INTO meta VALUES ('FORMAT_VERSION', ?)", (marker,))
    return path


def test_a_marker_without_a_value_is_an_empty_one_and_not_absent(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="says an empty marker and"):
        gate(bare(tmp_path / "null.db", None))
    with pytest.raises(StoreFormatError, match="made by an earlier build"):
        gate(bare(tmp_path / "three.db", "1"))


def test_a_replica_that_cannot_be_read_hides_none_of_another_layout(tmp_path: Path) -> None:
    away = tmp_path / "away.db"
    away.write_bytes(b"not a database, " * 300)
    new, other = tmp_path / "new.db", bare(tmp_path / "other.db", "2")
    gate_all(new, [away])
    with pytest.raises(StoreFormatError, match="says version 2"):
        gate_all(new, [away, other])
