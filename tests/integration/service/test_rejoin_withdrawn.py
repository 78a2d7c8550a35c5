"""A row of the old piece that becomes visible after the join: what was joined is served no more.

The row was written before the root, by a transaction that commits late, or it bears an old time and no
poll of the live lane shows it.  The join was right by all that could be seen, and is withdrawn.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.authority import Reason
from sidecar.readings import Reading
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row, insert_rows
from tests.support.service import Service, service

E = 7400
FIRST, SECOND = [3, 1, 2], [9, 4]
ON: dict[str, Any] = {"rejoin": Reading.ON, "live_window_s": 60}


async def _raw(sidecar: Service) -> list[Any]:
    """The stored rows as they lie in the file, the joins without the mark of the withdrawal."""
    rows = await sidecar.store.query(f"SELECT * FROM event WHERE execution_id = {E} ORDER BY exec_seq")
    kept = "SELECT tip_event_id, root_event_id, xid, anchor, epoch, joined_at FROM rejoin"
    return [*rows, *await sidecar.store.query(kept)]


async def _joined(sidecar: Service, pg: Database) -> None:
    await sidecar.verdict(E, "match")
    await sidecar.followed()
    await pg.insert(chain_rows(E, SECOND))
    await sidecar.verdict(E, "match_rejoined")
    await sidecar.idle()
    read = await sidecar.read(E)
    assert read.events is not None
    assert [event.event_id for event in read.events] == FIRST + SECOND


async def _withdrawn(sidecar: Service) -> None:
    """No reader finds the late row counted and the chain still served."""

    async def gone() -> bool:
        found = await sidecar.store.query(
            "SELECT rows_seen, cov_total, label, revoked_reason FROM partition"  # one instant
        )
        (rows, covered, label, reason), read = found[0], await sidecar.read(E)
        late = bool(rows > len(FIRST + SECOND))
        if late:
            assert (label, reason, read.events) == ("multiple_roots", "rejoin_withdrawn", None)
            assert read.reason in (Reason.ROWS_HELD_BACK, Reason.NO_COVERAGE)
            assert covered is None
        return late

    await sidecar.until(gone, patience_s=40)


async def _after(sidecar: Service, before: list[Any]) -> None:
    assert sidecar.verdicts().get("rejoin_withdrawn", 0) == 0
    await sidecar.verdict(E, "rejoin_withdrawn")
    await sidecar.idle()
    assert sidecar.verdicts()["rejoin_withdrawn"] == 1
    assert sidecar.divergences() == {}
    assert await _raw(sidecar) == before, "nothing is rewritten"
    (join,) = await sidecar.store.joins(E)
    assert join.withdrawn_at is not None
    assert not await sidecar.store.chain_is_complete(E)


@pytest.mark.parametrize("savepoint", [False, True])
async def test_a_row_that_commits_behind_the_join(pg: Database, tmp_path: Path, savepoint: bool) -> None:
    """Its transaction has its xid from before the root's; nobody could see it when they were joined."""
    await pg.insert(chain_rows(E, FIRST))
    late = await pg.connect()
    async with service(pg.dsn, tmp_path / "chain.db", **ON) as sidecar:
        await sidecar.caught_up()
        await late.execute("BEGIN")
        if savepoint:
            await late.execute("SAVEPOINT one")
        await insert_rows(late, [event_row(E, 7, prev=FIRST[-1])])
        await _joined(sidecar, pg)
        before = await _raw(sidecar)
        await late.execute("COMMIT")
        await _withdrawn(sidecar)
        await _after(sidecar, before)


async def test_a_row_that_the_live_lane_never_shows(pg: Database, tmp_path: Path) -> None:
    old = datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=2)
    await pg.insert(chain_rows(E, FIRST))
    async with service(pg.dsn, tmp_path / "chain.db", **ON) as sidecar:
        await sidecar.caught_up()
        await _joined(sidecar, pg)
        before = await _raw(sidecar)
        await pg.insert([event_row(E, 7, prev=FIRST[-1], created_at=old)])
        await _withdrawn(sidecar)
        await _after(sidecar, before)
