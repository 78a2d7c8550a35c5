"""Another count of shards: what moves is found by its new owner, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from sidecar.commands.inspect import inspected
from sidecar.core.shards import Shard
from sidecar.errors import ConfigError, SourceUnavailable, StoreError
from sidecar.service.resharding import HandedOver, hand_over
from sidecar.source.sums import LogSums
from sidecar.store import ChainStore
from sidecar.store.handover import Handover, aside, filled_as
from sidecar.telemetry import logs
from tests.integration.test_verify import against, backfill, settings
from tests.support.databases import Database
from tests.support.load import Load
from tests.support.published import slots
from tests.support.rows import chain_rows, event_row
from tests.support.service import service
from tests.support.shards import all_idle, bodies, check_divided, known, sidecars, store
from tests.support.tailing import opened
from tests.support.waiting import until

E = 7700
EXECUTIONS = range(E, E + 24)
NOBODY_WRITES = (
    "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL"
)
ENDLESS = 10**9
"""Rows; the load is told when it has written enough, so that every count was changed under it."""


async def _logged(pg: Database) -> None:
    await pg.insert([row for e in EXECUTIONS for row in chain_rows(e, [1, 2, 3])])


async def _handed_over(pg: Database, path: Path, shard: Shard) -> HandedOver | None:
    async with ChainStore.open(str(path)) as it, opened(pg.dsn, shard=shard) as source:
        return await hand_over(it, source, logs.get("test"))


async def _filled_as(path: Path) -> Shard | None:
    async with ChainStore.open_readonly(str(path)) as it:
        return await filled_as(it)


def _foreign(shard: Shard) -> set[int]:
    return {e for e in EXECUTIONS if not shard.owns(e)}


@pytest.mark.torture
async def test_one_three_and_two_shards_under_load_hold_the_log_once(pg: Database, tmp_path: Path) -> None:
    load = Load(pg.dsn, total=ENDLESS, writers=6, longest_s=0.6)
    writing = asyncio.create_task(load.run())
    for count, more in ((1, 200), (3, 300)):
        async with sidecars(pg.dsn, tmp_path, count) as running:
            await load.reached(load.committed + more)
            for each in running:
                await each.polls(1)
    async with sidecars(pg.dsn, tmp_path, 3) as running:
        await load.reached(load.committed + 100)
        await load.go_on(0)
        await until(lambda: pg.holds(NOBODY_WRITES))
        for each in running:
            await each.polls(2, lane="late")
        await all_idle(running)
    await check_divided(pg, tmp_path, 3)
    await load.go_on(None)
    async with sidecars(pg.dsn, tmp_path, 2) as running:
        await load.reached(load.committed + 200)
        load.total = 0
        await writing
        await all_idle(running)
        for each in running:
            await each.polls(2, lane="late")
        await all_idle(running)
        assert [each.divergences() for each in running] == [{}, {}]
    assert load.early > 0, "no row came before its predecessor"
    await check_divided(pg, tmp_path, 2)
    assert [await _filled_as(store(tmp_path, index)) for index in (0, 1)] == [Shard(0, 2), Shard(1, 2)]


async def test_what_falls_to_others_is_neither_counted_nor_judged_nor_audited(
    pg: Database, tmp_path: Path
) -> None:
    path, shard = tmp_path / "chain.db", Shard(1, 3)
    await _logged(pg)
    async with service(pg.dsn, path) as single:
        await single.idle()
        assert single.verdicts() == {"match": len(EXECUTIONS)}
    mine = {*EXECUTIONS} - _foreign(shard)
    async with service(
        pg.dsn, path, shard_index=1, shard_count=3, audit_share=1, audit_round_s=1, lookback_s=0
    ) as sidecar:
        await sidecar.caught_up()
        await pg.execute("DELETE FROM noetl.event WHERE execution_id = ANY($1::bigint[])", _foreign(shard))

        async def audited() -> bool:
            return sidecar.value("audit_executions_total", result="equal") >= 2 * len(mine)

        await sidecar.until(audited)
        await sidecar.looked()
        assert known(path) == mine
        assert sidecar.value("shadow_eligible_executions", window="start") <= len(mine)
        assert sidecar.value("audit_executions_total", result="different") == 0
        assert sidecar.divergences() == {}
        assert sidecar.moved("findings_open") == {}


async def test_what_falls_to_this_shard_now_is_found_by_its_first_reads(pg: Database, tmp_path: Path) -> None:
    """Every row of it lies below the horizons of the shard that the store was."""
    path = tmp_path / "chain.db"
    await _logged(pg)
    async with service(pg.dsn, path, shard_index=0, shard_count=3) as before:
        await before.idle()
    assert known(path) == {*EXECUTIONS} - _foreign(Shard(0, 3))
    async with service(pg.dsn, path, shard_index=0, shard_count=2) as after:
        await after.idle()
    assert known(path) == {*EXECUTIONS} - _foreign(Shard(0, 2))
    assert len(bodies(path)) == 3 * len(known(path))


async def test_a_handover_that_was_cut_short_and_called_off_loses_nothing(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first partitions had gone.  As the old shard the store's old horizons would say it has them."""
    path = tmp_path / "chain.db"
    await _logged(pg)
    async with service(pg.dsn, path) as before:

        async def every_horizon() -> bool:
            return None not in [cursor.horizon for cursor in (await before.store.cursors()).values()]

        await before.idle()
        await before.until(every_horizon)
    real, gone = Handover.let_go, list[int]()

    async def cut(self: Handover, execution_ids: Collection[int]) -> None:
        some = list(execution_ids)[:4]
        await real(self, some)
        gone.extend(some)
        raise StoreError("cut short")

    monkeypatch.setattr(Handover, "let_go", cut)
    with pytest.raises(StoreError, match="cut short"):
        await _handed_over(pg, path, Shard(0, 2))
    monkeypatch.undo()
    assert len(gone) == 4
    assert known(path) == {*EXECUTIONS} - {*gone}
    assert await _filled_as(path) is None, "it is neither shard's"
    async with service(pg.dsn, path) as again:
        await again.idle()
    assert known(path) == {*EXECUTIONS}
    assert await _filled_as(path) == Shard()


