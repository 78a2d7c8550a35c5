"""The durable work list: what was refused, pending or waiting at a kill is judged afterwards.

The pool of waiting rows does not survive a restart; `held` and the entry do.  Source: spec 2.12.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row, insert_rows
from tests.support.service import service

E = 7300


async def test_what_was_never_judged_is_judged_after_a_restart(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store, tick_s=600) as sidecar:
        await sidecar.asleep()
        await pg.insert(chain_rows(E, [1, 2]))
        await pg.insert([event_row(E + 1, 1), event_row(E + 1, 2)])
        await sidecar.stored(E, 2)
        await sidecar.seen(E + 1, 2)
        assert sidecar.verdicts() == {}
    async with service(pg.dsn, store) as sidecar:
        await sidecar.verdict(E, "match")
        await sidecar.verdict(E + 1, "refused_multiple_roots")
        await sidecar.idle()
        assert set(sidecar.verdicts()) == {"match", "refused_multiple_roots"}
        assert (await sidecar.partition(E + 1)).rows_seen == 2, "delivered again, counted once"


async def test_a_pending_question_keeps_its_age_over_a_restart(pg: Database, tmp_path: Path) -> None:
    """The window counts from the first sight, not from the start."""
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store, dangling_s=600) as sidecar:
        await pg.insert([event_row(E, 1), event_row(E, 3, prev=2)])
        await sidecar.verdict(E, "pending_visibility")
        before = (await sidecar.store.due((E,)))[E]
        assert before.pending_key == "dangling_prev:3:2"
    async with service(pg.dsn, store, dangling_s=600) as sidecar:

        async def judged_again() -> bool:
            return sidecar.value("shadow_verdict_total", verdict="pending_visibility") > 0

        await sidecar.until(judged_again)
        after = (await sidecar.store.due((E,)))[E]
        assert (after.pending_key, after.pending_since) == (before.pending_key, before.pending_since)
    async with service(pg.dsn, store, dangling_s=0.5) as sidecar:
        await sidecar.verdict(E, "refused_dangling_prev")
        assert sidecar.divergences() == {}


async def test_rows_that_waited_at_a_kill_are_read_again_and_healed(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store, tick_s=600) as sidecar:
        await sidecar.asleep()
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.stored(E, 2)
        late = await pg.connect()
        transaction = late.transaction()
        await transaction.start()
        await insert_rows(late, [event_row(E, 3, prev=2)])
        await pg.insert([event_row(E, 4, prev=3)])
        assert (await sidecar.seen(E, 3)).held == 1
    async with service(pg.dsn, store, tick_s=600) as sidecar:
        due = (await sidecar.store.due((E,)))[E]
        assert due.reread is not None
        assert (await sidecar.read(E)).reason == "rows_held_back"
        await sidecar.asleep()
        assert (await sidecar.partition(E)).verdict == "pending_visibility", "the first tick judged it"
    await transaction.commit()
    async with service(pg.dsn, store) as sidecar:
        await sidecar.verdict(E, "match")
        await sidecar.idle()
        assert (await sidecar.partition(E)).held == 0
        assert [event.event_id for event in (await sidecar.read(E)).events or ()] == [1, 2, 3, 4]


async def test_a_flag_set_at_a_kill_is_judged_after_it(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store, tick_s=600) as sidecar:
        await sidecar.asleep()
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.stored(E, 2)
        await sidecar.caught_up()
        await pg.execute(f"UPDATE noetl.event SET meta = '{{}}' WHERE execution_id = {E} AND event_id = 1")

        async def flagged() -> bool:
            due = (await sidecar.store.due((E,))).get(E)
            return due is not None and due.changed is not None

        await sidecar.until(flagged)
    async with service(pg.dsn, store) as sidecar:
        assert (await sidecar.read(E)).events is None
        await sidecar.verdict(E, "divergent")
        assert sidecar.divergences() == {"payload": 1}
    async with service(pg.dsn, store) as sidecar:
        await pg.insert([event_row(E, 3, prev=2)])

        async def judged_again() -> bool:
            return sidecar.value("shadow_verdict_total", verdict="divergent") > 0

        await sidecar.until(judged_again)
        assert sidecar.divergences() == {}, "it was counted before the restart"


class Reads:
    """Counts the log reads of the process by execution."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from sidecar.source.log import PostgresLog

        self.of: dict[int, int] = {}
        for name in ("read", "read_some"):
            monkeypatch.setattr(PostgresLog, name, self._counted(getattr(PostgresLog, name)))

    def _counted(self, real: Any) -> Any:
        async def read(log: Any, execution_ids: Any) -> Any:
            found = await real(log, execution_ids)
            for each in found:
                self.of[each.execution_id] = self.of.get(each.execution_id, 0) + 1
            return found

        return read


