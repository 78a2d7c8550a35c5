"""A partition that leaves while its log is read: the read failed, nothing was deleted.

Source: spec 1.8, 3.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from sidecar.comparator.loop import Comparator
from sidecar.comparator.report import TickReport
from sidecar.core.event import Event
from sidecar.core.horizon import TailRow
from sidecar.core.ports import Batch, BoundedReader, ExecutionLog
from sidecar.core.settle import Limits
from sidecar.core.verdict import Verdict
from sidecar.feed import Feed
from tests.integration.service.test_incidents import Parts, parts
from tests.support.changing import replace
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.waiting import until

SIDE = -15
BOUNDS = "FOR VALUES FROM (-20) TO (-10)"
DETACH = "ALTER TABLE noetl.event DETACH PARTITION noetl.event_side"
PENDING = "SELECT count(*) AS n FROM pg_inherits WHERE inhdetachpending"
WAITING = (
    "SELECT count(*) AS n FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE NOT l.granted AND a.application_name = 'noetl-chain' AND a.datname = current_database()"
)


async def _side(pg: Database, line: Parts) -> Comparator:
    """A chain of three in a partition of its own, stored and matched."""
    await pg.insert(chain_rows(SIDE, [1, 2, 3]))
    comparator = line.comparator()
    verdict, _ = await _judged(comparator)
    assert verdict is Verdict.MATCH
    return comparator


async def _judged(comparator: Comparator) -> tuple[Verdict, TickReport]:
    report = TickReport()
    await comparator.judge([SIDE], report)
    (judged,) = report.judged
    assert judged.new_kinds == ()
    return judged.judgement.verdict, report


async def _still_served(line: Parts) -> None:
    answer = await line.store.chain_if_authoritative(SIDE)
    assert [event.event_id for event in answer.events or ()] == [1, 2, 3]


async def test_a_partition_that_is_being_detached_concurrently_is_a_failed_read_until_it_has_left(
    pg: Database, tmp_path: Path
) -> None:
    """Somebody's open transaction holds the DETACH in its middle: rows are out of sight, not gone."""
    await pg.execute(
        f"ALTER TABLE noetl.event DETACH PARTITION noetl.event_default;"
        f" CREATE TABLE noetl.event_side PARTITION OF noetl.event {BOUNDS}"
    )
    async with parts(pg, tmp_path / "chain.db") as line:
        comparator = await _side(pg, line)
        somebody = await pg.connect()
        transaction = somebody.transaction()
        await transaction.start()
        await somebody.fetch("SELECT 1 FROM noetl.event LIMIT 1")
        operator = await pg.connect()
        detaching = asyncio.create_task(operator.execute(f"{DETACH} CONCURRENTLY"))

        async def pending() -> bool:
            return bool((await pg.fetch(PENDING))[0]["n"] == 1)

        await until(pending)
        for _ in range(2):  # the tree has moved, and then stands still with the partition leaving
            verdict, report = await _judged(comparator)
            assert verdict is Verdict.LOG_READ_FAILED
            assert report.outcomes == {"log_read_failed": 1}
            await _still_served(line)
        assert await pending(), "it was in the middle all the time"
        (log,) = await line.reader().read([SIDE])
        assert (log.events, log.read.whole, log.tells) == ((), False, False), "the race ran"

        await transaction.rollback()
        await detaching
        verdict, _ = await _judged(comparator)
        assert verdict is Verdict.LOG_READ_FAILED, "the tree moved once more"
        verdict, _ = await _judged(comparator)
        assert verdict is Verdict.LOG_PRUNED
        await _still_served(line)

        await pg.execute(f"ALTER TABLE noetl.event ATTACH PARTITION noetl.event_side {BOUNDS}")
        verdict, report = await _judged(comparator)
        assert verdict is Verdict.MATCH, "all rows are there, however the tree moved"
        assert report.outcomes == {"in_sync": 1}


async def test_a_detach_that_commits_under_a_waiting_read_is_a_failed_read(
    pg: Database, tmp_path: Path
) -> None:
    await pg.execute(f"CREATE TABLE noetl.event_side PARTITION OF noetl.event {BOUNDS}")
    async with parts(pg, tmp_path / "chain.db") as line:
        comparator = await _side(pg, line)
        operator = await pg.connect()
        transaction = operator.transaction()
        await transaction.start()
        await operator.execute(DETACH)
        judging = asyncio.create_task(_judged(comparator))

        async def waiting() -> bool:
            return bool((await pg.fetch(WAITING))[0]["n"])

        await until(waiting)
        await transaction.commit()
        verdict, report = await judging
        assert verdict is Verdict.LOG_READ_FAILED
        assert report.outcomes == {"log_read_failed": 1}
        partition = await line.store.partition(SIDE)
        assert partition is not None
        assert (partition.rows_seen, partition.revoked_at) == (3, None)
        verdict, _ = await _judged(comparator)
        assert verdict is Verdict.LOG_PRUNED
        await _still_served(line)


async def test_an_execution_that_was_never_stored_is_not_empty_while_its_partition_leaves(
    pg: Database, tmp_path: Path
) -> None:
    """Otherwise the log of a partition that is out of sight would be claimed to hold nothing."""
    await pg.execute(f"CREATE TABLE noetl.event_side PARTITION OF noetl.event {BOUNDS}")
    await pg.insert(chain_rows(SIDE, [1, 2]))
    async with parts(pg, tmp_path / "chain.db") as line:
        comparator = line.comparator()
        await pg.execute(DETACH)
        verdict, _ = await _judged(comparator)
        assert verdict is Verdict.LOG_READ_FAILED
        assert (await line.store.chain_if_authoritative(SIDE)).reason == "not_populated"


async def test_a_tree_that_grew_fails_no_read_that_has_all_its_rows(pg: Database, tmp_path: Path) -> None:
    async with parts(pg, tmp_path / "chain.db") as line:
        await pg.insert(chain_rows(SIDE, [1, 2]))
        comparator = line.comparator()
        assert (await _judged(comparator))[0] is Verdict.MATCH
        await pg.execute(
            "CREATE TABLE noetl.event_new PARTITION OF noetl.event FOR VALUES FROM (-40) TO (-30)"
        )
        await pg.insert([event_row(SIDE, 3, prev=2)])
        verdict, report = await _judged(comparator)
        assert verdict is Verdict.MATCH
        assert report.outcomes == {"extended": 1}


class Leaving:
    """A reader for which every partition is on its way out."""

    def __init__(self, real: BoundedReader) -> None:
        self._real = real

    async def read(self, execution_ids: Sequence[int]) -> list[ExecutionLog]:
        logs = await self._real.read(execution_ids)
        return [replace(log, events=(), read=replace(log.read, whole=False)) for log in logs]

    read_some = read


async def test_a_first_sight_of_what_has_just_left_claims_nothing_and_is_asked_again(
    pg: Database, tmp_path: Path
) -> None:
    async with parts(pg, tmp_path / "chain.db") as line:
        event = Event(SIDE, 1, None, None, "x", '{"event_id":1}')
        row = TailRow(event, 10, None, "epoch", None, line.store.clock.now())
        feed = Feed(line.store, Leaving(line.reader()), windows=line.windows, limits=Limits(), comparing=True)
        report = await feed.take(Batch("live", "epoch", None, 1, rows=(row,)))
        assert report.outcomes == {}
        assert (await line.store.chain_if_authoritative(SIDE)).reason == "not_populated"
        due = (await line.store.due([SIDE]))[SIDE]
        assert due.reread is not None
        assert due.due_at <= line.store.clock.now()
