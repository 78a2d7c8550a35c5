"""What somebody does to the slot, the publication or the server: noticed, named, repaired by the sweep."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from sidecar.core.ports import Lane
from sidecar.core.walgap import Gap
from sidecar.errors import SourceError
from sidecar.source.wal import WalLane
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.published import PUBLISH, slots
from tests.support.rows import chain_rows, event_row
from tests.support.standby import replayed, streaming
from tests.support.tailing import Follower, MemoryStore, Ticks, following, log_keys, opened

E = 7700
DROP = "SELECT pg_drop_replication_slot('noetl_chain')"
CREATE = "SELECT pg_create_logical_replication_slot('noetl_chain', 'pgoutput')"
TAKE = (
    "SELECT count(*) FROM pg_logical_slot_get_binary_changes('noetl_chain', NULL, NULL,"
    " 'proto_version', '1', 'publication_names', 'noetl_chain')"
)

Step = Callable[[Database], Awaitable[None]]


class Both:
    """The lanes wal and sweep of one run; a lane that fails is begun again, as the line does."""

    def __init__(self, store: MemoryStore, lane: WalLane, wal: Follower) -> None:
        self.store = store
        self.lane = lane
        self.wal = wal

    async def quiet(self) -> None:
        """Until no gap is open and a peek begun after this call is stored."""
        await self.wal.polls("wal", 1)
        await self.wal.until(lambda: self.lane.state.caught_up and self.store.horizon("wal") is not None)


@asynccontextmanager
async def followed(pg: Database, store: MemoryStore) -> AsyncIterator[Both]:
    async with opened(pg.dsn, tail="wal", sweep_round_s=3600) as source:
        lane, sweep = source.wal_lanes(store, Ticks())
        retried: Any = Retried(lane)
        beside: Any = Retried(sweep)
        async with following(beside, store), following(retried, store) as wal:
            yield Both(store, lane, wal)


class Retried:
    """A lane that begins again after a failure of Postgres."""

    def __init__(self, lane: Lane) -> None:
        self.name = lane.name
        self._lane = lane

    async def batches(self) -> AsyncIterator[Any]:
        while True:
            try:
                async for batch in self._lane.batches():
                    yield batch
            except SourceError:
                await asyncio.sleep(0.01)


async def _until(pg: Database, step: Step) -> None:
    """Repeat what the lane may be in the way of, for it holds the slot while it peeks."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await step(pg)
            except asyncpg.ObjectInUseError:
                await asyncio.sleep(0.001)


async def _dropped(pg: Database) -> None:
    await pg.execute(DROP)
    await pg.insert(chain_rows(E + 1, [11, 12]))


async def _made_anew(pg: Database) -> None:
    await pg.execute(DROP)
    await pg.insert(chain_rows(E + 1, [11, 12]))
    with contextlib.suppress(asyncpg.DuplicateObjectError):  # a lane that runs may be first
        await pg.execute(CREATE)


async def _taken_by_another(pg: Database) -> None:
    await pg.insert(chain_rows(E + 1, [11, 12]))
    assert (await pg.fetch(TAKE))[0][0] > 0


async def _published_anew(pg: Database) -> None:
    """A row of the time without, which no stream has."""
    await pg.execute("DROP PUBLICATION noetl_chain")
    await pg.insert(chain_rows(E + 1, [11, 12]))
    await pg.execute(PUBLISH)


WAYS: dict[Gap, Step] = {
    Gap.SLOT_MISSING: _dropped,
    Gap.SLOT_AHEAD: _made_anew,
    Gap.PUBLICATION: _published_anew,
}


@pytest.mark.parametrize("gap", WAYS)
async def test_what_was_done_while_nobody_looked_is_repaired(pg_wal: Database, gap: Gap) -> None:
    store = MemoryStore()
    async with followed(pg_wal, store) as both:
        await both.quiet()
        await pg_wal.insert(chain_rows(E, [1, 2]))
        await both.wal.until(lambda: len(store.bodies) == 2)
        await both.quiet()
    await WAYS[gap](pg_wal)
    await pg_wal.insert([event_row(E, 3, prev=2)])
    async with followed(pg_wal, store) as both:
        await both.wal.until(lambda: both.lane.gaps[gap] == 1)
        await both.quiet()
        await pg_wal.insert([event_row(E, 4, prev=3)])
        await both.wal.until(lambda: (E, 4) in store.bodies)
    assert set(store.bodies) == await log_keys(await pg_wal.connect())
    assert both.lane.gaps == {gap: 1}


@pytest.mark.torture
@pytest.mark.parametrize("step", [_dropped, _made_anew, _taken_by_another, _published_anew])
async def test_what_is_done_under_a_running_lane_is_repaired(pg_wal: Database, step: Step) -> None:
    store = MemoryStore()
    async with followed(pg_wal, store) as both:
        await both.quiet()
        for number in range(3):
            await pg_wal.insert(chain_rows(E + 10 + number, [100 + number]))
            before = sum(both.lane.gaps.values())
            if step is _taken_by_another:
                # Whoever comes first has the rows; the other has the gap.
                await pg_wal.insert(chain_rows(E + 20 + number, [200 + number]))
                await _until(pg_wal, lambda pg: pg.execute(TAKE))
            else:
                await pg_wal.execute("DELETE FROM noetl.event WHERE execution_id = $1", E + 1)
                await _until(pg_wal, step)
                await both.wal.until(lambda before=before: sum(both.lane.gaps.values()) > before)  # type: ignore[misc]
            await both.quiet()
        expected = await log_keys(await pg_wal.connect())
        await both.wal.until(lambda: expected <= set(store.bodies))
    assert expected <= set(store.bodies)


