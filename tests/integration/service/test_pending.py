"""Pending in the running line: nothing is published until it is over.  Source: spec 3.3, 3.5."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.core.authority import GuardedRead
from sidecar.store.unit import StoreUnit
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.service import service

E = 7700


async def test_i27_pending_settle_with_a_count_mismatch_publishes_nothing(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server 9961662: the verdict was right and the paging counter moved all the same."""
    real, short = StoreUnit.guarded_read, True

    async def guarded_read(unit: StoreUnit, execution_id: int, *, ignore_held: bool = False) -> GuardedRead:
        answer = await real(unit, execution_id, ignore_held=ignore_held)
        if short and execution_id == E and answer.events:
            return GuardedRead(answer.events[:-1], None)
        return answer

    monkeypatch.setattr(StoreUnit, "guarded_read", guarded_read)
    async with service(pg.dsn, tmp_path / "chain.db", settle_s=600) as sidecar:
        await pg.insert(chain_rows(E, [1, 2, 3]))
        partition = await sidecar.verdict(E, "pending_settle")
        await sidecar.ticks(1)
        assert sidecar.value("shadow_verdict_total", verdict="pending_settle") >= 1
        assert sidecar.divergences() == {}
        assert (partition.counted_kinds, partition.revoked_at) == (frozenset(), None)
        assert await sidecar.store.query("SELECT count(*) FROM finding") == [(0,)]
        assert set(await sidecar.store.due([E])) == {E}, "it is asked again"
        # A terminal event ends the excuse: what was held back is now said, once.
        await pg.insert([event_row(E, 4, prev=3, event_type="playbook.completed")])
        partition = await sidecar.verdict(E, "divergent")
        await sidecar.ticks(1)
        assert sidecar.divergences() == {"count": 1, "missing_event": 1, "state": 1}
        short = False
        await pg.insert([event_row(E, 5, prev=4, event_type="playbook.failed")])
        await sidecar.verdict(E, "match")
