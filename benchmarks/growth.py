"""One chain of 100 events, read from stores that grow: the latency must not move.

The same reads by key from Postgres stand beside it.  Both sides are filled with rows whose
body has about 200 bytes (Postgres: its columns, some 500), the executions mixed in the table as
they ran, and every turn asks each size once.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import asyncpg

from benchmarks.data import BASE_ID, filled
from benchmarks.result import Result, median, quantile
from sidecar.core.event import Event
from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.store import ChainStore
from sidecar.store.rows import INSERT_EVENT, event_row

EVENTS: Final = 100
READS: Final = 600
ID_STEP: Final = 4_194_304
BODY_BYTES: Final = 200
GOAL: Final = 3.0
"""How many times faster than Postgres by key; 8 is wanted."""
BY_KEY: Final = "select * from noetl.event where execution_id = $1 order by event_id"
_BATCH: Final = 500
_CLAIM: Final = (
    "INSERT INTO partition (execution_id, head_seq, head_event_id, wm_first, wm_through, cov_root, cov_total)"
    " VALUES (?, ?, ?, 1, ?, ?, ?)"
)

Read = Callable[[int], Awaitable[int]]


async def measure(server: EmbeddedPostgres, sizes: Sequence[int]) -> AsyncIterator[Result]:
    """A row a size for the guarded and for the raw read; the limit is Postgres by key.

    `ratio` is how many times faster than Postgres it is; the note says how the latency stands
    against that at the first size.
    """
    async with AsyncExitStack() as opened:
        sides = {rows: await _sides(server, rows, opened) for rows in sizes}
        taken = await _interleaved(sides)
    for name in ("guarded", "raw"):
        first = median(taken[sizes[0], name])
        for rows in sizes:
            ours, postgres = taken[rows, name], median(taken[rows, "postgres"])
            yield Result(
                f"{name} read of {EVENTS} of {rows:,} events, p50",
                median(ours),
                "ms",
                limit=postgres,
                ratio=postgres / median(ours),
                goal=GOAL,
                turns={"ours": [quantile(ours, 0.5), quantile(ours, 0.99)]},
                note=f"{median(ours) / first:.2f} of the time at {sizes[0]:,}; limit: Postgres by key",
            )


async def _sides(server: EmbeddedPostgres, rows: int, opened: AsyncExitStack) -> dict[str, Read]:
    """Both sides of one size, filled and open."""
    table = await filled(server, f"bench_growth_{rows}", rows=rows, events=EVENTS, body_bytes=BODY_BYTES)
    connection = await asyncpg.connect(table.dsn)
    opened.push_async_callback(connection.close)
    folder = opened.enter_context(TemporaryDirectory(prefix="noetl-chain-bench-"))
    path = Path(folder) / "chain.db"
    async with ChainStore.open(str(path)):
        pass
    _fill(path, table.executions)
    store = await opened.enter_async_context(ChainStore.open(str(path)))

    async def guarded(e: int) -> int:
        return len((await store.chain_if_authoritative(e)).events or ())

    async def raw(e: int) -> int:
        return len(await store.chain(e))

    async def by_key(e: int) -> int:
        return len(await connection.fetch(BY_KEY, e))

    return {"guarded": guarded, "raw": raw, "postgres": by_key}


async def _interleaved(sides: Mapping[int, Mapping[str, Read]]) -> dict[tuple[int, str], list[float]]:
    """Milliseconds by size and side; every turn asks each of them once."""
    pick = random.Random(1)
    taken: dict[tuple[int, str], list[float]] = defaultdict(list)
    for turn in range(READS):
        for rows, reads in sides.items():
            for name, read in reads.items():
                e = BASE_ID + ID_STEP * pick.randrange(rows // EVENTS)
                began = time.perf_counter()
                found = await read(e)
                if turn >= READS // 10:  # the first ones warm up
                    taken[rows, name].append((time.perf_counter() - began) * 1000)
                if found != EVENTS:
                    raise SystemExit(f"{found} of {EVENTS} events were answered")
    return taken


def _fill(path: Path, executions: int) -> None:
    """Straight into the layout, covered: building it from a log is another row's matter."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for low in range(0, executions, _BATCH):
            chosen = range(low, min(low + _BATCH, executions))
            connection.execute("BEGIN")
            connection.executemany(INSERT_EVENT, _events(chosen))
            connection.executemany(_CLAIM, (_claim(BASE_ID + ID_STEP * i) for i in chosen))
            connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _events(chosen: range) -> Iterator[tuple[object, ...]]:
    for i in chosen:
        e = BASE_ID + ID_STEP * i
        for n in range(1, EVENTS + 1):
            body = f'{{"e":"{e}","n":{n},"pad":"{random.Random(e + n).randbytes(80).hex()}"}}'
            event = Event(e, e + n, e + n - 1 if n > 1 else None, None, "step.exit", body)
            yield event_row(n, event, i * EVENTS + n, "log", 1)


def _claim(e: int) -> tuple[int, ...]:
    return (e, EVENTS, e + EVENTS, EVENTS, e + 1, EVENTS)
