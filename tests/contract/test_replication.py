"""Stores that follow another one: in any order, after an absence, against a disagreement.

Also the format gate over all of them.  Source: spec 2.2 (replica rule), 2.3, 6.1.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from shutil import copyfile

import pytest

from sidecar.core.authority import NotPopulated, StoredEvent
from sidecar.core.event import Event
from sidecar.errors import ConfigError, StoreCorrupt, StoreError, StoreFormatError, StoreLocked
from sidecar.store import ChainStore, StoreReader, events
from sidecar.store.check import check
from sidecar.store.replication import Follower, Step, caught_up
from sidecar.store.retention import DAY_US, Retention
from sidecar.store.sequence import AFTER
from sidecar.store.unit import StoreUnit
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain, long_chain
from tests.contract.test_sqlite_plans import plan
from tests.support.changing import replace

PATIENCE_S = 10.0


class Following:
    """A follower that runs, and what it told."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.steps: list[Step] = []
        self._told = asyncio.Condition()
        self._news = asyncio.Event()
        self.task = asyncio.create_task(follower.follow(self._tell))

    def _tell(self, step: Step) -> None:
        self.steps.append(step)
        self._news.set()

    async def until(self, holds: Callable[[Step], bool]) -> Step:
        """Wait for a step that is so; what ends the follower is raised."""
        async with asyncio.timeout(PATIENCE_S):
            while not any(map(holds, self.steps)):
                self._news.clear()
                news = asyncio.create_task(self._news.wait())
                await asyncio.wait({self.task, news}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if self.task.done():
                    self.task.result()
        return next(step for step in self.steps if holds(step))

    async def caught_up(self) -> Step:
        """Wait until nothing is missing that the primary has committed by now."""
        goal = self.follower._primary.committed.high
        return await self.until(lambda step: step.position >= goal)


@asynccontextmanager
async def following(primary: ChainStore, path: Path, *, rows: int = 500) -> AsyncIterator[Following]:
    """A follower for the length of a block."""
    running = Following(Follower(primary, str(path), rows=rows))
    try:
        yield running
    finally:
        running.task.cancel()
        await asyncio.wait({running.task})


async def contents(store: StoreReader) -> dict[int, tuple[Event, ...]]:
    return {e: await store.chain(e) async for e in store.executions()}


async def copied(path: Path) -> dict[int, tuple[Event, ...]]:
    async with ChainStore.open_readonly(str(path)) as replica:
        return await contents(replica)


def run(path: Path, sql: str, *parameters: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path, timeout=10.0)) as connection, connection:
        return connection.execute(sql, parameters).fetchall()


def files(folder: Path) -> dict[str, bytes]:
    """What stands in the files; the shared memory and the empty log of a reader are no content."""
    found = {file.name: file.read_bytes() for file in folder.iterdir()}
    return {name: data for name, data in found.items() if data and not name.endswith("-shm")}


async def opened_beside(sqlite: SqliteBackend, replicas: list[str]) -> None:
    async with ChainStore.open(sqlite.url, replicas=replicas):
        return


# Following


