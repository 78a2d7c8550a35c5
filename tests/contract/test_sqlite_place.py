"""Where a store may live, and who may hold it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.errors import ConfigError, StoreError, StoreLocked
from sidecar.store import ChainStore
from sidecar.store.backup import backup
from sidecar.store.location import file_system, sqlite_path
from sidecar.store.lock import take
from tests.contract.backends import SqliteBackend
from tests.contract.events import chain

HOLD = """
import asyncio, sys
from sidecar.store import ChainStore
from sidecar.store.backup import backup

async def hold():
    async with ChainStore.open(sys.argv[1]):
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(hold())
"""


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////a/b.db", "/a/b.db"),
        ("sqlite:///b.db", "b.db"),
        ("sqlite:///dir/b.db", "dir/b.db"),
        ("/a/b c.db", "/a/b c.db"),
        ("b.db", "b.db"),
        ("sqlite:////a/100%20.db", "/a/100%20.db"),
    ],
)
def test_urls(url: str, path: str) -> None:
    assert sqlite_path(url) == Path(path).absolute()


@pytest.mark.parametrize(
    "url",
    [
        "", "sqlite://", "sqlite:///", "sqlite://host/b.db", "sqlite:////a/b.db?mode=ro", "mysql://x/y",
        "postgresql://u:secret@h/d", ":memory:", "sqlite:///:memory:", "file:b.db", "/a/", "a\0b",
    ],
)  # fmt: skip
def test_other_urls_are_configuration_errors(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sqlite_path(url)
    assert caught.value.exit_code == 2
    assert "secret" not in str(caught.value) + caught.value.hint


async def test_i53_a_missing_folder_refuses_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist") as caught:
        await ChainStore.open(f"sqlite:///{tmp_path}/missing/chain.db")
    assert caught.value.exit_code == 20
    assert caught.value.hint
    assert os.listdir(tmp_path) == []


async def test_a_folder_in_the_place_of_the_file_refuses(tmp_path: Path) -> None:
    (tmp_path / "chain.db").mkdir()
    with pytest.raises(StoreError, match="is a folder"):
        await ChainStore.open(str(tmp_path / "chain.db"))


async def test_a_read_only_folder_refuses_with_the_remedy(tmp_path: Path) -> None:
    # /proc/self cannot be written by anybody, root included.
    with pytest.raises(StoreError, match="cannot be written") as caught:
        await ChainStore.open("sqlite:////proc/self/chain.db")
    assert "permission" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_without_permission_refuses(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o500)
    with pytest.raises(StoreError, match="cannot be written"):
        await ChainStore.open(str(tmp_path / "chain.db"))


async def test_a_read_only_file_refuses_at_open(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite.open():
        pass
    # Root may write everything, so the answer of the system is played.
    monkeypatch.setattr("sidecar.store.location.os.access", lambda path, mode: path != sqlite.path)
    with pytest.raises(StoreError, match=r"chain\.db cannot be written") as caught:
        await sqlite.open()
    assert "permission" in caught.value.hint


def test_the_file_system_is_that_of_the_innermost_and_latest_mount(tmp_path: Path) -> None:
    real = tmp_path.resolve()
    spaced = str(real / "a b").replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:9 / {real} rw shared:1 - nfs4 host:/x rw\n"
        f"3 1 0:9 / {real} rw - xfs /dev/b rw\n"
        f"4 1 0:9 / {spaced} rw - fuse.sshfs host: rw\n"
    )
    assert file_system(Path("/"), mounts) == "ext4"
    assert file_system(real, mounts) == "xfs"
    assert file_system(real / "a b", mounts) == "fuse.sshfs"
    assert file_system(Path("/"), tmp_path / "none") is None


async def test_a_network_file_system_refuses(sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    async with sqlite.open():
        pass
    monkeypatch.setattr("sidecar.store.location.file_system", lambda folder: "nfs4")
    for opening in (sqlite.open(), sqlite.open_readonly()):
        with pytest.raises(StoreError, match="network") as caught:
            await opening
        assert "local disk" in caught.value.hint


async def test_i57_a_second_sidecar_refuses_and_names_the_holder(sqlite: SqliteBackend) -> None:
    async with sqlite.open():
        with pytest.raises(StoreLocked, match=rf"process {os.getpid()} on ") as caught:
            await sqlite.open()
        assert caught.value.exit_code == 20
    async with sqlite.open():  # given back
        pass


def test_i57_the_lock_holds_between_processes_and_ends_with_kill_9(sqlite: SqliteBackend) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLD, sqlite.url], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked, match=rf"process {other.pid} on "):
            take(sqlite.path)
    finally:
        other.kill()
        other.communicate()
    take(sqlite.path).release()


async def test_a_failed_open_gives_the_lock_back(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sidecar.store.chain.initialise", lambda path: (_ for _ in ()).throw(StoreError("x")))
        with pytest.raises(StoreError, match="x"):
            await sqlite.open()
    async with sqlite.open():
        pass


async def test_reading_beside_a_running_sidecar_takes_no_lock(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store, sqlite.open_readonly() as reader:
        await store.populate_from_log(1, ())
        assert (await reader.chain_if_authoritative(1)).events == ()
        assert not hasattr(reader, "transact")
        with pytest.raises(StoreError, match="read-only"):
            await reader._points.rows("DELETE FROM partition")


async def test_i57_another_name_of_the_same_store_is_the_same_store(tmp_path: Path) -> None:
    """A second writer under a symbolic link would have a lock of its own."""
    store, link, hard = tmp_path / "chain.db", tmp_path / "link.db", tmp_path / "hard.db"
    async with ChainStore.open(str(store)):
        link.symlink_to(store)
        with pytest.raises(StoreLocked):
            await ChainStore.open(str(link))
    hard.hardlink_to(store)
    with pytest.raises(StoreError, match="several names"):
        await ChainStore.open(str(hard))


async def test_others_cannot_read_a_store_its_log_or_a_copy(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "chain.db"
        async with ChainStore.open(str(path)) as store:
            await store.append(chain(1)[0])
            backup(path, tmp_path / "copy.db")
            rights = modes(tmp_path)
            assert {"chain.db", "chain.db-wal", "copy.db"} <= rights.keys()
            assert [name for name, mode in rights.items() if mode & 0o007] == []
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode for file in folder.iterdir() if file.is_file()}
