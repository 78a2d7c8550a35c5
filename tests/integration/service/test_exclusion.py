"""NOETL_CHAIN_EXCLUDE: stored like all others, judged by nobody, counted once, back when asked for."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from sidecar.commands.backfill import backfilled
from sidecar.commands.verify import verification
from sidecar.settings import Settings
from sidecar.store.check import check
from tests.integration.test_audit import rig
from tests.support.databases import Database
from tests.support.rows import Row, chain_rows, event_row
from tests.support.service import service

E = 8201
LONG_AGO = datetime(2025, 1, 1)  # noqa: DTZ001 - the column is naive


def played(execution_id: int, path: str, events: int = 3, *, old: bool = False) -> list[Row]:
    """A chain whose first event names the playbook's path."""
    rows = chain_rows(execution_id, range(1, events + 1), **({"created_at": LONG_AGO} if old else {}))
    return [
        row | ({"node_name": path, "node_id": "playbook"} if n == 0 else {}) for n, row in enumerate(rows)
    ]


async def test_an_excluded_execution_is_stored_and_nobody_judges_it(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    await pg.insert([*played(E, "scratch/one"), *played(E + 1, "mine/two"), *played(E + 2, "system/prune")])
    # A second root: a refusal elsewhere, nothing here.
    await pg.insert([*played(E + 3, "scratch/forked"), event_row(E + 3, 9)])
    async with service(pg.dsn, path, exclude=("scratch/*",)) as it:
        await it.verdict(E + 1, "match")
        await it.verdict(E + 2, "match")
        await it.verdict(E, "excluded")
        await it.verdict(E + 3, "excluded")
        assert it.verdicts() == {"match": 2}
        assert it.value("excluded_executions_total") == 2
        assert it.value("shadow_events_compared_total") == 6
        assert [e.event_id for e in await it.store.chain(E)] == [1, 2, 3]
        assert (await it.read(E)).events is not None
        assert (await it.read(E + 3)).events is None, "what is refused is not served either"

        async def measured() -> bool:
            eligible = it.value("shadow_eligible_executions", window="start")
            return eligible == it.value("shadow_covered_executions", window="start") == 2

        await it.until(measured)
        # It goes on being fed, and is counted once.
        await pg.insert([event_row(E, 4, prev=3)])
        await it.stored(E, 4)
        await it.idle()
        assert it.value("excluded_executions_total") == 2
        assert (await it.partition(E)).verdict == "excluded"
    assert check(path).exit_code == 0
    async with service(pg.dsn, path, exclude=("scratch/*",)) as it:
        await pg.insert([event_row(E, 5, prev=4)])
        await it.stored(E, 5)
        await it.idle()
        assert it.value("excluded_executions_total") == 0, "the restart remembers"
    async with service(pg.dsn, path) as it:
        await pg.insert([event_row(E, 6, prev=5)])
        await it.verdict(E, "match")


async def test_verify_leaves_it_out_with_and_without_a_store(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    await pg.insert([*played(E, "scratch/one"), *played(E + 1, "mine/two"), *played(E + 2, "scratch/late")])
    settings = Settings.given(dsn=pg.dsn, store=str(path), exclude="scratch/*")
    await backfilled(settings)
    await pg.insert([event_row(E + 2, 4, prev=3)])
    for store in (None, f"sqlite:///{path}"):
        found = await verification(settings, store_url=store)
        assert (found.executions, found.events, found.covered, found.exit_code) == (1, 3, 1, 0)


async def test_the_audit_leaves_it_alone_and_brings_it_back(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    await pg.insert([*played(E, "scratch/one", old=True), *played(E + 1, "mine/two", old=True)])
    await backfilled(Settings.given(dsn=pg.dsn, store=str(path)))
    async with rig(pg, path, exclude=("scratch/*",)) as it:
        found = await it.round()
        assert (found.equal, len(found.judged)) == (1, 1)
        assert await it.verdicts() == {E: None, E + 1: "match"}
    async with rig(pg, path) as it:
        await it.round()
        assert await it.verdicts() == {E: "match", E + 1: "match"}