async def test_committed_events_reach_a_replica_and_claim_nothing(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store, following(store, path) as replica:
        await store.populate_from_log(E, long_chain(7))
        await store.append(chain(5, execution_id=3)[0])
        step = await replica.caught_up()
        assert (step.lag, replica.follower.lag, step.forks) == (0, 0, 0)
        assert await copied(path) == await contents(store)
        async with ChainStore.open_readonly(str(path)) as other:
            assert await other.authority(E) == NotPopulated()
            assert {row.origin for row in await other.stored_chain(E)} == {"replicated"}
            assert await other.chain_is_complete(E)
            seen = [[row.seen_at for row in await each.stored_chain(E)] for each in (store, other)]
    assert seen[0] == seen[1]  # when the log was read, not when it was copied


async def test_small_steps_over_many_executions_end_the_same(sqlite: SqliteBackend, tmp_path: Path) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        for turn in range(4):
            for e in range(6):
                await store.populate_from_log(e, long_chain(3 * (turn + 1), execution_id=e))
        async with following(store, path, rows=5) as replica:
            await replica.caught_up()
            assert len(replica.steps) > 10
            assert await copied(path) == await contents(store)


async def test_the_primary_does_not_wait_for_a_replica(sqlite: SqliteBackend, tmp_path: Path) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store, following(store, path) as replica:
        await replica.until(lambda step: not step.applied)
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        await store.populate_from_log(E, long_chain(20))
        assert len(await store.chain(E)) == 20
        assert replica.follower.lag == 20
        blocker.close()
        await replica.caught_up()
        assert replica.follower.lag == 0


async def test_a_replica_that_was_away_catches_up_from_where_it_was(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        await store.populate_from_log(1, long_chain(10, execution_id=1))
        async with following(store, path) as replica:
            await replica.caught_up()
        await store.populate_from_log(2, long_chain(10, execution_id=2))
        async with following(store, path) as replica:
            await replica.caught_up()
            assert [step.position for step in replica.steps] == [10, 20]
    async with sqlite.open() as store, following(store, path) as replica:  # a new process
        assert (await replica.caught_up()).position == 20
        assert [step.applied for step in replica.steps] == [False]
        assert await copied(path) == await contents(store)


async def test_a_replica_put_back_or_made_anew_is_filled_again(sqlite: SqliteBackend, tmp_path: Path) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        await store.populate_from_log(E, long_chain(10))
        async with following(store, path) as replica:
            assert (await replica.until(lambda step: not step.applied)).initialised
            await replica.caught_up()
        for name in files(tmp_path):
            if name.startswith("replica.db"):
                (tmp_path / name).unlink()
        path.with_name("replica.db-shm").unlink(missing_ok=True)
        async with following(store, path) as replica:
            await replica.caught_up()
            assert await copied(path) == await contents(store)


async def test_a_replica_of_another_store_begins_at_0(sqlite: SqliteBackend, tmp_path: Path) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store, following(store, path) as replica:
        await store.populate_from_log(1, long_chain(10, execution_id=1))
        await replica.caught_up()
    async with (
        ChainStore.open(str(tmp_path / "second.db")) as second,
        following(second, path) as replica,
    ):
        await second.populate_from_log(2, long_chain(3, execution_id=2))
        await replica.caught_up()
        assert sorted(await copied(path)) == [1, 2]
    assert len(run(path, "SELECT * FROM replica_position WHERE replica NOT LIKE '%/departures'")) == 2


async def test_a_primary_that_was_put_back_gives_its_numbers_again(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    """First with fewer numbers than the replica has seen, then with as many, but others."""
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        await store.populate_from_log(1, long_chain(4, execution_id=1))
        await store.prepare_following()
    copy = sqlite.path.read_bytes()
    async with sqlite.open() as store, following(store, path) as replica:
        await store.populate_from_log(2, long_chain(4, execution_id=2))
        await replica.caught_up()
    sqlite.path.write_bytes(copy)
    async with sqlite.open() as store:
        async with following(store, path) as replica:
            assert (await replica.until(lambda step: not step.applied)).position == 0
        await store.populate_from_log(3, long_chain(6, execution_id=3))
        async with following(store, path) as replica:
            await replica.caught_up()
            assert (replica.steps[0].position, replica.steps[0].departed) == (0, 0)
        assert (await copied(path))[3] == long_chain(6, execution_id=3)


async def test_d09_what_a_replica_has_is_passed_over(sqlite: SqliteBackend, tmp_path: Path) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        await store.populate_from_log(E, long_chain(10))
        async with following(store, path) as replica:
            await replica.caught_up()
        run(path, "DELETE FROM replica_position")
        async with following(store, path) as replica:
            step = await replica.caught_up()
            assert (step.applied, step.clashes, step.forks) == (True, (), 0)
            assert await copied(path) == await contents(store)


@pytest.mark.parametrize("order", [(3, 1, 2), (2, 3, 1), (3, 2, 1)])
async def test_out_of_order_is_legal(sqlite: SqliteBackend, order: tuple[int, ...]) -> None:
    async with sqlite.open() as store:
        for seq in order:
            await store.apply_replicated(chain(90, 10, 50)[seq - 1], seq)
        assert await store.chain(E) == chain(90, 10, 50)
        partition = await store.partition(E)
        assert partition is not None
        assert (partition.head_seq, partition.head_event_id) == (3, 50)


async def test_numbers_whose_rows_are_gone_are_passed_over(sqlite: SqliteBackend, tmp_path: Path) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        await store.populate_from_log(E, long_chain(5))
        for seq in (2, 4, 5):
            sqlite.drop_event(E, seq)
        async with following(store, path) as replica:
            step = await replica.caught_up()
            assert (step.position, step.lag) == (5, 0)
            assert [step.position for step in replica.steps] == [0, 5]
        assert [event.event_id for event in (await copied(path))[E]] == [
            event.event_id for event in (long_chain(5)[0], long_chain(5)[2])
        ]


# Disagreement


async def test_d07_a_replica_that_disagrees_is_reported_and_not_overwritten(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    path = tmp_path / "replica.db"
    other = replace(long_chain(5)[2], body='{"other":1}')
    async with ChainStore.open(str(path)) as replica_store:
        await replica_store.apply_replicated(other, 3)
    async with sqlite.open() as store, following(store, path) as replica:
        await store.populate_from_log(E, long_chain(5))
        step = await replica.caught_up()
        assert (len(step.clashes), step.forks, step.lag) == (1, 1, 0)
        assert step.clashes[0].error.first == other.event_id
        stands = (await copied(path))[E]
        assert stands == (*long_chain(5)[:2], other, *long_chain(5)[3:])
    assert run(path, "SELECT execution_id, verdict, position FROM finding") == [(E, "forked", 2)]
    assert "other" not in str(run(path, "SELECT detail FROM finding"))
    ((evidence, changed_at),) = run(path, "SELECT evidence, last_change_at FROM finding, partition")
    told = json.loads(str(evidence))
    assert type(told["log"]["read_at"]) is type(told["store"]["read_at"]) is type(changed_at) is int


async def test_a_fork_is_kept_over_a_restart_and_counted_once(sqlite: SqliteBackend, tmp_path: Path) -> None:
    path = tmp_path / "replica.db"
    async with ChainStore.open(str(path)) as replica_store:
        await replica_store.apply_replicated(chain(90, 77)[1], 2)
    async with sqlite.open() as store:
        await store.populate_from_log(E, chain(90, 10))
        for _ in range(3):  # the last event is the one that disagrees, so each start reads again
            async with following(store, path) as replica:
                await replica.caught_up()
                assert (await replica.until(lambda step: step.applied)).forks == 1
    assert run(path, "SELECT count(*) FROM finding") == [(1,)]


async def test_two_events_of_one_step_that_conflict_are_a_fork(sqlite: SqliteBackend, tmp_path: Path) -> None:
    """Possible only when somebody meddled with the primary: its own keys are write-once."""
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        await store.populate_from_log(E, chain(90, 10))
        async with following(store, path) as replica:
            await replica.caught_up()
        sqlite.run("UPDATE event SET body = '{}' WHERE event_id = 10")
        async with following(store, path) as replica:
            step = await replica.until(lambda step: step.applied)
            assert step.forks == 1
        assert (await copied(path))[E] == chain(90, 10)


async def test_d07_d09_rows_of_one_step_meet_each_other_too(sqlite: SqliteBackend) -> None:
    first, second = chain(90, 10)
    rows = [
        StoredEvent(1, first),
        StoredEvent(1, first),
        StoredEvent(2, first),
        StoredEvent(1, second),
        StoredEvent(2, second),
    ]
    async with sqlite.open() as store:
        clashes = await store.transact(lambda unit: events.apply(unit, rows, 1))
        assert [clash.came for clash in clashes] == rows[2:4]
        assert await store.chain(E) == chain(90, 10)


async def test_the_epochs_of_the_server_come_along(sqlite: SqliteBackend, tmp_path: Path) -> None:
    """`seen_at` of a row explains a lost log only beside them."""
    path = tmp_path / "replica.db"

    async def see(unit: StoreUnit) -> None:
        for epoch, now in (("a/1/2/3", 5), ("a/1/2/3", 9), ("b/1/2/3", 20), ("b/1/2/3", 30)):
            await unit.see_epoch(epoch, now)

    async with sqlite.open() as store, following(store, path) as replica:
        await store.transact(see)
        await store.populate_from_log(E, long_chain(2))
        await replica.caught_up()
        async with ChainStore.open_readonly(str(path)) as other:
            assert await other.epochs() == await store.epochs()


# Failures


async def test_a_replica_in_use_is_a_failure_of_the_replica(sqlite: SqliteBackend, tmp_path: Path) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store, ChainStore.open(str(path)), following(store, path) as replica:
        with pytest.raises(StoreLocked):
            await replica.until(lambda step: False)
        await store.append(chain(1)[0])


async def test_a_replica_whose_folder_is_away_is_not_made_elsewhere(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    path = tmp_path / "away" / "replica.db"
    async with ChainStore.open(sqlite.url, replicas=[str(path)]) as store:
        await store.populate_from_log(E, long_chain(3))
        async with following(store, path) as replica:
            with pytest.raises(StoreError, match="does not exist"):
                await replica.until(lambda step: False)
        assert replica.follower.lag == 3
        path.parent.mkdir()
        async with following(store, path) as replica:
            await replica.caught_up()
            assert await copied(path) == await contents(store)


async def test_cancelled_anywhere_a_follower_leaves_a_replica_that_goes_on(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        await store.populate_from_log(E, long_chain(300))
        cut = 0
        for pause in range(40):
            replica = Following(Follower(store, str(path), rows=7))
            await asyncio.wait({replica.task}, timeout=pause / 1000)
            replica.task.cancel()
            await asyncio.wait({replica.task})
            cut += 0 < run(path, "SELECT count(*) FROM event")[0][0] < 300 if path.exists() else 0  # type: ignore[operator]
        assert cut > 0
        async with following(store, path, rows=7) as last:
            await last.caught_up()
            assert await copied(path) == await contents(store)


# The gate over all of them


async def test_f08_i46_one_replica_of_another_layout_refuses_and_nothing_is_written(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    paths = [tmp_path / f"replica-{index}.db" for index in range(3)]
    async with ChainStore.open(str(paths[1])):
        pass
    run(paths[1], "UPDATE meta SET value = '2'")
    before = files(tmp_path)
    with pytest.raises(StoreFormatError, match="version 2"):
        await opened_beside(sqlite, [str(path) for path in paths])
    assert files(tmp_path) == before


async def test_f08_new_and_known_replicas_may_stand_side_by_side(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    known, new = tmp_path / "known.db", tmp_path / "new.db"
    async with ChainStore.open(str(known)):
        pass
    async with ChainStore.open(sqlite.url, replicas=[str(known), str(new)]) as store:
        marks = []
        for path in (known, new):
            async with following(store, path) as replica:
                marks.append((await replica.until(lambda step: not step.applied)).initialised)
    assert marks == [False, True]


async def test_f06_f08_a_marker_that_cannot_be_read_is_not_taken_for_a_new_one(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    """The replica is away; the store itself goes on."""
    path = tmp_path / "replica.db"
    path.write_bytes(b"not a database, " * 300)
    async with ChainStore.open(sqlite.url, replicas=[str(path)]) as store, following(store, path) as replica:
        with pytest.raises(StoreCorrupt):
            await replica.until(lambda step: False)
        await store.append(chain(1)[0])
    assert path.read_bytes() == b"not a database, " * 300


async def test_a_replica_that_came_back_with_another_layout_is_left_alone(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        async with ChainStore.open(str(path)):
            pass
        run(path, "UPDATE meta SET value = '2'")
        before = path.read_bytes()
        async with following(store, path) as replica:
            with pytest.raises(StoreFormatError):
                await replica.until(lambda step: False)
        assert path.read_bytes() == before


@pytest.mark.parametrize("names", [["chain.db"], ["a.db", "a.db"], ["a.db", "../{folder}/a.db"]])
async def test_a_replica_needs_a_file_of_its_own(
    sqlite: SqliteBackend, tmp_path: Path, names: list[str]
) -> None:
    replicas = [str(tmp_path / name.format(folder=tmp_path.name)) for name in names]
    with pytest.raises(ConfigError):
        await opened_beside(sqlite, replicas)
    assert files(tmp_path) == {}


# The sequence


async def test_recovery_is_the_cursor_and_what_follows_it(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await store.prepare_following()
        await store.populate_from_log(1, long_chain(8, execution_id=1))
        await store.populate_from_log(2, long_chain(12, execution_id=2))
        await store.advance_apply_cursor(0, 15)
    async with sqlite.open() as store:
        cursor = await store.load_apply_cursor(0)
        replayed = await store.events_after(cursor, 100)
        assert [each.gseq for each in replayed] == [16, 17, 18, 19, 20]
        assert [each.row.event for each in replayed] == list(long_chain(12, execution_id=2)[7:])
        assert len(await store.events_after(cursor, 2)) == 2


async def test_d03_what_follows_a_number_is_one_search(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await store.prepare_following()
        assert await store.prepare_following() == await store.prepare_following()
    assert plan(sqlite, AFTER) == ["SEARCH event USING INDEX event_by_gseq (gseq>?)"]


async def test_a_store_that_has_replicas_is_indexed_when_it_opens(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    index = "SELECT count(*) FROM sqlite_schema WHERE name = 'event_by_gseq'"
    async with sqlite.open():
        assert sqlite.run(index) == [(0,)]
    async with ChainStore.open(sqlite.url, replicas=[str(tmp_path / "replica.db")]):
        assert sqlite.run(index) == [(1,)]


async def test_waiting_for_the_next_number_ends_with_its_commit(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        waiting = asyncio.create_task(store.committed.beyond(0, 0, 0))

        async def work(unit: StoreUnit) -> None:
            await unit.populate(())
            await asyncio.sleep(0)
            assert not waiting.done()

        await store.transact(work)
        assert not waiting.done()  # nothing was numbered
        await store.append(chain(1)[0])
        assert await waiting == 1


@pytest.mark.parametrize("junk", ["x", "", "-1", "1.5", None])
async def test_i47_an_unreadable_cursor_refuses_and_is_not_0(sqlite: SqliteBackend, junk: str | None) -> None:
    async with sqlite.open():
        pass
    sqlite.run("DROP TABLE apply_cursor")
    sqlite.run("CREATE TABLE apply_cursor (shard INTEGER PRIMARY KEY, seq)")
    sqlite.run("INSERT INTO apply_cursor VALUES (0, ?)", junk)
    async with sqlite.open() as store:
        with pytest.raises(StoreCorrupt):
            await store.load_apply_cursor(0)
        with pytest.raises(StoreCorrupt):
            await store.advance_apply_cursor(0, 9)
    assert sqlite.run("SELECT seq FROM apply_cursor") == [(junk,)]


async def test_i47_a_cursor_table_that_is_gone_is_a_failure(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        sqlite.run("DROP TABLE apply_cursor")
        with pytest.raises(StoreError):
            await store.load_apply_cursor(0)


# What the primary let go of


OLD = long_chain(4, execution_id=9)
NEW = tuple(replace(event, body='{"new":1}') for event in OLD[:3])


async def prepared(store: ChainStore) -> None:
    for e in (9, E):
        await store.populate_from_log(e, long_chain(4, execution_id=e))


async def dropped(sqlite: SqliteBackend, store: ChainStore, execution_id: int) -> None:
    """Retention lets go of one execution."""
    sqlite.run(
        "UPDATE partition SET verdict = 'log_pruned', verdict_at = 1, verdict_rows = 0, last_change_at = 1"
        " WHERE execution_id = ?",
        execution_id,
    )
    assert (await Retention(store, DAY_US).step()).executions == 1


def reached(step: Step, *, high: int, departed: int) -> bool:
    return step.position >= high and step.departed >= departed


def findings(path: Path, execution_id: int) -> list[tuple[object, ...]]:
    return run(
        path, "SELECT verdict, resolved_at IS NOT NULL FROM finding WHERE execution_id = ?", execution_id
    )


async def test_a_dropped_partition_is_dropped_on_a_replica(sqlite: SqliteBackend, tmp_path: Path) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store, following(store, path) as replica:
        await prepared(store)
        await replica.caught_up()
        await dropped(sqlite, store, 9)
        await replica.until(lambda step: step.departed == 1)  # although no event came
        assert await copied(path) == await contents(store) == {E: long_chain(4)}
    assert run(path, "SELECT execution_id FROM partition") == [(E,)]
    assert findings(path, 9) == []
    assert check(path).findings == []


@pytest.mark.parametrize("rows", [1, 2, 500])
async def test_a_replica_that_was_away_drops_what_went_and_takes_what_came_after(
    sqlite: SqliteBackend, tmp_path: Path, rows: int
) -> None:
    """The same execution may come back; what went before must not meet what came after."""
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        await prepared(store)
        async with following(store, path) as replica:
            await replica.caught_up()
        await dropped(sqlite, store, 9)
        await dropped(sqlite, store, E)
        later = {e: tuple(replace(each, execution_id=e) for each in NEW) for e in (E, 9, 3)}
        for e, log in later.items():  # the one that departed last comes first
            await store.populate_from_log(e, log)
        async with following(store, path, rows=rows) as replica:
            await replica.until(lambda step: step.departed == 2 and step.lag == 0)
            assert not any(step.clashes or step.forks for step in replica.steps)  # not for a moment
            assert await copied(path) == await contents(store) == later
        async with following(store, path, rows=rows) as replica:  # nothing goes a second time
            await replica.until(lambda step: not step.applied)
            assert await copied(path) == await contents(store)


async def test_a_rebuilt_partition_is_taken_anew_and_a_fork_of_it_ends(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        await prepared(store)
        async with ChainStore.open(str(path)) as other:
            await other.apply_replicated(replace(OLD[1], body='{"other":1}'), 2)
        async with following(store, path) as replica:
            assert (await replica.caught_up()).forks == 1
            await store.rebuild(9, NEW)
            step = await replica.until(lambda step: step.departed == 1 and step.lag == 0)
            assert step.forks == 0
            assert await copied(path) == await contents(store) == {E: long_chain(4), 9: NEW}
    assert findings(path, 9) == [("forked", 1), ("rebuilt", 1)]
    ((evidence, found_at),) = run(path, "SELECT evidence, found_at FROM finding WHERE verdict = 'rebuilt'")
    assert '{\\"other\\":1}' in str(evidence)  # what stood there is not lost
    told = json.loads(str(evidence))
    assert type(told["log"]["read_at"]) is type(told["store"]["read_at"]) is type(found_at) is int
    assert check(path).findings == []


async def test_departures_reach_the_replica_of_a_replica(sqlite: SqliteBackend, tmp_path: Path) -> None:
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    async with sqlite.open() as store:
        await prepared(store)
        for _ in range(2):
            async with following(store, first) as replica:
                await replica.until(lambda step: step.departed == store.committed.departed and step.lag == 0)
            async with ChainStore.open(str(first)) as middle, following(middle, second) as replica:
                high, departed = middle.committed.high, middle.committed.departed
                await replica.until(partial(reached, high=high, departed=departed))
            assert await copied(second) == await contents(store)
            if 9 in await contents(store):
                await dropped(sqlite, store, 9)
    assert list(await copied(second)) == [E]


async def test_a_primary_that_was_put_back_lets_its_replica_begin_anew(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    """Departures are numbered like events: after a restore the same numbers mean others."""
    path, kept = tmp_path / "replica.db", tmp_path / "kept.db"
    async with sqlite.open() as store:
        await prepared(store)
        await store.prepare_following()
    copyfile(sqlite.path, kept)
    async with sqlite.open() as store:
        await dropped(sqlite, store, 9)
        async with following(store, path) as replica:
            await replica.until(lambda step: step.departed == 1 and step.lag == 0)
    copyfile(kept, sqlite.path)
    async with sqlite.open() as store:
        async with following(store, path) as replica:
            await replica.caught_up()
            assert await copied(path) == await contents(store) == {E: long_chain(4), 9: OLD}
        await dropped(sqlite, store, E)
        async with following(store, path) as replica:
            await replica.until(lambda step: step.departed == 1 and step.lag == 0)
            assert await copied(path) == await contents(store) == {9: OLD}


async def test_a_store_that_nobody_follows_keeps_no_departures(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await prepared(store)
        await dropped(sqlite, store, 9)
        assert store.committed.departed == 0
    assert sqlite.run("SELECT name FROM sqlite_master WHERE name = 'departure'") == []


async def test_a_follower_that_only_catches_up_ends(sqlite: SqliteBackend, tmp_path: Path) -> None:
    path = tmp_path / "replica.db"
    steps: list[Step] = []
    async with sqlite.open() as store:
        await prepared(store)
        await Follower(store, str(path), rows=3).catch_up(steps.append)
        assert (steps[0].applied, steps[-1].lag, len(steps) > 2) == (False, 0, True)
        await dropped(sqlite, store, 9)
        await Follower(store, str(path)).catch_up(steps.append)
        assert await copied(path) == await contents(store)
        before = len(steps)
        await Follower(store, str(path)).catch_up(steps.append)
        assert len(steps) == before + 1  # opened, nothing to do
        assert (steps[-1].applied, steps[-1].departed) == (False, 1)


async def test_replicas_are_brought_up_one_by_one_and_one_that_is_away_stops_none(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    good, forked = tmp_path / "good.db", tmp_path / "forked.db"
    async with ChainStore.open(str(forked)) as other:
        await other.apply_replicated(replace(OLD[1], body='{"other":1}'), 2)
    async with sqlite.open() as store:
        await prepared(store)
        found = await caught_up(store, [str(tmp_path / "away" / "r.db"), str(forked), str(good)])
        assert isinstance(found[0], StoreError)
        assert found[1:] == [1, 0]
        assert await copied(good) == await contents(store)


async def test_a_replica_whose_place_was_lost_still_drops_what_went(
    sqlite: SqliteBackend, tmp_path: Path
) -> None:
    path = tmp_path / "replica.db"
    async with sqlite.open() as store:
        await prepared(store)
        await Follower(store, str(path)).catch_up()
        await dropped(sqlite, store, E)
        run(path, "DELETE FROM replica_position")
        await Follower(store, str(path)).catch_up()
        assert await copied(path) == await contents(store) == {9: OLD}
