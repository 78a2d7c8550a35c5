"""Joins in a store file: checked, and copied to the stores that follow it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sidecar.core.event import Event
from sidecar.core.rejoin import Join
from sidecar.store import ChainStore
from sidecar.store.check import check
from sidecar.store.replication import Follower, Step
from tests.contract.backends import SqliteBackend
from tests.contract.events import E
from tests.contract.joins import JOIN, LOG, joined, opened, withdraw
from tests.contract.test_replication import following


async def test_a_check_knows_joins_and_what_a_withdrawn_one_leaves(sqlite: SqliteBackend) -> None:
    async with opened(sqlite) as store:
        await joined(store)
    assert check(sqlite.path).findings == []
    sqlite.run("UPDATE rejoin SET withdrawn_at = 9")
    assert [found.kind for found in check(sqlite.path).findings] == ["coverage"]
    async with opened(sqlite) as store:
        await store.revoke(E, "rejoin_withdrawn")
    assert check(sqlite.path).findings == []
    sqlite.run("UPDATE rejoin SET tip_event_id = 1")
    assert [found.kind for found in check(sqlite.path).findings] == ["link"]
    sqlite.run("UPDATE rejoin SET tip_event_id = 2, xid = 6")
    assert [found.kind for found in check(sqlite.path).findings] == ["join"]


async def test_a_replica_holds_the_joins_of_what_it_holds(sqlite: SqliteBackend, tmp_path: Path) -> None:
    url = str(tmp_path / "replica.db")
    async with ChainStore.open(sqlite.url, rejoining=True, replicas=(url,)) as store:
        await joined(store)
        await Follower(store, url).catch_up()
        async with ChainStore.open_readonly(url, rejoining=True) as replica:
            assert await replica.joins(E) == (JOIN,)
            assert await replica.chain_is_complete(E)
        at = store.clock.now()
        await withdraw(store, at, JOIN)
        await Follower(store, url).catch_up()
        assert await held(url) == (replace(JOIN, withdrawn_at=at),), "no row was stored"
        assert check(Path(url)).findings == []


async def held(url: str) -> tuple[Join, ...]:
    async with ChainStore.open_readonly(url, rejoining=True) as replica:
        return await replica.joins(E)


async def test_a_withdrawal_reaches_a_replica_that_follows_without_a_row(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    url = tmp_path / "replica.db"
    async with ChainStore.open(sqlite.url, rejoining=True, replicas=(str(url),)) as store:
        await joined(store)
        async with following(store, url) as running:
            await running.caught_up()
            known = len(running.steps)
            at = store.clock.now()
            await withdraw(store, at, JOIN)
            await running.until(lambda step: step in running.steps[known:])
            assert await held(str(url)) == (replace(JOIN, withdrawn_at=at),)
            await withdraw(store, at, JOIN)
            await store.populate_from_log(E + 1, [replace_execution(event) for event in LOG[:2]])
            await running.caught_up()
            assert await held(str(url)) == (replace(JOIN, withdrawn_at=at),)


async def test_a_withdrawal_that_a_replica_missed_reaches_it_after_a_restart(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    """The process ended between the batch and the replica, which has every row."""
    url = str(tmp_path / "replica.db")
    async with ChainStore.open(sqlite.url, rejoining=True, replicas=(url,)) as store:
        await joined(store)
        await Follower(store, url).catch_up()
        at = store.clock.now()
        await withdraw(store, at, JOIN)
    async with ChainStore.open(sqlite.url, rejoining=True, replicas=(url,)) as store:
        assert await held(url) == (JOIN,)
        await Follower(store, url).catch_up()
        assert await held(url) == (replace(JOIN, withdrawn_at=at),)
        steps: list[Step] = []
        await Follower(store, url).catch_up(steps.append)
        assert [step.applied for step in steps] == [False], "nothing is copied twice"


def replace_execution(event: Event) -> Event:
    return Event(E + 1, event.event_id, event.prev_event_id, None, event.event_type, event.body)
