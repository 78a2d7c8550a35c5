"""A store of a million executions: a page of any list holds a page in memory, and no more."""

from __future__ import annotations

import gc
import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from sidecar.core.due import Windows
from sidecar.core.ports import ExecutionLog
from sidecar.store import ChainStore
from sidecar.store.listing import Place
from sidecar.web.data import Data, Sources
from sidecar.web.routes import LIMIT_MAX

EXECUTIONS = 1_000_000
FINDINGS = 200_000
FIRST = 615_000_000_000_000_000
NEWEST = 1_790_000_000_000_000
GROWN_MAX = 24 * 2**20
"""Of the process; SQLite's cache of 2 MiB a connection is among it.  All rows would be ten times that."""

_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"


async def made(path: Path) -> None:
    async with ChainStore.open(str(path)):
        pass
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("PRAGMA synchronous = off")
        conn.execute(
            "INSERT INTO partition (execution_id, verdict, last_change_at, rows_seen, verdict_rows)"
            f" {_NUMBERS}"
            f" SELECT {FIRST} + i, CASE i % 50 WHEN 0 THEN 'divergent' WHEN 1 THEN NULL ELSE 'match' END,"
            f" CASE WHEN i % 7 THEN {NEWEST} + i END, 40, 40 FROM n",
            (EXECUTIONS,),
        )
        conn.execute(
            "INSERT INTO finding (execution_id, verdict, kind, position, detail, evidence, found_at)"
            f" {_NUMBERS} SELECT {FIRST} + i, 'divergent', 'payload', 3, 'd',"
            f" json_object('x', hex(zeroblob(200))), {NEWEST} + i FROM n",
            (FINDINGS,),
        )


class NoLog:
    async def read(self, execution_ids: object) -> list[ExecutionLog]:
        raise AssertionError("a list asks Postgres nothing")


@pytest.mark.torture
@pytest.mark.timeout(300)
async def test_a_page_of_a_million_holds_a_page(tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    await made(store)
    data = Data()
    me = psutil.Process(os.getpid())
    async with ChainStore.open_readonly(str(store)) as opened:
        data.sources = Sources(opened, NoLog(), Windows(), lambda verdict: None)

        async def executions(verdict: str | None = None, after: Place | None = None) -> int:
            return len((await data.executions(verdict=verdict, after=after, limit=LIMIT_MAX))[0])

        async def findings(verdict: str | None = None, after: int | None = None, *, only_open: bool) -> int:
            found, _ = await data.findings(verdict=verdict, after=after, only_open=only_open, limit=LIMIT_MAX)
            return len(found)

        middle, untold = Place(NEWEST + EXECUTIONS // 2, 0), Place(None, FIRST + EXECUTIONS // 2)
        asked: list[Callable[[], Awaitable[int]]] = [
            executions,
            lambda: executions("match"),
            lambda: executions("divergent"),
            lambda: executions("unjudged"),
            lambda: executions(after=middle),
            lambda: executions("match", untold),
            lambda: findings(only_open=False),
            lambda: findings(only_open=True),
            lambda: findings("divergent", FINDINGS // 2, only_open=True),
        ]
        assert await asked[0]() == LIMIT_MAX
        gc.collect()
        before = me.memory_info().rss
        for ask in asked:
            assert await ask() == LIMIT_MAX
            assert me.memory_info().rss - before < GROWN_MAX
        # A filter that holds for nothing reads to the end, and keeps nothing of it either.
        assert await executions("empty") == await findings("rebuilt", only_open=False) == 0
        place: Place | None = None
        seen: set[str] = set()
        for _ in range(25):
            page, place = await data.executions(after=place, limit=LIMIT_MAX)
            seen.update(str(each["execution_id"]) for each in page)
        assert len(seen) == 25 * LIMIT_MAX
        assert me.memory_info().rss - before < GROWN_MAX
