"""Several sidecars over one log: their stores side by side, and what stands in them together."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

from sidecar.core.shards import shard_of
from tests.support.databases import Database
from tests.support.service import Service, service
from tests.support.tailing import Ticks, opened

PATIENCE_S = 60.0
Body = tuple[int, int, str]
"""execution_id, event_id, body."""


def store(folder: Path, index: int) -> Path:
    return folder / f"chain-{index}.db"


@asynccontextmanager
async def sidecars(dsn: str, folder: Path, count: int, **settings: Any) -> AsyncIterator[list[Service]]:
    """All shards of `count`, each over its own store in `folder`, running until the block ends."""
    async with AsyncExitStack() as running:
        yield [
            await running.enter_async_context(
                service(dsn, store(folder, index), shard_index=index, shard_count=count, **settings)
            )
            for index in range(count)
        ]


async def all_idle(services: Iterable[Service]) -> None:
    for each in services:
        await each.idle(patience_s=PATIENCE_S)


def bodies(path: Path) -> list[Body]:
    """Every event row of a store file."""
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute("SELECT execution_id, event_id, body FROM event").fetchall()


def known(path: Path) -> set[int]:
    """Every execution of which anything stands in a store file."""
    with closing(sqlite3.connect(path)) as raw:
        tables = ("partition", "event", "due", "finding", "d3_projection")
        return {row[0] for table in tables for row in raw.execute(f"SELECT execution_id FROM {table}")}


async def check_divided(pg: Database, folder: Path, count: int) -> None:
    """The union of the stores is the log, row by row; no partition twice, none where it does not belong."""
    paths = [store(folder, index) for index in range(count)]
    together = Counter(row for path in paths for row in bodies(path))
    assert set(together.values()) <= {1}
    logged = {(row[0], row[1]) for row in await pg.fetch("SELECT execution_id, event_id FROM noetl.event")}
    async with opened(pg.dsn) as source:
        logs = await source.reader(Ticks()).read(sorted({e for e, _ in logged}))
    read = {(row.execution_id, row.event_id, row.body) for log in logs for row in log.events or ()}
    assert {(e, event_id) for e, event_id, _ in read} == logged
    assert set(together) == read
    for index, path in enumerate(paths):
        assert {shard_of(e, count) for e in known(path)} <= {index}
