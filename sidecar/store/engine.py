"""What a chain store needs of the database below it, beside the connection that writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from sidecar.core.ports import StoredSummer
from sidecar.store.connection import Connection
from sidecar.store.quick import Quick
from sidecar.store.sizes import Sizes, sizes
from sidecar.store.sqlite import open_reader
from sidecar.store.sums import StoreSums

BUSY_TIMEOUT_MS: Final = 5000


@dataclass(frozen=True, slots=True)
class Engine:
    """The reading side of a store.

    Point reads and whole-store scans have a connection each.  `quick`: small chains without a
    change of thread, where the engine has that.  `path`: the file, where it is one.  `rejoining`:
    the gate NOETL_CHAIN_REJOIN: joins that stand order a chain.
    """

    points: Connection
    scans: Connection
    summer: StoredSummer
    measure: Callable[[], Awaitable[Sizes]]
    quick: Quick | None = None
    path: Path | None = None
    rejoining: bool = False


async def sqlite_engine(path: Path, opened: AsyncExitStack, *, rejoining: bool = False) -> Engine:
    """The reading side over the file at `path`; `opened` closes it."""
    quick = await asyncio.to_thread(Quick, path)
    opened.callback(quick.close)
    points = await open_reader(path, busy_timeout_ms=BUSY_TIMEOUT_MS)
    opened.push_async_callback(points.close)
    scans = await open_reader(path, busy_timeout_ms=BUSY_TIMEOUT_MS)
    opened.push_async_callback(scans.close)
    summer = StoreSums(path, rejoining=rejoining)
    return Engine(points, scans, summer, partial(asyncio.to_thread, sizes, path), quick, path, rejoining)
