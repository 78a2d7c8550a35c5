"""Joins in a store: kept once, read back by every read, and with the gate off not there at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.core.authority import Reason
from sidecar.core.event import Event
from sidecar.core.populate import InSync, LogRead, Refused
from sidecar.core.ports import ExecutionLog
from sidecar.core.rejoin import Kept
from sidecar.core.sums import agree, sums_of
from sidecar.core.verdict import Verdict
from sidecar.store import ChainStore
from sidecar.store.unit import StoreUnit
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain
from tests.contract.joins import BY_POSITIONS, JOIN, LOG, joined, keep, opened, withdraw
from tests.contract.postgres import PostgresBackend, three_lenders

Place = SqliteBackend | PostgresBackend


@pytest.fixture(params=["sqlite", "postgres", pytest.param("spread", marks=pytest.mark.torture)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield SqliteBackend(tmp_path)
        return
    made = PostgresBackend(tmp_path) if request.param == "postgres" else three_lenders()
    yield made
    made.remove()


async def test_a_proof_is_kept_once_and_withdrawn_once(place: Place) -> None:
    async with opened(place) as store:
        assert await store.joins(E) == ()
        await keep(store, JOIN, replace(JOIN, root_event_id=3, joined_at=4))
        await keep(store, replace(JOIN, tip_event_id=1, xid=99))
        assert await store.joins(E) == (replace(JOIN, root_event_id=3, joined_at=4), JOIN)
        await withdraw(store, 40, JOIN)
        await withdraw(store, 50, JOIN)
        await keep(store, JOIN)
        assert (await store.joins(E))[1] == replace(JOIN, withdrawn_at=40)
        assert store.clock.now() > 50


async def test_a_proof_by_positions_is_kept_with_both(place: Place) -> None:
    """They are unsigned and have 64 bits."""
    async with opened(place) as store:
        await keep(store, BY_POSITIONS)
        assert await store.joins(E) == (BY_POSITIONS,)
        assert await store.populate_from_log(E, LOG) == InSync(4, 4)
        assert (await store.chain_if_authoritative(E)).events == LOG


async def test_with_the_gate_off_nothing_is_kept_read_or_withdrawn(place: Place) -> None:
    async with opened(place, rejoining=False) as store:
        await keep(store, JOIN)
        assert await store.joins(E) == ()
    async with opened(place) as store:
        await joined(store)
    async with opened(place, rejoining=False) as store:
        await withdraw(store, 40, JOIN)
        assert await store.joins(E) == (JOIN,), "what is kept is shown"
        assert await store.transact(lambda unit: unit.joins((E,))) == {}
        assert await store.populate_from_log(E, LOG) == Refused("multiple_roots")
        assert (await store.chain_if_authoritative(E)).reason is Reason.CHAIN_GAP
        assert not await store.chain_is_complete(E)


def spelled(event: Event) -> Event:
    """With a body that says what its columns say, as the log's rows do."""
    prev = "" if event.prev_event_id is None else f'"prev_event_id":{event.prev_event_id},'
    ids = f'"event_id":{event.event_id},"event_type":"{event.event_type}","execution_id":{E},'
    return Event(E, event.event_id, event.prev_event_id, None, event.event_type, f'{{{ids}{prev}"z":1}}')


@pytest.mark.parametrize("rejoining", [True, False])
async def test_sums_are_whole_over_a_join_with_the_gate_on_only(place: Place, rejoining: bool) -> None:
    async with opened(place) as store:
        await keep(store, JOIN)
        await store.populate_from_log(E, [spelled(event) for event in LOG])
    async with opened(place, rejoining=rejoining) as store:
        assert (await store.summer.of((E,)))[E].whole is rejoining