async def test_a_handover_that_was_cut_short_goes_on(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, shard = tmp_path / "chain.db", Shard(0, 2)
    await _logged(pg)
    await backfill(pg, path)

    async def lost(self: LogSums, execution_ids: Any) -> Any:
        raise SourceUnavailable("away")

    monkeypatch.setattr(LogSums, "of", lost)
    with pytest.raises(SourceUnavailable):
        await _handed_over(pg, path, shard)
    monkeypatch.undo()
    assert known(path) == {*EXECUTIONS}, "nothing goes while the log cannot say that it has it"
    done = await _handed_over(pg, path, shard)
    assert done == HandedOver(len(_foreign(shard)), 3 * len(_foreign(shard)), 0)
    assert known(path) == {*EXECUTIONS} - _foreign(shard)
    assert await _handed_over(pg, path, shard) is None
    assert not aside(path).exists()


async def test_what_only_the_store_holds_is_set_aside_before_it_goes(pg: Database, tmp_path: Path) -> None:
    path, shard = tmp_path / "chain.db", Shard(0, 2)
    await _logged(pg)
    async with service(pg.dsn, path) as before:
        await before.idle()
    pruned, changed, grown, remarked, *_ = sorted(_foreign(shard))
    stored = {row for row in bodies(path) if row[0] in (pruned, changed, remarked)}
    await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1", pruned)
    await pg.execute("UPDATE noetl.event SET status = 'x' WHERE execution_id = $1 AND event_id = 2", changed)
    await pg.insert([event_row(grown, 4, prev=3)])
    async with ChainStore.open(str(path)) as it:
        await it.transact(
            lambda unit: unit.rows(
                "INSERT INTO finding (execution_id, verdict, evidence, found_at, acknowledged_why)"
                " VALUES (?, 'divergent', '{}', 1, 'known since May')",
                (remarked,),
            )
        )
    done = await _handed_over(pg, path, shard)
    assert done is not None
    assert done.aside == 3, "what merely grew is in the log"
    assert known(path) == {*EXECUTIONS} - _foreign(shard)
    assert set(bodies(aside(path))) == stored
    async with ChainStore.open_readonly(str(aside(path))) as kept:
        record = await kept.partition(pruned)
        assert record is not None
        assert record.verdict == "match"
        assert [each.acknowledged_why for each in await kept.findings(remarked)] == ["known since May"]
        assert await kept.partition(grown) is None


async def test_what_was_set_aside_twice_stands_there_once(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process died between the copy and the deletion."""
    path, shard = tmp_path / "chain.db", Shard(0, 2)
    await _logged(pg)
    await backfill(pg, path)
    await pg.execute("TRUNCATE noetl.event")

    async def cut(self: Handover, execution_ids: Collection[int]) -> None:
        raise StoreError("cut short")

    monkeypatch.setattr(Handover, "let_go", cut)
    with pytest.raises(StoreError):
        await _handed_over(pg, path, shard)
    monkeypatch.undo()
    once = sorted(bodies(aside(path)))
    assert once
    done = await _handed_over(pg, path, shard)
    assert done is not None
    assert done.aside == len(_foreign(shard))
    assert {row[0] for row in bodies(aside(path))} == _foreign(shard)
    assert len(bodies(aside(path))) == 3 * len(_foreign(shard))


async def test_a_partition_that_cannot_be_read_is_set_aside_as_it_stands(
    pg: Database, tmp_path: Path
) -> None:
    path, shard = tmp_path / "chain.db", Shard(0, 2)
    await _logged(pg)
    await backfill(pg, path)
    broken, *_ = _foreign(shard)
    async with ChainStore.open(str(path)) as it:
        await it.transact(
            lambda unit: unit.rows(
                "UPDATE event SET body = CAST(x'c328' AS TEXT) WHERE execution_id = ? AND exec_seq = 2",
                (broken,),
            )
        )
    done = await _handed_over(pg, path, shard)
    assert done is not None
    assert done.aside == 1
    async with ChainStore.open_readonly(str(aside(path))) as kept:
        rows = await kept.query("SELECT hex(body) FROM event WHERE exec_seq = 2")
    assert rows == [("C328",)]


async def test_a_store_that_follows_lets_go_of_them_too(pg: Database, tmp_path: Path) -> None:
    path, replica, shard = tmp_path / "chain.db", tmp_path / "replica.db", Shard(1, 2)
    await _logged(pg)
    await backfill(pg, path, store_replicas=(str(replica),))
    assert known(replica) == {*EXECUTIONS}
    await backfill(pg, path, store_replicas=(str(replica),), shard_index=1, shard_count=2)
    assert {row[0] for row in bodies(replica)} == {*EXECUTIONS} - _foreign(shard)


async def test_a_store_without_anything_is_the_shard_s_at_once(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    assert await _handed_over(pg, path, Shard(2, 3)) is None
    assert await _filled_as(path) == Shard(2, 3)


async def test_a_store_is_verified_as_the_shard_it_was_filled_as(pg: Database, tmp_path: Path) -> None:
    """By a command that was told nothing of shards: what falls to others is not behind."""
    path, shard = tmp_path / "chain.db", Shard(1, 2)
    await _logged(pg)
    await backfill(pg, path, shard_index=1, shard_count=2)
    found = await against(pg, path)
    assert (found.exit_code, found.covered) == (0, len(EXECUTIONS) - len(_foreign(shard)))
    theirs = min(_foreign(shard))
    with pytest.raises(
        ConfigError, match=f"execution {theirs} falls to shard 0 of 2 and the store is that of"
    ):
        await against(pg, path, executions=[theirs])
    told = await inspected(settings(pg, path), theirs, store_given=True)
    assert told.log is not None
    assert (told.held, told.now) == (None, None), "it is not behind"
    assert told.store_why == "the store is that of shard 1 of 2, and the execution falls to shard 0"
    ours = await inspected(settings(pg, path), min({*EXECUTIONS} - _foreign(shard)), store_given=True)
    assert ours.now is not None
    assert ours.now.verdict.value == "match"


@pytest.mark.torture
async def test_a_count_that_is_changed_and_changed_back_over_the_wal_loses_nothing(
    pg_wal: Database, tmp_path: Path
) -> None:
    """Each shard has a slot of its own; the first one's waits where the first sidecar left it."""
    for count, first in ((1, E), (2, E + 10), (1, E + 20)):
        await pg_wal.insert([row for e in range(first, first + 10) for row in chain_rows(e, [1, 2, 3])])
        async with sidecars(pg_wal.dsn, tmp_path, count, tail="wal") as running:
            await all_idle(running)
            await pg_wal.insert([event_row(e, 4, prev=3) for e in range(first, first + 10)])
            for each in running:
                await each.polls(1, lane="wal")
            await all_idle(running)
            assert [each.divergences() for each in running] == [{}] * count
        await check_divided(pg_wal, tmp_path, count)
    named = {f"noetl_chain{ending}" for ending in ("", "_0of2", "_1of2")}
    assert (await slots(pg_wal)).keys() == named
