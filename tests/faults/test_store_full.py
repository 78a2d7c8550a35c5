"""The disk of the store is full: it says so, loses nothing, and goes on when there is room."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sidecar.core.horizon import Cursor
from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog
from sidecar.errors import StoreFull
from sidecar.store import ChainStore
from sidecar.store.unit import StoreUnit
from tests.contract.events import long_chain

MIB = 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or not mounted(folder):
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def mounted(folder: Path) -> bool:
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    return subprocess.run(mount, capture_output=True).returncode == 0


async def batch(store: ChainStore, number: int) -> None:
    async def work(unit: StoreUnit) -> None:
        read = LogRead(store.clock.now())
        ids = range(number * 10, number * 10 + 10)
        logs = [ExecutionLog(e, long_chain(20, execution_id=e, body="z" * 600), read) for e in ids]
        await unit.populate(logs)
        unit.put_cursor(Cursor("live", number, "e", "s", "t", 1))

    await store.transact(work)


async def fill(store: ChainStore, number: int) -> int:
    """Write batches until the disk is full; the first one that did not fit."""
    while True:
        try:
            await batch(store, number)
        except StoreFull:
            return number
        number += 1


def test_full_then_room_again_on_the_same_connection(small_disk: Path) -> None:
    async def run() -> None:
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"b" * (3 * MIB))
        async with ChainStore.open(str(small_disk / "chain.db")) as store:
            refused = await fill(store, 0)
            assert refused > 1
            await check_batches(store, refused)
            with pytest.raises(StoreFull):
                await batch(store, refused)
            await check_batches(store, refused)
            ballast.unlink()
            await batch(store, refused)
            await check_batches(store, refused + 1)

    asyncio.run(run())


async def check_batches(store: ChainStore, batches: int) -> None:
    cursors = await store.cursors()
    assert cursors["live"].horizon == batches - 1
    executions = [e async for e in store.executions()]
    assert executions == list(range(batches * 10))
    answers = await store.guarded_reads(executions)
    assert all(answer.events is not None and len(answer.events) == 20 for answer in answers.values())


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"b" * 4096)


def test_opening_on_a_full_disk_is_full_not_corrupt(small_disk: Path) -> None:
    async def run() -> None:
        path = small_disk / "chain.db"
        async with ChainStore.open(str(path)) as store:
            await batch(store, 0)
        ballast = small_disk / "ballast"
        fill_up(ballast)
        with pytest.raises(StoreFull):
            await ChainStore.open(str(path))
        ballast.unlink()
        async with ChainStore.open(str(path)) as store:
            await check_batches(store, 1)

    asyncio.run(run())
