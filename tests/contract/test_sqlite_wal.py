"""A reader that stays open makes the write-ahead log grow: it is told once, and once when it is back."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from sidecar.store.format import uri
from sidecar.store.sizes import sizes
from sidecar.telemetry.wal import WAL_WARN_BYTES, WalWatch
from tests.contract.backends import SqliteBackend
from tests.contract.events import long_chain
from tests.support.captured import captured
from tests.support.sqlite import sqlite_of

BOUND = 4 * 1024 * 1024


def test_it_is_told_at_the_edges_only() -> None:
    log, entries = captured()
    watch = WalWatch(log, bound=100)
    for size in (0, 100, 101, 500, 101, 100, 0, 101):
        watch.saw(size)
    assert [(entry["event"], entry["bytes"], entry["log_level"]) for entry in entries] == [
        ("store_wal_long", 101, "warning"),
        ("store_wal_back", 100, "info"),
        ("store_wal_long", 101, "warning"),
    ]


def test_the_bound_is_four_times_what_the_log_is_cut_back_to() -> None:
    from sidecar.store.sqlite import _WAL_LIMIT_BYTES

    assert WAL_WARN_BYTES == 4 * _WAL_LIMIT_BYTES


@pytest.mark.parametrize("commits", [1000, pytest.param(10_000, marks=pytest.mark.torture)])
async def test_a_reader_held_open_over_many_commits_is_told(sqlite: SqliteBackend, commits: int) -> None:
    log, entries = captured()
    watch = WalWatch(log, bound=BOUND)
    async with sqlite.open() as store:
        # As in earnest, but for the sizes: a checkpoint often, and cut back far below the bound.
        await sqlite_of(store._writer).set_up(
            ("wal_autocheckpoint = 100", f"journal_size_limit = {BOUND // 4}")
        )

        async def commit(number: int) -> int:
            await store.populate_from_log(number, long_chain(1, execution_id=number, body="z" * 2000))
            size = sizes(sqlite.path).wal
            watch.saw(size)
            return size

        for number in range(commits):
            assert await commit(number) < BOUND
        assert entries == []  # nobody reads: as many commits leave it short
        with closing(sqlite3.connect(uri(sqlite.path, "ro"), uri=True, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM event").fetchall() == [(commits,)]
            for number in range(commits, 2 * commits):
                size = await commit(number)
            assert size > BOUND
            assert reader.execute("SELECT count(*) FROM event").fetchall() == [(commits,)]
        number = 2 * commits
        while (await commit(number)) > BOUND:
            number += 1
            assert number < 2 * commits + 500
    assert [entry["event"] for entry in entries] == ["store_wal_long", "store_wal_back"]
