"""What somebody else does to the store's files: refused or recovered, never served wrong."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

import pytest

from sidecar.core.horizon import Cursor
from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog
from sidecar.errors import StoreCorrupt, StoreError, StoreFormatError
from sidecar.store import ChainStore
from sidecar.store.unit import StoreUnit
from tests.contract.events import chain, long_chain
from tests.support.storesteps import accounted

EXECUTIONS: Final = range(1, 41)
LENGTH: Final = 40
PAGE: Final = 4096


async def filled(path: Path) -> None:
    async with ChainStore.open(str(path)) as store:
        for batch, e in enumerate(EXECUTIONS, 1):
            await commit(store, batch, e)


async def commit(store: ChainStore, batch: int, e: int) -> None:
    async def work(unit: StoreUnit) -> None:
        log = ExecutionLog(e, long_chain(LENGTH, execution_id=e, body="b" * 200), LogRead(store.clock.now()))
        await unit.populate((log,))
        unit.put_cursor(Cursor("live", batch, "e", "s", "t", 1))

    await store.transact(work)


@pytest.fixture
async def whole(tmp_path: Path) -> Path:
    path = tmp_path / "chain.db"
    await filled(path)
    return path


def pages_of_events(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [
            page
            for (page,) in connection.execute(
                "SELECT pageno FROM dbstat WHERE name = 'event' ORDER BY pageno"
            )
        ]


def has_dbstat() -> bool:
    with closing(sqlite3.connect(":memory:")) as connection:
        return ("ENABLE_DBSTAT_VTAB",) in connection.execute("PRAGMA compile_options").fetchall()


def overwrite(path: Path, at: int, noise: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(noise)


def size(path: Path) -> int:
    return path.stat().st_size


def cut(path: Path, end: int) -> None:
    with path.open("r+b") as file:
        file.truncate(end)


async def served(store: ChainStore) -> int:
    """How many executions are served; each exactly as it was stored, every other one refused."""
    count = 0
    for e in EXECUTIONS:
        try:
            answer = await store.chain_if_authoritative(e)
        except StoreError:
            continue
        if answer.events is not None:
            assert answer.events == long_chain(LENGTH, execution_id=e, body="b" * 200)
            count += 1
    return count


@pytest.mark.skipif(not has_dbstat(), reason="this SQLite does not say which table a page belongs to")
async def test_pages_of_events_that_are_overwritten_are_never_served(whole: Path, tmp_path: Path) -> None:
    moments = random.Random(3)
    pages = pages_of_events(whole)
    refused = 0
    for number, page in enumerate(moments.sample(pages, 12)):
        path = tmp_path / f"damaged-{number}.db"
        shutil.copyfile(whole, path)
        # The page's header and its table of cells: what a torn or misplaced write destroys.
        overwrite(path, (page - 1) * PAGE, moments.randbytes(512))
        try:
            async with ChainStore.open(str(path)) as store:
                refused += len(EXECUTIONS) - await served(store)
        except StoreError:
            refused += len(EXECUTIONS)
    assert refused >= 12  # each of them did hit somebody


async def test_a_zeroed_page_is_corrupt_not_empty(whole: Path) -> None:
    with closing(sqlite3.connect(whole)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'event'")
    async with ChainStore.open(str(whole)) as store:
        overwrite(whole, (root - 1) * PAGE, bytes(PAGE))
        with pytest.raises(StoreCorrupt):
            await store.chain(1)
        with pytest.raises(StoreCorrupt):
            await store.chain_if_authoritative(1)
        with pytest.raises(StoreError):
            await commit(store, 99, 99)


async def test_a_truncated_file_refuses(whole: Path) -> None:
    cut(whole, size(whole) // 2)
    try:
        async with ChainStore.open(str(whole)) as store:
            assert await served(store) < len(EXECUTIONS)
    except StoreError:
        pass


@asynccontextmanager
async def killed(path: Path) -> AsyncIterator[Path]:
    """What a kill leaves: the file as of the last checkpoint, and the log beside it."""
    image = path.with_name("killed.db")
    async with ChainStore.open(str(path)) as store:
        for batch, e in enumerate(EXECUTIONS, 1):
            await commit(store, batch, e)
        for end in ("", "-wal"):
            shutil.copyfile(f"{path}{end}", f"{image}{end}")
    yield image


async def test_a_truncated_wal_is_a_prefix_of_the_commits(tmp_path: Path) -> None:
    """Cut anywhere, frame or no frame: whole commits stand, and the cursor knows which."""
    moments = random.Random(5)
    found = set()
    async with killed(tmp_path / "chain.db") as image:
        wal = Path(f"{image}-wal")
        whole = size(wal)
        for number, end in enumerate([0, 31, *(moments.randrange(whole) for _ in range(12)), whole]):
            path = tmp_path / f"cut-{number}.db"
            shutil.copyfile(image, path)
            shutil.copyfile(wal, f"{path}-wal")
            cut(Path(f"{path}-wal"), end)
            found.add(await prefix(path))
    assert len(found) > 8
    assert max(found) == len(EXECUTIONS)


async def test_a_damaged_frame_of_the_wal_ends_the_prefix(tmp_path: Path) -> None:
    async with killed(tmp_path / "chain.db") as image:
        wal = Path(f"{image}-wal")
        overwrite(wal, size(wal) // 2, b"\xff" * 64)
        assert 0 < await prefix(image) < len(EXECUTIONS)


async def prefix(path: Path) -> int:
    """How many commits stand; a prefix of them, each whole."""
    async with ChainStore.open(str(path)) as store:
        cursor = (await store.cursors()).get("live")
        commits = 0 if cursor is None or cursor.horizon is None else cursor.horizon
        assert [e async for e in store.executions()] == list(range(1, commits + 1))
        assert await served(store) == commits
        accounted(path)
        if commits < len(EXECUTIONS):
            await commit(store, commits + 1, commits + 1)  # and it goes on
    return commits


async def test_a_marker_replaced_while_it_runs_refuses_the_next_opening(whole: Path) -> None:
    """The running one read its marker at its start and goes on with the layout it knows."""
    async with ChainStore.open(str(whole)) as store:
        with closing(sqlite3.connect(whole)) as connection, connection:
            connection.execute("UPDATE meta SET value = '2' WHERE key = 'FORMAT_VERSION'")
        assert await store.append(chain(1, execution_id=99)[0]) == 1
        with pytest.raises(StoreFormatError, match="version 2"):
            await ChainStore.open_readonly(str(whole))
    with pytest.raises(StoreFormatError, match="version 2"):
        await ChainStore.open(str(whole))
    with closing(sqlite3.connect(whole)) as connection:
        assert connection.execute("SELECT value FROM meta WHERE key = 'FORMAT_VERSION'").fetchall() == [
            ("2",)
        ]


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_file_that_is_taken_away_while_it_runs_takes_no_more(
    whole: Path, tmp_path: Path, how: str
) -> None:
    """The open file has no name any more: what went into it would be found by nobody."""
    other = tmp_path / "other.db"
    shutil.copyfile(whole, other)
    async with ChainStore.open(str(whole)) as store:
        taken_away(whole, other if how == "replaced" else None)
        for call in (store.append(chain(1, execution_id=99)[0]), store.chain_if_authoritative(1)):
            with pytest.raises(StoreError, match="removed or replaced"):
                await call
    async with ChainStore.open(str(whole)) as store:
        assert await served(store) == (len(EXECUTIONS) if how == "replaced" else 0)
        assert await store.chain(99) == ()


async def test_a_file_that_is_emptied_while_it_runs_is_named_with_the_remedy(whole: Path) -> None:
    async with ChainStore.open(str(whole)) as store:
        assert await store.chain(1)
        cut(whole, 0)
        with pytest.raises(StoreError) as refused:
            await store.chain_if_authoritative(1)
    assert "noetl-chain store check" in refused.value.hint


def taken_away(path: Path, other: Path | None) -> None:
    for file in path, Path(f"{path}-wal"), Path(f"{path}-shm"):
        file.unlink(missing_ok=True)
    if other is not None:
        other.rename(path)
