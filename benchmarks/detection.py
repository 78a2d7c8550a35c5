"""Detection: from the commit of a planted fault to its verdict in the store, by kind.

The sidecar runs as a process of its own with short windows; every bound is made of its settings
and stands in docs/simulation.md.  A bound that is missed on a busy machine is shown, no failure.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import asyncpg

from benchmarks.live import running
from benchmarks.planted import PRUNE, PRUNED_FIRST, PRUNED_PARTITION, Stamped, insert
from benchmarks.result import Result, median

TICK_S: Final = 1.0
SETTLE_S: Final = 2.0
DANGLING_S: Final = 3.0
POLL_S: Final = 0.15
LIST_S: Final = 1.1
"""The partitions are listed once a second, and a new list is looked at twice."""
WORK_S: Final = 0.5
"""One poll, one log read and two store transactions, with room."""
LOOK_S: Final = 0.005
PATIENCE_S: Final = 60.0

ENVIRONMENT: Final = {
    "NOETL_CHAIN_TICK_S": str(TICK_S),
    "NOETL_CHAIN_SETTLE_S": str(SETTLE_S),
    "NOETL_CHAIN_DANGLING_S": str(DANGLING_S),
}
FIRST: Final = 7_100_000_000_000_000_000

Plant = Callable[[Any, Path, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, the verdict it gets, and in how many seconds at most.

    `bound_s`: without the time of the work itself.
    """

    name: str
    verdict: str
    bound_s: float
    plant: Plant


async def _second_root(log: Any, store: Path, e: int) -> None:
    await insert(log, Stamped(e, 4, None, "step.exit"))


async def _fork(log: Any, store: Path, e: int) -> None:
    await insert(log, Stamped(e, 4, 2, "step.exit"))


async def _changed(log: Any, store: Path, e: int) -> None:
    await log.execute(
        f"UPDATE noetl.event SET node_name = 'changed' WHERE execution_id = {e} AND event_id = 2"
    )


async def _dangling(log: Any, store: Path, e: int) -> None:
    await insert(log, Stamped(e, 5, 4, "step.exit"))


async def _deleted(log: Any, store: Path, e: int) -> None:
    async with log.transaction():
        await log.execute(f"DELETE FROM noetl.event WHERE execution_id = {e} AND event_id = 2")
        await insert(log, Stamped(e, 4, 3, "step.exit"))


async def _foreign(log: Any, store: Path, e: int) -> None:
    await asyncio.to_thread(_store_foreign, store, e)
    await insert(log, Stamped(e, 4, 3, "step.exit"))


def _store_foreign(store: Path, e: int) -> None:
    with closing(sqlite3.connect(store, timeout=10)) as connection, connection:
        connection.execute(
            "INSERT INTO event (execution_id, exec_seq, event_id, prev_event_id, event_type, body)"
            " VALUES (?, 4, 99, 3, 'step.exit', '{}')",
            (e,),
        )


async def _pruned(log: Any, store: Path, e: int) -> None:
    await log.execute(PRUNE)
    await log.execute(PRUNED_PARTITION)


FAULTS: Final = (
    Fault("second root", "refused_multiple_roots", POLL_S + TICK_S, _second_root),
    Fault("fork", "refused_fork", POLL_S + TICK_S, _fork),
    Fault("changed body", "divergent", POLL_S + TICK_S, _changed),
    Fault("lost predecessor", "refused_dangling_prev", POLL_S + DANGLING_S + 2 * TICK_S, _dangling),
    Fault("deleted row, at the next row", "second_writer", POLL_S + SETTLE_S + TICK_S, _deleted),
    Fault("foreign row, at the next row", "second_writer", POLL_S + SETTLE_S + TICK_S, _foreign),
    Fault("dropped partition", "log_pruned", LIST_S + 2 * TICK_S, _pruned),
)


async def measure(dsn: str, *, plants: int = 3) -> list[Result]:
    """One row a kind: the longest of a few plants in seconds, beside its bound."""
    with TemporaryDirectory(prefix="noetl-chain-bench-") as folder:
        store = Path(folder) / "chain.db"
        log = await asyncpg.connect(dsn, statement_cache_size=0)
        try:
            await log.execute(PRUNED_PARTITION)
            with running(dsn, store, ENVIRONMENT):
                return [await _measured(log, store, n, fault, plants) for n, fault in enumerate(FAULTS)]
        finally:
            await log.close()


async def _measured(log: Any, store: Path, number: int, fault: Fault, plants: int) -> Result:
    took: list[float] = []
    for turn in range(plants):
        base = PRUNED_FIRST if fault.plant is _pruned else FIRST
        e = base + number * 1000 + turn
        await insert(log, *(Stamped(e, n, n - 1 or None, "step.exit") for n in (1, 2, 3)))
        await _verdict(store, e, "match")
        await asyncio.sleep(0.37 * turn % TICK_S)  # not always at the same place between two ticks
        began = time.perf_counter()
        await fault.plant(log, store, e)
        await _verdict(store, e, fault.verdict)
        took.append(time.perf_counter() - began)
    return _result(fault, took)


def _result(fault: Fault, took: Sequence[float]) -> Result:
    return Result(
        f"detection: {fault.name}",
        max(took),
        "s",
        limit=fault.bound_s + WORK_S,
        note=f"{fault.verdict}; median {median(took):.2f} s of {len(took)}; limit: the documented bound",
    )


async def _verdict(store: Path, execution_id: int, verdict: str) -> None:
    """Wait until the latest verdict in the store is this one."""
    ends = time.perf_counter() + PATIENCE_S
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=10)) as connection:
        while time.perf_counter() < ends:
            found = connection.execute(
                "SELECT verdict FROM partition WHERE execution_id = ?", (execution_id,)
            ).fetchone()
            if found is not None and found[0] == verdict:
                return
            await asyncio.sleep(LOOK_S)
    raise TimeoutError(f"no verdict {verdict} on {execution_id} within {PATIENCE_S} s")
