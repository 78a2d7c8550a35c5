"""One chain of 100 events: how many times faster than from Postgres, and whether a store's size moves it.

The same events from Postgres stand beside it, by key and prepared: from `noetl.event`, rendered
as they are compared, and from a plain table that holds the rendered bodies already.  Both sides
end with `Event` objects.  The Postgres tables have the first size only, which is to their
advantage; the stores hold bodies of the same lengths.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import asyncpg

from benchmarks.data import BASE_ID, Table, filled
from benchmarks.result import Result, median, quantile
from sidecar.core.event import Event
from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.source.body import body_sql
from sidecar.source.connection import Session
from sidecar.source.log import event_columns
from sidecar.source.table import inspect
from sidecar.store import ChainStore
from sidecar.store.rows import INSERT_EVENT, event_row

EVENTS: Final = 100
READS: Final = 1000
ID_STEP: Final = 4_194_304
BODY_BYTES: Final = 600
GOAL: Final = 3.0
"""How many times faster than Postgres by key; 8 is wanted."""
STEADY: Final = 1 / 1.2
"""A larger store takes at most 20 % longer."""
_BATCH: Final = 500
_COPY: Final = "bench_events"
_CLAIM: Final = (
    "INSERT INTO partition (execution_id, head_seq, head_event_id, wm_first, wm_through, cov_root, cov_total)"
    " VALUES (?, ?, ?, 1, ?, ?, ?)"
)

Read = Callable[[int], Awaitable[Sequence[Event]]]
Side = tuple[str, int]
"""What is read, and how many events lie there."""


async def measure(server: EmbeddedPostgres, sizes: Sequence[int]) -> AsyncIterator[Result]:
    """Rows for the guarded and for the raw read: each beside Postgres, each size beside the first."""
    async with AsyncExitStack() as opened:
        table = await filled(server, "bench_growth", rows=sizes[0], events=EVENTS, body_bytes=BODY_BYTES)
        sides = await _postgres(table, sizes[0], opened)
        bodies = [event.body for event in await sides["log", sizes[0]](BASE_ID)]
        for rows in sizes:
            sides |= await _store(rows, bodies, opened)
        taken = await _interleaved(sides)
    log, copy = taken["log", sizes[0]], taken["copy", sizes[0]]
    for name in ("guarded", "raw"):
        first = median(taken[name, sizes[0]])
        for rows in sizes:
            ours = taken[name, rows]
            yield Result(
                f"{name} read of {EVENTS} of {rows:,} events, p50",
                median(ours),
                "ms",
                limit=median(log),
                ratio=median(log) / median(ours),
                goal=GOAL,
                turns={"p10, p50, p99": _quantiles(ours), "postgres": _quantiles(log)},
                note=f"limit: the same events from noetl.event by key; from a plain table of"
                f" rendered bodies {median(copy):.2f} ms, {median(copy) / median(ours):.1f} times",
            )
            if rows != sizes[0]:
                yield Result(
                    f"{name} read, {sizes[0]:,} events to {rows:,}",
                    median(ours),
                    "ms",
                    limit=first,
                    ratio=first / median(ours),
                    goal=STEADY,
                    note="limit: the same read of the smallest store",
                )


def _quantiles(values: Sequence[float]) -> list[float]:
    return [quantile(values, share) for share in (0.1, 0.5, 0.99)]


async def _postgres(table: Table, rows: int, opened: AsyncExitStack) -> dict[Side, Read]:
    """The two reads by key of the table's server."""
    session = Session(table.dsn, query_timeout_s=60)
    found = await inspect(session)
    await session.close()
    columns = event_columns(found, "l", body_sql(found.types, "l"))
    connection = await asyncpg.connect(table.dsn)
    opened.push_async_callback(connection.close)
    await connection.execute(
        f"create table {_COPY} as select {columns} from {found.name} l order by execution_id, event_id"
    )
    await connection.execute(f"alter table {_COPY} add primary key (execution_id, event_id)")
    await connection.execute(f"vacuum analyze {_COPY}")

    async def prepared(sql: str) -> Read:
        statement: Any = await connection.prepare(sql)

        async def read(execution_id: int) -> Sequence[Event]:
            return tuple(starmap(Event, await statement.fetch(execution_id)))

        return read

    return {
        ("log", rows): await prepared(
            f"select {columns} from {found.name} l where l.execution_id = $1 order by l.event_id"
        ),
        ("copy", rows): await prepared(f"select * from {_COPY} where execution_id = $1 order by event_id"),
    }


async def _store(rows: int, bodies: Sequence[str], opened: AsyncExitStack) -> dict[Side, Read]:
    """The two reads of a store with about `rows` events."""
    folder = opened.enter_context(TemporaryDirectory(prefix="noetl-chain-bench-"))
    path = Path(folder) / "chain.db"
    async with ChainStore.open(str(path)):
        pass
    _fill(path, rows // EVENTS, bodies)
    store = await opened.enter_async_context(ChainStore.open(str(path)))

    async def guarded(execution_id: int) -> Sequence[Event]:
        return (await store.chain_if_authoritative(execution_id)).events or ()

    return {("guarded", rows): guarded, ("raw", rows): store.chain}


async def _interleaved(sides: Mapping[Side, Read]) -> dict[Side, list[float]]:
    """Milliseconds by side; every turn asks each of them once, in an order of its own.

    In a fixed order the same side would always meet the end of the process's time slice.
    """
    pick = random.Random(1)
    taken: dict[Side, list[float]] = defaultdict(list)
    for turn in range(READS):
        for (name, rows), read in pick.sample(list(sides.items()), len(sides)):
            execution_id = BASE_ID + ID_STEP * pick.randrange(rows // EVENTS)
            began = time.perf_counter()
            found = await read(execution_id)
            if turn >= READS // 10:  # the first ones warm up
                taken[name, rows].append((time.perf_counter() - began) * 1000)
            if len(found) != EVENTS:
                raise SystemExit(f"{len(found)} of {EVENTS} events were answered")
    return taken


def _fill(path: Path, executions: int, bodies: Sequence[str]) -> None:
    """Straight into the layout, covered: building it from a log is another row's matter."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for low in range(0, executions, _BATCH):
            chosen = range(low, min(low + _BATCH, executions))
            connection.execute("BEGIN")
            connection.executemany(INSERT_EVENT, _events(chosen, bodies))
            connection.executemany(_CLAIM, (_claim(BASE_ID + ID_STEP * i) for i in chosen))
            connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")


def _events(chosen: range, bodies: Sequence[str]) -> Iterator[tuple[object, ...]]:
    for i in chosen:
        e = BASE_ID + ID_STEP * i
        for n, body in enumerate(bodies, start=1):
            event = Event(e, e + n, e + n - 1 if n > 1 else None, None, "step.exit", body)
            yield event_row(n, event, i * EVENTS + n, "log", 1)


def _claim(e: int) -> tuple[int, ...]:
    return (e, EVENTS, e + EVENTS, EVENTS, e + 1, EVENTS)
