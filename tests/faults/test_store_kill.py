"""kill -9 of the writer at any moment: rows and cursor agree, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.store import ChainStore
from tests.support.storesteps import accounted

WRITER = """
import asyncio, sys
from sidecar.core.horizon import Cursor
from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog
from sidecar.core.event import Event
from sidecar.store import ChainStore

def chain(execution_id, length):
    ids = [execution_id * 100 + n for n in range(length)]
    return tuple(Event(execution_id, i, p, None, "x", "y" * 600) for i, p in zip(ids, [None, *ids]))

async def singles(store, batch):
    root, _, third = chain(-batch, 3)
    if not await store.chain(-batch):
        await store.append(root)
    await store.apply_replicated(third, 3)
    await store.advance_apply_cursor(1, batch)

async def main():
    async with ChainStore.open(sys.argv[1]) as store:
        cursor = (await store.cursors()).get("live")
        batch = cursor.horizon if cursor else 0
        if batch:
            await singles(store, batch)  # which the kill may have come before
        while True:
            batch += 1
            async def work(unit):
                read = LogRead(store.clock.now())
                logs = [ExecutionLog(batch * 10 + n, chain(batch * 10 + n, 20), read) for n in range(10)]
                await unit.populate(logs)
                unit.put_cursor(Cursor("live", batch, "e", "s", "t", 1))
            await store.transact(work)
            await singles(store, batch)
            print(batch, flush=True)

asyncio.run(main())
"""


def killed_after(path: Path | str, seconds: float) -> int:
    """Run the writer, kill it; the last batch that it acknowledged."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        first = writer.stdout.readline()  # it is running
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(seconds)
    finally:
        writer.kill()
        rest, _ = writer.communicate()
    acknowledged = [int(line) for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
    return acknowledged[-1]


def cursor_and_rows(path: Path) -> tuple[int, list[tuple[int, int]]]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ((cursor,),) = connection.execute("SELECT horizon FROM tail_cursor")
        batches = connection.execute(
            "SELECT execution_id / 10, count(*) FROM event WHERE execution_id > 0 GROUP BY 1"
        ).fetchall()
        # The single calls after each unit come one by one: a cursor never stands ahead of its rows.
        singles = dict(
            connection.execute("SELECT -execution_id, count(*) FROM event WHERE execution_id < 0 GROUP BY 1")
        )
        applied = connection.execute("SELECT coalesce(max(seq), 0) FROM apply_cursor").fetchone()[0]
        assert all(singles[batch] == 2 for batch in range(1, applied + 1))
        assert set(singles) <= set(range(1, cursor + 1))
        return cursor, batches


def kill_in_a_loop(path: Path, kills: int, longest: float, seed: int = 7) -> None:
    moments = random.Random(seed)
    ahead = 0
    for _ in range(kills):
        acknowledged = killed_after(path, moments.uniform(0.0, longest))
        cursor, batches = cursor_and_rows(path)
        accounted(path)
        assert batches == [(batch, 200) for batch in range(1, cursor + 1)]
        assert cursor >= acknowledged
        ahead += cursor > acknowledged
    asyncio.run(all_served(path, cursor))


async def all_served(path: Path, batches: int) -> None:
    async with ChainStore.open(str(path)) as store:
        executions = [e async for e in store.executions(low=1)]
        assert executions == list(range(10, batches * 10 + 10))
        answers = await store.guarded_reads(executions)
        assert all(answer.events is not None and len(answer.events) == 20 for answer in answers.values())
        alone = [e async for e in store.executions(high=-1)]
        assert all(answer.events is None for answer in (await store.guarded_reads(alone)).values())


def test_a_writer_killed_again_and_again(tmp_path: Path) -> None:
    kill_in_a_loop(tmp_path / "chain.db", kills=6, longest=0.15)


@pytest.mark.torture
@pytest.mark.timeout(1200)
def test_a_writer_killed_300_times(tmp_path: Path) -> None:
    for store in range(10):  # a store that grows for ever would be checked for ever
        kill_in_a_loop(tmp_path / f"chain-{store}.db", kills=30, longest=0.4, seed=store)
