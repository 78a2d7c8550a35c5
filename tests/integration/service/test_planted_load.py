"""Many executions at once, some with a defect: each verdict is the ledger's, and no other is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from benchmarks.planted import DEFECTS, PRUNED_PARTITION, Load, Planned, finish, ledger, write
from tests.support.databases import Database
from tests.support.meddling import add_foreign_row
from tests.support.service import Service, service


async def _judged(pg: Database, tmp_path: Path, load: Load, *, patience_s: float) -> None:
    plans = load.plan()
    await pg.execute(PRUNED_PARTITION)
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store, dangling_s=30, poll_ms=50) as sidecar:
        await write(pg.dsn, plans)
        await _all_stored(sidecar, [p for p in plans if p.defect in ("second_writer", "prune")], patience_s)
        connection = await asyncpg.connect(pg.dsn)
        try:
            foreign = iter(range(1, len(plans) + 1))
            await finish(
                connection, plans, lambda e: add_foreign_row(store, e, next(foreign), move_head=False)
            )
        finally:
            await connection.close()

        async def quiet() -> bool:
            (waiting,) = (await sidecar.store.query("SELECT count(*) FROM due"))[0]
            return waiting == 0 and await _verdicts(sidecar) == ledger(plans)

        with suppress(TimeoutError):  # what is missing is said below
            await sidecar.until(quiet, patience_s=patience_s)
        found = await sidecar.store.query("SELECT execution_id, verdict FROM partition")
        given = {execution_id: str(verdict) for execution_id, verdict in found}
        assert given == {plan.execution_id: plan.expected for plan in plans}
        planted = ledger(plans)["second_writer"]
        assert sidecar.divergences() == {"second_writer": planted}
        # A read beside the DETACH is asked again: what it lacks proves nothing.
        told = {"match", "pending_visibility", "log_read_failed", *ledger(plans)}
        assert sidecar.verdicts().keys() <= told
        for plan in plans:
            served = (await sidecar.read(plan.execution_id)).events
            wanted = [row.event_id for row in plan.rows]
            if plan.expected in ("match", "log_pruned"):
                assert served is not None
                assert [event.event_id for event in served] == wanted
            else:
                assert served is None


async def _all_stored(sidecar: Service, plans: Sequence[Planned], patience_s: float) -> None:
    async def holds() -> bool:
        found = await sidecar.store.query("SELECT verdict, held FROM partition")
        return len(found) >= len(plans) and all(verdict is not None for verdict, _ in found)

    await sidecar.until(holds, patience_s=patience_s)
    await sidecar.idle(patience_s=patience_s)


async def _verdicts(sidecar: Service) -> Counter[str]:
    rows = await sidecar.store.query("SELECT verdict, count(*) FROM partition GROUP BY verdict")
    return Counter({verdict or "none": count for verdict, count in rows})


async def test_sixty_executions_with_a_defect_of_every_kind(pg: Database, tmp_path: Path) -> None:
    load = Load(executions=60, defective=2)
    assert {plan.defect for plan in load.plan()} == {None, *DEFECTS}
    await _judged(pg, tmp_path, load, patience_s=30)


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_a_thousand_executions_with_thirty_defects_of_every_kind(pg: Database, tmp_path: Path) -> None:
    await _judged(pg, tmp_path, Load(executions=1000, events=12, defective=30, seed=2), patience_s=240)
