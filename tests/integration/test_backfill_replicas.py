"""A backfill brings the replicas up to the store; a replica that is away fails nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.commands.backfill import backfilled
from sidecar.core.event import Event
from sidecar.errors import StoreFormatError
from sidecar.settings import Settings
from sidecar.store import ChainStore
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row

E = 9001


def settings(pg: Database, store: Path, *replicas: Path) -> Settings:
    return Settings.given(dsn=pg.dsn, store=str(store), store_replicas=",".join(map(str, replicas)))


async def contents(path: Path) -> dict[int, tuple[Event, ...]]:
    async with ChainStore.open_readonly(str(path)) as store:
        return {e: await store.chain(e) async for e in store.executions()}


async def test_a_backfill_fills_every_replica_and_goes_on_where_it_was(pg: Database, tmp_path: Path) -> None:
    store, first, second = (tmp_path / f"{name}.db" for name in ("store", "first", "second"))
    await pg.insert([row for n in range(20) for row in chain_rows(E + n, [1, 2, 3])])
    await backfilled(settings(pg, store, first))
    assert await contents(first) == await contents(store)
    await pg.insert([event_row(E + 4, 4, prev=3)])
    await backfilled(settings(pg, store, first, second))
    assert len((await contents(store))[E + 4]) == 4
    assert await contents(first) == await contents(second) == await contents(store)


async def test_a_replica_that_is_away_or_disagrees_is_said_and_fails_nothing(
    pg: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, away, forked = tmp_path / "store.db", tmp_path / "away.db", tmp_path / "forked.db"
    await pg.insert(chain_rows(E, [1, 2, 3]))
    async with ChainStore.open(str(forked)) as other:
        await other.apply_replicated(Event(E, 2, 1, None, "step.exit", "{}"), 2)
    async with ChainStore.open(str(away)):  # somebody else writes it
        _, rows = await backfilled(settings(pg, store, away, forked))
    said = "".join(capsys.readouterr())
    assert rows == 3
    assert [event.event_id for event in (await contents(store))[E]] == [1, 2, 3]
    assert "replica_away" in said
    assert "replica_forked" in said
    await backfilled(settings(pg, store, away))
    assert await contents(away) == await contents(store)


async def test_a_replica_of_another_layout_refuses_before_anything_is_filled(
    pg: Database, tmp_path: Path
) -> None:
    store, old = tmp_path / "store.db", tmp_path / "old.db"
    await pg.insert(chain_rows(E, [1]))
    async with ChainStore.open(str(old)):
        pass
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("UPDATE meta SET value = '2' WHERE key = 'FORMAT_VERSION'")
    with pytest.raises(StoreFormatError):
        await backfilled(settings(pg, store, old))
    assert not store.exists()
