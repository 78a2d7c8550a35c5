"""A store for what is never kept: beside another one, made anew, gone at the end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sidecar.errors import StoreError
from sidecar.store.chain import ChainStore


@asynccontextmanager
async def scratch(folder: Path) -> AsyncIterator[ChainStore]:
    """A store in `folder`, which belongs to nobody else; what a killed process left in it goes first.

    Raises:
        StoreError: the folder cannot be made.
    """
    try:
        await asyncio.to_thread(_emptied, folder)
    except OSError as error:
        raise StoreError(
            f"no scratch store can be made at {folder}: {error.strerror}",
            hint="give the process write permission on the store's folder",
        ) from error
    try:
        async with ChainStore.open(str(folder / "chain.db")) as store:
            yield store
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


@asynccontextmanager
async def scratch_of(store: ChainStore) -> AsyncIterator[ChainStore]:
    """A scratch store beside the file of `store`, in a temporary folder where it has none."""
    if store.path is not None:
        async with scratch(store.path.with_name(f"{store.path.name}.controls")) as made:
            yield made
        return
    with TemporaryDirectory(prefix="noetl-chain-controls-") as folder:
        async with scratch(Path(folder) / "controls") as made:
            yield made


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
