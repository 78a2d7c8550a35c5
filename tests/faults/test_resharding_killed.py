"""The count of shards changes under load, pod by pod, with kill -9: nothing is lost, nothing twice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sidecar.core.shards import Shard
from tests.integration.service.test_resharding import ENDLESS
from tests.integration.test_verify import backfill
from tests.support.databases import Database
from tests.support.load import Load
from tests.support.rows import chain_rows
from tests.support.running import Running
from tests.support.service import service
from tests.support.shards import PATIENCE_S, all_idle, check_divided, known, sidecars, store

E = 7800
EXECUTIONS = range(E, E + 2500)


@pytest.mark.torture
async def test_many_counts_one_after_the_other_under_load(pg: Database, tmp_path: Path) -> None:
    load = Load(pg.dsn, total=ENDLESS, seed=1, writers=12, longest_s=1.0)
    writing = asyncio.create_task(load.run())
    for count in (1, 3, 2, 4):
        async with sidecars(pg.dsn, tmp_path, count):
            await load.reached(load.committed + 1000)
    async with sidecars(pg.dsn, tmp_path, 3) as running:
        await load.reached(load.committed + 500)
        load.total = 0
        await writing
        await all_idle(running)
        for each in running:
            await each.polls(2, lane="late")
        await all_idle(running)
        assert [each.divergences() for each in running] == [{}, {}, {}]
    assert load.early > 0
    await check_divided(pg, tmp_path, 3)


@pytest.mark.torture
async def test_pod_by_pod_two_counts_follow_at_a_time(pg: Database, tmp_path: Path) -> None:
    """As a StatefulSet rolls out: the highest ordinal first, the others with the old count meanwhile."""
    load = Load(pg.dsn, total=ENDLESS, seed=3, writers=8, longest_s=1.0)
    writing = asyncio.create_task(load.run())
    async with AsyncExitStack() as new:
        async with AsyncExitStack() as old:
            one, two = [
                await old.enter_async_context(
                    service(pg.dsn, store(tmp_path, index), shard_index=index, shard_count=2)
                )
                for index in (0, 1)
            ]
            await load.reached(800)
            rolled = [
                await new.enter_async_context(
                    service(pg.dsn, store(tmp_path, 2), shard_index=2, shard_count=3)
                )
            ]
            await load.reached(load.committed + 700)
            assert not [each for each in (one, two) if each.health.silent()], "the old ones follow on"
        rolled += [
            await new.enter_async_context(
                service(pg.dsn, store(tmp_path, index), shard_index=index, shard_count=3)
            )
            for index in (1, 0)
        ]
        await load.reached(load.committed + 500)
        load.total = 0
        await writing
        await all_idle(rolled)
        for each in rolled:
            await each.polls(2, lane="late")
        await all_idle(rolled)
    await check_divided(pg, tmp_path, 3)


def _until_some_are_gone(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(known(path)) == len(EXECUTIONS):
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.torture
async def test_a_process_that_is_killed_while_it_hands_over(pg: Database, tmp_path: Path) -> None:
    """Killed when some partitions had gone; called off, and then carried through."""
    path, shard = store(tmp_path, 0), Shard(0, 2)
    await pg.insert([row for e in EXECUTIONS for row in chain_rows(e, [1, 2, 3])])
    await backfill(pg, path)
    mine = {e for e in EXECUTIONS if shard.owns(e)}
    half = {"NOETL_CHAIN_SHARD_INDEX": "0", "NOETL_CHAIN_SHARD_COUNT": "2"}
    async with Running.start(pg.dsn, path, **half) as running:
        await running.says("shard_changed")
        await asyncio.to_thread(_until_some_are_gone, path)
        os.kill(running.pid, signal.SIGKILL)
        await running.ended()
    assert mine < known(path) < {*EXECUTIONS}, "it died in the middle"
    async with service(pg.dsn, path) as single:
        await single.idle(patience_s=PATIENCE_S)
        assert known(path) == {*EXECUTIONS}
    async with service(pg.dsn, path, shard_index=0, shard_count=2) as one:
        await one.idle(patience_s=PATIENCE_S)
    assert known(path) == mine
