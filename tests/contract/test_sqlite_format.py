"""The format gate: decided first, on every way in, and the marker is never overwritten."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.errors import StoreCorrupt, StoreError, StoreFormatError
from sidecar.store import ChainStore
from sidecar.store.format import FORMAT_VERSION, Marker, gate, judged
from sidecar.store.projection import ProjectionStore
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain

MARKER = "SELECT value FROM meta WHERE key = 'FORMAT_VERSION'"


@pytest.fixture
async def made(sqlite: SqliteBackend) -> SqliteBackend:
    """A store with one chain in it, closed."""
    async with sqlite.open() as store:
        await store.populate_from_log(E, chain(1, 2))
    return sqlite


async def test_f01_absent_is_initialised(sqlite: SqliteBackend) -> None:
    assert gate(sqlite.path) is Marker.ABSENT
    async with sqlite.open():
        pass
    assert sqlite.run(MARKER) == [(str(FORMAT_VERSION),)]
    assert gate(sqlite.path) is Marker.MATCHED


async def test_f01_an_empty_file_is_a_new_store(sqlite: SqliteBackend) -> None:
    sqlite.path.touch()
    async with sqlite.open():
        assert sqlite.run(MARKER) == [("1",)]


async def test_f01_a_layout_that_lost_its_marker_gets_it_back(made: SqliteBackend) -> None:
    made.run("DELETE FROM meta")
    async with made.open() as store:
        assert await store.chain(E) == chain(1, 2)
    assert made.run(MARKER) == [("1",)]


async def test_f02_ours_with_white_space_matches(made: SqliteBackend) -> None:
    made.run("UPDATE meta SET value = ?", " 1\n")
    async with made.open() as store:
        assert await store.chain(E) == chain(1, 2)
    assert made.run(MARKER) == [(" 1\n",)]


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE partition DROP COLUMN head_commit_lsn", "DROP TABLE rejoin"],
    ids=["column", "table"],
)
async def test_f02_a_store_of_an_earlier_build_is_refused_and_what_it_lacks_is_named(
    made: SqliteBackend, change: str
) -> None:
    made.run(change)
    before = made.path.read_bytes()
    with pytest.raises(StoreFormatError, match=r"earlier build: it has no column (partition|rejoin)\."):
        async with made.open():
            pass
    assert made.path.read_bytes() == before


@pytest.mark.parametrize(
    "marker", ["2", "0", "999", "", "  ", "abc", "-1", "1.0", "+1", "\u0661", "1" * 5000]
)
async def test_f03_f04_f05_i45_f07_another_marker_refuses_every_open(
    made: SqliteBackend, marker: str
) -> None:
    made.run("UPDATE meta SET value = ?", marker)
    made.run("PRAGMA wal_checkpoint(TRUNCATE)")
    before = made.path.read_bytes()
    for opening in (made.open(), made.open_readonly(), ProjectionStore.cold_load(made.url)):
        with pytest.raises(StoreFormatError, match="version 1") as caught:
            await opening
        assert caught.value.exit_code == 20
        assert caught.value.hint
    assert made.path.read_bytes() == before
    assert made.run(MARKER) == [(marker,)]


def test_f03_the_refusal_names_both_versions() -> None:
    with pytest.raises(StoreFormatError, match=r"says version 7 .* reads version 1"):
        judged("7")
    with pytest.raises(StoreFormatError, match="empty"):
        judged("")


@pytest.mark.parametrize("value", [b"1", 1.5, 2])
def test_f05_a_value_of_another_type_refuses(value: object) -> None:
    with pytest.raises(StoreFormatError):
        judged(value)


async def test_f06_i45_an_unreadable_marker_propagates_and_is_not_new(made: SqliteBackend) -> None:
    made.run("ALTER TABLE meta RENAME COLUMN value TO text")
    for opening in (made.open(), made.open_readonly()):
        with pytest.raises(StoreError):
            await opening
    assert made.run("SELECT text FROM meta WHERE key = 'FORMAT_VERSION'") == [("1",)]


async def test_f06_no_database_is_damage_not_new(sqlite: SqliteBackend) -> None:
    sqlite.path.write_bytes(b"not a database, " * 300)
    for opening in (sqlite.open(), sqlite.open_readonly()):
        with pytest.raises(StoreCorrupt):
            await opening
    assert sqlite.path.read_bytes() == b"not a database, " * 300


async def test_a_database_of_somebody_else_is_left_alone(sqlite: SqliteBackend) -> None:
    with closing(sqlite3.connect(sqlite.path)) as connection, connection:
        connection.execute("CREATE TABLE meta (key, value)")
        connection.execute("CREATE TABLE theirs (x)")
    before = sqlite.path.read_bytes()
    with pytest.raises(StoreFormatError):
        await sqlite.open()
    assert sqlite.path.read_bytes() == before


async def test_a_refused_store_gets_no_lock_file(made: SqliteBackend) -> None:
    made.run("UPDATE meta SET value = '2'")
    lock = made.path.with_name("chain.db.lock")
    lock.unlink()
    with pytest.raises(StoreFormatError):
        await made.open()
    assert not lock.exists()


async def test_reading_needs_a_store_that_is_there(sqlite: SqliteBackend, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        await sqlite.open_readonly()
    sqlite.path.touch()
    with pytest.raises(StoreFormatError):
        await ChainStore.open_readonly(str(sqlite.path))
    assert sqlite.path.read_bytes() == b""
    assert os.listdir(tmp_path) == ["chain.db"]


async def test_the_layout_has_every_table_of_the_design(made: SqliteBackend) -> None:
    names = {name for (name,) in made.run("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')")}
    assert names == {
        "partition", "event", "tail_cursor", "due", "server_epoch", "finding", "coverage_window",
        "audit_progress", "replica_position", "sequence", "apply_cursor", "rejoin", "d3_projection",
        "d8_runtime", "meta", "chain_keys",
    }  # fmt: skip
    strict = {
        name: strict for _, name, kind, _, _, strict in made.run("PRAGMA table_list") if kind == "table"
    }
    assert all(strict[name] for name in names - {"chain_keys"})