async def test_a_slot_that_the_server_gave_up_is_made_anew(pg_server: StartServer) -> None:
    server = await pg_server(
        {"wal_level": "logical", "max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB"}
    )
    pg = Database(server.dsn(), "postgres")
    await pg.execute(PUBLISH)
    store = MemoryStore()
    async with followed(pg, store) as both:
        await both.quiet()
    await pg.insert(chain_rows(E, [1, 2]))
    async with asyncio.timeout(30):
        while (await pg.fetch("SELECT wal_status FROM pg_replication_slots"))[0][0] != "lost":
            await pg.execute("SELECT pg_logical_emit_message(false, '', 'x')")
            await pg.execute("SELECT pg_switch_wal()")
            await pg.execute("CHECKPOINT")
    async with followed(pg, store) as both:
        await both.wal.until(lambda: both.lane.gaps[Gap.SLOT_LOST] == 1)
        await both.quiet()
        await pg.insert([event_row(E, 3, prev=2)])
        await both.wal.until(lambda: len(store.bodies) == 3)
    assert both.lane.gaps == {Gap.SLOT_LOST: 1}
    await pg.close()


async def test_a_gap_that_was_not_repaired_is_still_one_after_a_restart(pg_wal: Database) -> None:
    store = MemoryStore()
    await pg_wal.insert(chain_rows(E, [1, 2]))
    async with opened(pg_wal.dsn, tail="wal") as source:
        lane, _ = source.wal_lanes(store, Ticks())
        async with following(lane, store) as wal:  # without a sweep
            await wal.polls("wal", 1)
    assert (len(store.bodies), store.horizon("wal")) == (0, None)
    async with followed(pg_wal, store) as both:
        await both.quiet()
    assert both.lane.gaps == {Gap.OWED: 1}
    assert set(store.bodies) == {(E, 1), (E, 2)}


async def test_the_server_ended_at_once_is_no_gap(pg_server: StartServer) -> None:
    server = await pg_server({"wal_level": "logical"})
    pg = Database(server.dsn(), "postgres")
    await pg.execute(PUBLISH)
    store = MemoryStore()
    async with followed(pg, store) as both:
        await both.quiet()
        await pg.insert(chain_rows(E, [1, 2]))
        await both.wal.until(lambda: len(store.bodies) == 2)
        server.kill(signal.SIGQUIT)
        server.restart()
        await pg.insert([event_row(E, 3, prev=2)])
        await both.wal.until(lambda: len(store.bodies) == 3)
        await both.quiet()
    assert both.lane.gaps == {Gap.FIRST: 1}
    assert list(await slots(pg)) == ["noetl_chain"]
    await pg.close()


@pytest.mark.torture
async def test_a_standby_that_was_promoted_is_a_gap_though_it_bears_the_same_slot(
    pg_server: StartServer,
) -> None:
    """The old primary went on for a while: what only it had is gone, and its positions mean nothing here."""
    server = await pg_server({"wal_level": "logical", "wal_keep_size": "64MB"})
    pg = Database(server.dsn(), "postgres")
    await pg.execute(PUBLISH)
    store = MemoryStore()
    async with followed(pg, store) as both:
        await both.quiet()
        standby = await streaming(server, pg_server)
        new = Database(standby.dsn(), "postgres")
        await pg.insert(chain_rows(E, [1, 2]))
        await both.wal.until(lambda: len(store.bodies) == 2)
        await replayed(pg, new)
        standby.halt()
        await pg.insert([event_row(E, 3, prev=2)])
        await both.wal.until(lambda: len(store.bodies) == 3)
        await both.quiet()
    server.kill(signal.SIGQUIT)
    standby.restart({"hot_standby": "on", "wal_level": "logical"})
    await new.execute("SELECT pg_promote(true, 30)")
    await new.execute(CREATE)
    await new.insert([event_row(E, 4, prev=2)])
    async with followed(new, store) as both:
        await both.wal.until(lambda: both.lane.gaps[Gap.TIMELINE] == 1)
        await both.quiet()
        await new.insert([event_row(E, 5, prev=4)])
        await both.wal.until(lambda: (E, 5) in store.bodies)
    assert both.lane.gaps == {Gap.TIMELINE: 1}
    assert await log_keys(await new.connect()) <= set(store.bodies)
    read = [{e.event_id for e in log.events or ()} for b in store.batches for log in b.logs]
    assert read[-1] == {1, 2, 4}, (
        "row 3 was lost with the old primary, and its execution is judged by the log"
    )
    await pg.close()
    await new.close()
