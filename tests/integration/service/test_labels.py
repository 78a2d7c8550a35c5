"""A second root or a fork after a match: refused from the very batch that brings it.

The comparator sleeps in these tests, so only the feed can withdraw the chain.  Before this was
a rule, a short chain was served for up to 125 s.  Source: spec 2.12 step 3.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.databases import Database
from tests.support.rows import Row, chain_rows, event_row
from tests.support.service import Service, service

E = 7200


async def _served(sidecar: Service, pg: Database) -> None:
    await sidecar.asleep()
    await pg.insert(chain_rows(E, [1, 2, 3]))
    await sidecar.stored(E, 3)
    assert (await sidecar.read(E)).events is not None


LATER = {
    "multiple_roots": [event_row(E, 4)],
    "fork": [event_row(E, 4, prev=2)],
    "fork of the head": [event_row(E, 4, prev=3), event_row(E, 5, prev=3)],
    "fork far behind a gap": [event_row(E, 8, prev=7), event_row(E, 9, prev=7)],
    "root behind a gap": [event_row(E, 8, prev=7), event_row(E, 9)],
}


@pytest.mark.parametrize("case", LATER)
async def test_i11_i12_i15_the_batch_that_brings_a_label_refuses_the_read(
    pg: Database, tmp_path: Path, case: str
) -> None:
    label = "multiple_roots" if "root" in case else "fork"
    async with service(pg.dsn, tmp_path / "chain.db", tick_s=600) as sidecar:
        await _served(sidecar, pg)
        served_late: list[int] = []

        async def seen() -> bool:
            partition = await sidecar.store.partition(E)
            assert partition is not None
            if partition.rows_seen > 3 and (await sidecar.read(E)).events is not None:
                served_late.append(partition.rows_seen)
            # The sweep may show the rows first, whole and without a label: held back by then.
            return partition.label is not None

        await pg.insert(LATER[case])
        await sidecar.until(seen)
        assert not served_late
        partition = await sidecar.partition(E)
        assert (partition.label, partition.revoked_reason, partition.coverage) == (label, label, None)
        assert sidecar.moved("populate_total").get(label) == 1
        due = (await sidecar.store.due((E,)))[E]
        assert due.labelled is not None, "the next tick must judge it"
        assert sidecar.value("shadow_tick_seconds_count") == 1


@pytest.mark.parametrize(
    ("later", "verdict"),
    [([event_row(E, 4)], "refused_multiple_roots"), ([event_row(E, 4, prev=2)], "refused_fork")],
)
async def test_i11_i15_the_comparator_gives_the_same_label_and_no_divergence(
    pg: Database, tmp_path: Path, later: list[Row], verdict: str
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await pg.insert(chain_rows(E, [1, 2, 3]))
        await sidecar.verdict(E, "match")
        await pg.insert(later)
        await sidecar.verdict(E, verdict)
        await sidecar.idle()
        await pg.insert([event_row(E, 5, prev=4)])
        await sidecar.seen(E, 5)
        await sidecar.idle()
        assert (await sidecar.partition(E)).verdict == verdict
        assert sidecar.divergences() == {}
        assert (await sidecar.read(E)).events is None
        assert len(await sidecar.store.chain(E)) == 3


async def test_a_label_is_cleared_when_the_log_is_one_chain_again(pg: Database, tmp_path: Path) -> None:
    """Only a read that began after the label: the rows that came meanwhile are read as well."""
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.verdict(E, "match")
        await pg.insert([event_row(E, 3)])
        await sidecar.verdict(E, "refused_multiple_roots")
        await pg.execute(
            f"UPDATE noetl.event SET prev_event_id = 2 WHERE execution_id = {E} AND event_id = 3"
        )
        await pg.insert([event_row(E, 4, prev=3)])
        await sidecar.verdict(E, "match")
        await sidecar.idle()
        assert [event.event_id for event in (await sidecar.read(E)).events or ()] == [1, 2, 3, 4]
        assert (await sidecar.partition(E)).label is None
