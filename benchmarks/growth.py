"""One chain of 100 events, read from stores that grow: the latency must not move.

The same reads by key from Postgres stand beside it.  Both sides are filled with rows of about
200 bytes, the executions mixed in the table as they ran, and read in turns of which each takes
other executions.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing
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
GOAL: Final = 8.0
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
    first: dict[str, float] = {}
    for rows in sizes:
        for name, ours, postgres in await _of_size(server, rows):
            first.setdefault(name, median(ours))
            yield Result(
                f"{name} read of {EVENTS} of {rows:,} events, p50",
                median(ours),
                "ms",
                limit=median(postgres),
                ratio=median(postgres) / median(ours),
                goal=GOAL,
                turns={"ours": [quantile(ours, 0.5), quantile(ours, 0.99)]},
                note=f"{median(ours) / first[name]:.2f} of the time at {sizes[0]:,}; limit: Postgres by key",
            )


async def _of_size(server: EmbeddedPostgres, rows: int) -> list[tuple[str, list[float], list[float]]]:
    executions = rows // EVENTS
    table = await filled(server, f"bench_growth_{rows}", rows=rows, events=EVENTS, body_bytes=BODY_BYTES)
    connection = await asyncpg.connect(table.dsn)
    try:
        with TemporaryDirectory(prefix="noetl-chain-bench-") as folder:
            path = Path(folder) / "chain.db"
            async with ChainStore.open(str(path)):
                pass
            _fill(path, executions)
            async with ChainStore.open(str(path)) as store:

                async def guarded(e: int) -> int:
                    return len((await store.chain_if_authoritative(e)).events or ())

                async def raw(e: int) -> int:
                    return len(await store.chain(e))

                async def by_key(e: int) -> int:
                    return len(await connection.fetch(BY_KEY, e))

                return await _interleaved({"guarded": guarded, "raw": raw}, by_key, executions)
    finally:
        await connection.close()


async def _interleaved(
    ours: dict[str, Read], postgres: Read, executions: int
) -> list[tuple[str, list[float], list[float]]]:
    pick = random.Random(1)
    taken: dict[str, list[float]] = {name: [] for name in (*ours, "")}
    for turn in range(READS):
        e = BASE_ID + ID_STEP * pick.randrange(executions)
        for name, read in (*ours.items(), ("", postgres)):
            began = time.perf_counter()
            found = await read(e)
            if turn >= READS // 10:  # the first ones warm up
                taken[name].append((time.perf_counter() - began) * 1000)
            if found != EVENTS:
                raise SystemExit(f"{found} of {EVENTS} events were answered")
    return [(name, taken[name], taken[""]) for name in ours]


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