async def test_without_a_comparator_entries_stay_only_for_what_is_not_stored(
    pg: Database, tmp_path: Path
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db", compare="off") as sidecar:
        await pg.insert(chain_rows(E, [1, 2, 3]))
        await sidecar.stored(E, 3)
        await pg.insert([event_row(E, 4, prev=3)])
        await sidecar.stored(E, 4)
        assert await sidecar.store.due((E,)) == {}
        await pg.insert([event_row(E, 6, prev=5)])
        assert (await sidecar.seen(E, 5)).held == 1
        assert E in await sidecar.store.due((E,))
        await pg.insert([event_row(E, 5, prev=4)])
        await sidecar.stored(E, 6)
        assert await sidecar.store.due((E,)) == {}
        assert sidecar.verdicts() == {}


async def test_without_a_comparator_the_feed_reads_flagged_executions_itself(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that waited at a kill: the pool is gone, so the log is read; no row of it comes again."""
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store, compare="off") as sidecar:
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.stored(E, 2)
        late = await pg.connect()
        transaction = late.transaction()
        await transaction.start()
        await insert_rows(late, [event_row(E, 3, prev=2)])
        await pg.insert([event_row(E, 4, prev=3)])
        assert (await sidecar.seen(E, 3)).held == 1
    await transaction.commit()
    reads = Reads(monkeypatch)
    async with service(pg.dsn, store, compare="off") as sidecar:
        await sidecar.stored(E, 4)
        assert (await sidecar.read(E)).events is not None
        assert await sidecar.store.due((E,)) == {}
        assert reads.of[E] >= 1


async def test_without_a_comparator_a_row_that_waits_costs_no_read_at_every_poll(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch)
    async with service(pg.dsn, tmp_path / "chain.db", compare="off", settle_s=600) as sidecar:
        await pg.insert([event_row(E, 1), event_row(E, 3, prev=2)])
        await pg.insert(chain_rows(E + 1, [1]))
        await sidecar.seen(E, 2)
        await sidecar.stored(E + 1, 1)
        await pg.insert([event_row(E + 1, 3, prev=2)])
        await sidecar.seen(E + 1, 2)
        before = dict(reads.of)
        await sidecar.polls(10)
        assert reads.of[E] <= before[E] + 1
        assert reads.of[E + 1] <= before[E + 1] + 1
        await pg.insert([event_row(E, 2, prev=1), event_row(E + 1, 2, prev=1)])
        await sidecar.stored(E, 3)
        await sidecar.stored(E + 1, 3)


async def test_without_a_comparator_a_changed_body_is_kept_for_one(pg: Database, tmp_path: Path) -> None:
    """Nobody judges, so nothing is published; the flag stays and the chain is not served."""
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store, compare="off") as sidecar:
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.stored(E, 2)
        await sidecar.caught_up()
        await pg.execute(f"UPDATE noetl.event SET meta = '{{}}' WHERE execution_id = {E} AND event_id = 2")

        async def flagged() -> bool:
            due = (await sidecar.store.due((E,))).get(E)
            return due is not None and due.changed is not None

        await sidecar.until(flagged)
        await sidecar.polls(3)
        assert (await sidecar.read(E)).events is None
        assert (await sidecar.store.due((E,)))[E].changed is not None
        assert sidecar.divergences() == {}
    async with service(pg.dsn, store) as sidecar:
        await sidecar.verdict(E, "divergent")
