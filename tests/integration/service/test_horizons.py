"""One store, another log behind it: no horizon of the old one is used.

A saved H says "everything below is stored" of one table in one database, one shard and one
epoch.  Source: spec 1.8 ("What H covers").
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from sidecar.demo.ddl import event_table
from sidecar.source.poll import Poller, Window
from sidecar.store import ChainStore
from tests.conftest import Servers
from tests.support.databases import Database, fresh_database
from tests.support.rows import chain_rows, insert_rows
from tests.support.service import service

E = 7600


class Polls:
    """The horizon of every poll, by lane, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.horizons: dict[str, list[int | None]] = {}
        real = Poller.run

        def run(poller: Poller, request: Any, accept: Any) -> AsyncGenerator[Any, None]:
            lane = f"{request.range.seconds:g} s" if isinstance(request.range, Window) else "sweep"
            self.horizons.setdefault(lane, []).append(request.horizon)
            return real(poller, request, accept)

        monkeypatch.setattr(Poller, "run", run)

    def first(self) -> dict[str, int | None]:
        """Each lane's first poll since the last call."""
        firsts = {lane: horizons[0] for lane, horizons in self.horizons.items()}
        self.horizons.clear()
        return firsts


async def _followed(dsn: str, store: Path, polls: Polls, **settings: Any) -> dict[str, int | None]:
    """Run until every lane has a horizon and is idle; the horizon of each lane's first poll."""
    polls.first()
    async with service(dsn, store, **settings) as sidecar:
        await sidecar.idle()

        async def polled() -> bool:
            cursors = await sidecar.store.cursors()
            horizons = [cursor.horizon for cursor in cursors.values()]
            return len(polls.horizons) == 3 and None not in horizons

        await sidecar.until(polled)
        return polls.first()


async def _stored(store: Path) -> set[tuple[int, int]]:
    async with ChainStore.open_readonly(str(store)) as reader:
        return {(row[0], row[1]) for row in await reader.query("SELECT execution_id, event_id FROM event")}


async def _rows(pg: Database, execution_id: int) -> None:
    await pg.insert(chain_rows(execution_id, [1, 2, 3]))


async def test_a_restart_on_the_same_log_goes_on_from_its_horizons(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the tests below: here an H is used."""
    store, polls = tmp_path / "chain.db", Polls(monkeypatch)
    await _rows(pg, E)
    await _followed(pg.dsn, store, polls)
    await _rows(pg, E + 1)
    firsts = await _followed(pg.dsn, store, polls)
    assert None not in firsts.values()
    assert await _stored(store) == {(e, n) for e in (E, E + 1) for n in (1, 2, 3)}


async def test_another_database_is_read_without_the_old_horizons(
    pg: Database, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second log was filled before the first one was followed: every row lies below its H."""
    store, polls = tmp_path / "chain.db", Polls(monkeypatch)
    async with fresh_database(await servers(None)) as other:
        await _rows(other, E + 1)
        await _rows(pg, E)
        await _followed(pg.dsn, store, polls)
        firsts = await _followed(other.dsn, store, polls)
        assert (firsts["60 s"], firsts["3600 s"]) == (None, None)
        assert {(E + 1, n) for n in (1, 2, 3)} <= await _stored(store)


@pytest.mark.torture
async def test_another_schema_is_read_without_the_old_horizons(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, polls = tmp_path / "chain.db", Polls(monkeypatch)
    await pg.execute(event_table("other"))
    conn = await pg.connect()
    await insert_rows(conn, chain_rows(E + 1, [1, 2, 3]), table="other.event")
    await _rows(pg, E)
    await _followed(pg.dsn, store, polls)
    firsts = await _followed(pg.dsn, store, polls, noetl_schema="other")
    assert (firsts["60 s"], firsts["3600 s"]) == (None, None)
    assert {(E + 1, n) for n in (1, 2, 3)} <= await _stored(store)


@pytest.mark.torture
async def test_another_shard_count_is_read_without_the_old_horizons(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, polls = tmp_path / "chain.db", Polls(monkeypatch)
    for execution_id in range(E, E + 20):
        await _rows(pg, execution_id)
    await _followed(pg.dsn, store, polls, shard_index=0, shard_count=2)
    some = await _stored(store)
    assert 0 < len(some) < 60
    firsts = await _followed(pg.dsn, store, polls, shard_index=0, shard_count=1)
    assert (firsts["60 s"], firsts["3600 s"]) == (None, None)
    assert len(await _stored(store)) == 60


async def test_another_window_is_read_without_the_old_horizon_of_its_lane(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, polls = tmp_path / "chain.db", Polls(monkeypatch)
    await _rows(pg, E)
    await _followed(pg.dsn, store, polls)
    firsts = await _followed(pg.dsn, store, polls, live_window_s=120)
    assert firsts["120 s"] is None
    assert firsts["3600 s"] is not None
