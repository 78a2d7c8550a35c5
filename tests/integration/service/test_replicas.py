"""Replicas of a running line: filled, away, in disagreement, and what verify says of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sidecar.commands.verify import verification
from sidecar.errors import ConfigError
from sidecar.settings import Settings
from sidecar.store import ChainStore
from tests.support.captured import captured
from tests.support.changing import replace
from tests.support.databases import Database
from tests.support.rows import chain_rows
from tests.support.running import Running
from tests.support.service import Service, service

A, B = 41, 42


async def lag_is(sidecar: Service, events: int) -> None:
    async def holds() -> bool:
        return sidecar.value("replica_lag_events", replica="0") == events

    await sidecar.until(holds)


async def in_step(sidecar: Service, replica: str = "0") -> None:
    """Wait until the replica takes events and lacks none."""

    async def holds() -> bool:
        up, lag = (sidecar.value(f"replica_{what}", replica=replica) for what in ("up", "lag_events"))
        return up == 1 and lag == 0

    await sidecar.until(holds)


async def judged(pg: Database, path: Path) -> dict[str, Any]:
    """What `verify --store` says of one store, as its JSON."""
    found = await verification(Settings.given(dsn=pg.dsn), store_url=str(path))
    return found.document(0.0) | {"exit_code": found.exit_code}


async def test_a_replica_follows_and_verify_judges_it(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "replica.db"
    await pg.insert(chain_rows(A, range(1, 11)))
    async with service(pg.dsn, tmp_path / "chain.db", store_replicas=(str(path),)) as sidecar:
        await sidecar.verdict(A, "match")
        await in_step(sidecar)
        whole = await judged(pg, path)
        assert (whole["covered_events"], whole["behind_events"], whole["exit_code"]) == (10, 0, 0)
    await pg.insert(chain_rows(B, range(1, 6)))  # the replica is alone now
    behind = await judged(pg, path)
    assert (behind["covered_events"], behind["behind_events"], behind["exit_code"]) == (10, 5, 3)
    assert behind["findings"][0]["execution_id"] == str(B)


async def test_a_replica_that_is_away_stops_nothing_and_catches_up(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "volume" / "replica.db"
    async with service(pg.dsn, tmp_path / "chain.db", store_replicas=(str(path),)) as sidecar:
        await pg.insert(chain_rows(A, range(1, 8)))
        await sidecar.verdict(A, "match")
        await sidecar.caught_up()
        await lag_is(sidecar, 7)
        assert sidecar.value("replica_up", replica="0") == 0
        assert sidecar.value("store_paused") == 0
        path.parent.mkdir()
        await in_step(sidecar)
    async with ChainStore.open_readonly(str(path)) as replica:
        assert len(await replica.chain(A)) == 7


async def test_d07_a_replica_that_disagrees_is_said_and_shown_and_kept(pg: Database, tmp_path: Path) -> None:
    """One replica holds another body; the other one has the whole log."""
    paths = tmp_path / "bad.db", tmp_path / "good.db"
    await pg.insert(chain_rows(A, range(1, 6)))
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await sidecar.verdict(A, "match")
        stored = await sidecar.store.chain(A)
    changed = replace(stored[2], body=stored[2].body + " ")
    async with ChainStore.open(str(paths[0])) as bad:
        await bad.apply_replicated(changed, 3)

    log, said = captured()
    replicas = tuple(map(str, paths))
    async with service(pg.dsn, tmp_path / "chain.db", log=log, store_replicas=replicas) as sidecar:
        for replica in ("0", "1"):
            await in_step(sidecar, replica)
        forks = [sidecar.value("replica_forked_events", replica=replica) for replica in ("0", "1")]
        assert forks == [1, 0]
        assert sidecar.divergences() == {}  # the store itself is well
    (line,) = [each for each in said if each["event"] == "replica_forked"]
    assert (line["replica"], str(A) in line["reason"], changed.body in str(line)) == (0, True, False)
    async with ChainStore.open_readonly(str(paths[0])) as bad_store:
        assert (await bad_store.chain(A))[2] == changed
    found = [await judged(pg, path) for path in paths]
    assert [each["exit_code"] for each in found] == [1, 0]
    assert found[0]["divergences"]["payload"] == 1


async def test_i46_run_refuses_to_start_beside_a_replica_of_another_layout(
    pg: Database, tmp_path: Path
) -> None:
    path = tmp_path / "replica.db"
    async with ChainStore.open(str(path)) as store:
        await store.transact(lambda unit: unit.rows("UPDATE meta SET value = '2'"))
    async with Running.start(pg.dsn, tmp_path / "chain.db", NOETL_CHAIN_STORE_REPLICAS=str(path)) as sidecar:
        async with asyncio.timeout(30):
            assert await sidecar._process.wait() == 20
    assert not (tmp_path / "chain.db").exists()


async def test_run_exports_its_replicas_by_index(pg: Database, tmp_path: Path) -> None:
    names = f" {tmp_path / 'a.db'} , {tmp_path / 'b.db'}"
    await pg.insert(chain_rows(A, range(1, 4)))
    async with Running.start(pg.dsn, tmp_path / "chain.db", NOETL_CHAIN_STORE_REPLICAS=names) as sidecar:
        up = [f'noetl_chain_replica_up{{replica="{index}"}} 1.0' for index in range(2)]
        await sidecar.until("/metrics", lambda text: all(each in text for each in up))
        await sidecar.stores(3)
        await sidecar.until(
            "/metrics", lambda text: all(f'lag_events{{replica="{i}"}} 0.0' in text for i in (0, 1))
        )
        assert await sidecar.stopped() == 0


@pytest.mark.parametrize("text", ["a.db,,b.db", "http://x/y", ",".join(f"{i}.db" for i in range(9))])
def test_a_list_of_replicas_that_is_none_stops_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match="NOETL_CHAIN_STORE_REPLICAS"):
        Settings.given(store_replicas=text)