async def test_every_read_understands_a_join(place: Place) -> None:
    async with opened(place) as store:
        await joined(store)
        assert (await store.chain_if_authoritative(E)).events == LOG
        assert (await store.guarded_reads((E,)))[E].events == LOG
        assert (await store.transact(lambda unit: unit.guarded_read(E))).events == LOG
        snapshot = await store.snapshot(E)
        assert (snapshot.guarded.events, snapshot.joins, snapshot.usable) == (LOG, (JOIN,), (JOIN,))
        assert [row.event for row in await store.walk_from_head(E)] == list(reversed(LOG))
        assert await store.chain_is_complete(E)
        sums = (await store.summer.of((E,)))[E]
        assert agree(sums_of(LOG), replace(sums, whole=True))
        assert sums.verdict is Verdict.MATCH_REJOINED
        assert [event.prev_event_id for event in await store.chain(E)] == [None, 1, None, 9]
    async with ChainStore.open_readonly(place.url, rejoining=True) as reader:
        assert (await reader.chain_if_authoritative(E)).events == LOG
    async with ChainStore.open_readonly(place.url) as reader:
        assert (await reader.chain_if_authoritative(E)).reason is Reason.CHAIN_GAP
        assert (await reader.snapshot(E)).usable == ()


async def test_a_longer_log_goes_on_over_the_join_and_a_contradicted_one_is_refused(place: Place) -> None:
    async with opened(place) as store:
        await joined(store)
        longer = (*LOG, chain(4, 6)[1])
        assert await store.populate_from_log(E, longer) == InSync(5, 1)
        against = ExecutionLog(E, (*longer, chain(2, 8)[1]), LogRead(store.clock.now()))
        done = (await store.transact(lambda unit: unit.populate((against,))))[E]
        assert (done.outcome, done.against, done.withdrawn) == (
            Refused("multiple_roots"),
            Kept((JOIN,)),
            True,
        )
        await withdraw(store, store.clock.now(), JOIN)
        assert (await store.chain_if_authoritative(E)).reason is Reason.CHAIN_GAP
        again = ExecutionLog(E, longer, LogRead(store.clock.now()))
        done = (await store.transact(lambda unit: unit.populate((again,))))[E]
        assert (done.outcome, done.against, done.withdrawn) == (Refused("multiple_roots"), Kept(), True)


async def test_a_proof_that_came_to_nothing_is_not_withdrawn(place: Place) -> None:
    """Rows were known that could not be stored: the row that was taken for the tip was none any more."""
    async with opened(place) as store:
        await store.populate_from_log(E, LOG[:2])
        await keep(store, JOIN)
        further = ExecutionLog(E, (*LOG, chain(2, 8)[1]), LogRead(store.clock.now()))
        done = (await store.transact(lambda unit: unit.populate((further,))))[E]
        assert (done.outcome, done.against, done.withdrawn) == (
            Refused("multiple_roots"),
            Kept((), (JOIN,)),
            False,
        )


async def test_what_follows_a_populate_in_one_unit_sees_what_was_proven_in_it(place: Place) -> None:
    async with opened(place) as store:

        async def work(unit: StoreUnit) -> object:
            await unit.keep_joins((JOIN,))
            return (await unit.populate((ExecutionLog(E, LOG, LogRead(1)),)))[E].outcome

        assert await store.transact(work) == InSync(4, 4)


async def test_a_rebuild_keeps_what_orders_the_log_and_forgets_the_rest(place: Place) -> None:
    async with opened(place) as store:
        await joined(store)
        await store.revoke(E, "second_writer")
        assert (await store.rebuild(E, LOG)).outcome == InSync(4, 4)
        assert (await store.chain_if_authoritative(E)).events == LOG
        assert await store.joins(E) == (JOIN,)
        await withdraw(store, store.clock.now(), JOIN)
        assert (await store.rebuild(E, LOG)).outcome == Refused("multiple_roots")
        assert len(await store.joins(E)) == 1
        assert (await store.rebuild(E, LOG[:2])).outcome == InSync(2, 2)
        assert await store.joins(E) == ()
