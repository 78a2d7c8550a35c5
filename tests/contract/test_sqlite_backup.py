"""`store backup`: one instant, while the writer goes on; nothing under the name before it is whole."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.errors import ConfigError, StoreCorrupt, StoreFormatError
from sidecar.store import ChainStore
from sidecar.store import backup as copying
from sidecar.store.backup import backup
from sidecar.store.check import check
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain, long_chain


async def filled(sqlite: SqliteBackend, executions: int = 30) -> None:
    async with sqlite.open() as store:
        for execution_id in range(executions):
            await store.populate_from_log(
                execution_id, long_chain(20, execution_id=execution_id, body="z" * 600)
            )


def left(folder: Path) -> list[str]:
    """What stands under the copy's name, finished or not."""
    return sorted(path.name for path in folder.glob("copy*"))


async def test_a_backup_is_one_instant_and_the_writer_goes_on(
    sqlite: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step sees a commit before it; one snapshot does not begin again, and does not change."""
    await filled(sqlite)
    monkeypatch.setattr(copying, "PAGES_PER_STEP", 10)
    target = tmp_path / "copy.db"
    async with sqlite.open() as store:
        loop = asyncio.get_running_loop()
        steps: list[int] = []

        def moved(done: int, total: int) -> None:
            steps.append(done)
            new = 1000 + len(steps)
            work = store.populate_from_log(new, long_chain(3, execution_id=new))
            asyncio.run_coroutine_threadsafe(work, loop).result()

        size = await asyncio.to_thread(backup, sqlite.path, target, moved)
        assert len([e async for e in store.executions()]) == 30 + len(steps)
    assert len(steps) > 5
    assert steps == sorted(set(steps))
    assert size == target.stat().st_size
    assert left(tmp_path) == ["copy.db"]
    checked = check(target)
    assert (checked.findings, checked.executions, checked.events) == ([], 30, 600)


async def test_a_copy_is_a_store_of_its_own(sqlite: SqliteBackend, tmp_path: Path) -> None:
    await filled(sqlite, 2)
    backup(sqlite.path, tmp_path / "copy.db")
    assert left(tmp_path) == ["copy.db"]
    assert (tmp_path / "copy.db").read_bytes()[18:20] == b"\x01\x01"  # a WAL file has twos: it needs others
    async with ChainStore.open(str(tmp_path / "copy.db")) as copy:
        assert await copy.chain(1) == long_chain(20, execution_id=1, body="z" * 600)
        await copy.populate_from_log(E, chain(1, 2))
        assert await copy.query("PRAGMA journal_mode") == [("wal",)]


@pytest.mark.parametrize("name", ["copy.db", "copy.db-wal", "copy.db-journal"])
async def test_what_exists_is_refused_and_stays(sqlite: SqliteBackend, tmp_path: Path, name: str) -> None:
    """A write-ahead log that is left over would be taken for the copy's own."""
    await filled(sqlite, 1)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="not overwritten"):
        backup(sqlite.path, tmp_path / "copy.db")
    assert (tmp_path / name).read_text() == "mine"
    assert left(tmp_path) == [name]


async def test_the_store_itself_and_a_missing_folder_are_refused(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    await filled(sqlite, 1)
    with pytest.raises(ConfigError):
        backup(sqlite.path, sqlite.path)
    with pytest.raises(ConfigError, match="does not exist"):
        backup(sqlite.path, tmp_path / "no" / "copy.db")


async def test_a_file_that_came_meanwhile_is_not_replaced(sqlite: SqliteBackend, tmp_path: Path) -> None:
    await filled(sqlite, 1)
    target = tmp_path / "copy.db"
    with pytest.raises(ConfigError):
        backup(sqlite.path, target, lambda done, total: (target.write_text("theirs"), None)[1])
    assert target.read_text() == "theirs"
    assert left(tmp_path) == ["copy.db"]


async def test_a_cut_short_backup_leaves_nothing(
    sqlite: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(sqlite)
    monkeypatch.setattr(copying, "PAGES_PER_STEP", 10)

    def interrupt(done: int, total: int) -> None:
        if done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(sqlite.path, tmp_path / "copy.db", interrupt)
    assert left(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from sidecar.store import backup as copying
copying.PAGES_PER_STEP = 10
copying.backup(Path(sys.argv[1]), Path(sys.argv[2]), lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_killed_backup_leaves_nothing_under_the_name(sqlite: SqliteBackend, tmp_path: Path) -> None:
    asyncio.run(filled(sqlite))
    target = tmp_path / "copy.db"
    killed = subprocess.run([sys.executable, "-c", KILLED, sqlite.path, target], timeout=30)
    assert killed.returncode == -signal.SIGKILL
    assert not target.exists()
    assert backup(sqlite.path, target) == target.stat().st_size


async def test_the_copy_is_on_the_disk_before_it_has_its_name(
    sqlite: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(sqlite, 1)
    target, order, fsync, link = tmp_path / "copy.db", [], os.fsync, os.link

    def synced(descriptor: int) -> None:
        order.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def linked(source: Path, named: Path) -> None:
        order.append("named")
        link(source, named)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    backup(sqlite.path, target)
    assert order == [f"copy.db.{os.getpid()}.part", "named", tmp_path.name]


async def test_without_hard_links_it_is_renamed(
    sqlite: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(sqlite, 1)

    def unsupported(source: Path, named: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", unsupported)
    backup(sqlite.path, tmp_path / "copy.db")
    assert left(tmp_path) == ["copy.db"]
    assert check(tmp_path / "copy.db").executions == 1


async def test_the_copy_of_a_damaged_store_is_refused(sqlite: SqliteBackend, tmp_path: Path) -> None:
    await filled(sqlite)
    root = sqlite.run("SELECT rootpage FROM sqlite_schema WHERE name = 'event_identity'")[0][0]
    image = bytearray(sqlite.path.read_bytes())
    image[(root - 1) * 4096 : root * 4096] = bytes(4096)
    sqlite.path.write_bytes(image)
    with pytest.raises(StoreCorrupt):
        backup(sqlite.path, tmp_path / "copy.db")
    assert left(tmp_path) == []


async def test_the_copy_of_another_layout_is_refused(sqlite: SqliteBackend, tmp_path: Path) -> None:
    await filled(sqlite, 1)
    sqlite.run("UPDATE meta SET value = '2' WHERE key = 'FORMAT_VERSION'")
    with pytest.raises(StoreFormatError):
        backup(sqlite.path, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
