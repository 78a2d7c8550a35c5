"""`verify` and `backfill` on recorded logs and on stores that somebody else has touched."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sidecar.commands.backfill import backfilled
from sidecar.commands.verify import verification
from sidecar.comparator.findings import Verification
from sidecar.core.verdict import Kind, Verdict
from sidecar.settings import Settings
from sidecar.store import ChainStore
from tests.support.databases import Database
from tests.support.meddling import add_foreign_row, drop_row
from tests.support.recorded import (
    CLEAN,
    LONG,
    PUBLISHED,
    RESTARTS,
    UNLINKED_SMALL,
    load_set,
    recorded_set,
)
from tests.support.rows import chain_rows, event_row

E = 7001


def settings(pg: Database, store: Path | None = None, **more: Any) -> Settings:
    return Settings.given(dsn=pg.dsn, **({} if store is None else {"store": str(store)}), **more)


async def backfill(pg: Database, store: Path, **more: Any) -> Counter[str]:
    done, _ = await backfilled(settings(pg, store, **more))
    return done


async def against(pg: Database, store: Path, *, limit: int = 10_000, **more: Any) -> Verification:
    return await verification(settings(pg, read_limit=limit), store_url=f"sqlite:///{store}", **more)


def verdicts(found: Verification) -> dict[str, int]:
    return {verdict.value: count for verdict, count in found.verdicts.items() if count}


@pytest.mark.parametrize(
    "name",
    [
        RESTARTS,
        UNLINKED_SMALL,
        *(pytest.param(each, marks=pytest.mark.torture) for each in (CLEAN, PUBLISHED, LONG)),
    ],
)
async def test_a_recorded_log_gets_the_verdicts_of_its_expectation(
    pg: Database, tmp_path: Path, name: str
) -> None:
    """Both forms agree with what was worked out apart from this program, execution by execution."""
    recorded = recorded_set(name)
    conn = await pg.connect()
    await load_set(conn, recorded)
    expected = recorded.verdicts()

    temporary = await verification(settings(pg))
    await backfill(pg, tmp_path / "chain.db")
    stored = await against(pg, tmp_path / "chain.db")

    for found in (temporary, stored):
        named = {j.execution_id: j.verdict.value for j in found.findings}
        assert {i: named.get(i, "match") for i in expected} == expected
        assert found.executions == len(expected)
        assert found.events == len(recorded.lines())
        assert not found.divergences.total()
        assert found.covered == sum(verdict == "match" for verdict in expected.values())
        assert found.exit_code == (0 if set(expected.values()) == {"match"} else 3)


async def test_an_unlinked_log_covers_nothing_and_is_not_green(pg: Database) -> None:
    conn = await pg.connect()
    await load_set(conn, recorded_set(UNLINKED_SMALL))
    found = await verification(settings(pg))
    assert (found.covered, found.eligible, found.divergences.total()) == (0, 107, 0)
    assert found.exit_code == 3


async def test_an_empty_log_is_incomplete_not_agreement(pg: Database) -> None:
    found = await verification(settings(pg))
    assert (found.executions, found.eligible, found.exit_code) == (0, 0, 3)


async def test_the_document_names_every_verdict_and_kind_and_every_finding(pg: Database) -> None:
    await pg.insert([*chain_rows(E, [1, 2]), event_row(E, 3), *chain_rows(E + 1, [11, 12])])
    document = (await verification(settings(pg))).document(1.0)
    assert json.loads(json.dumps(document)) == document
    assert set(document["verdicts"]) == {verdict.value for verdict in Verdict}
    assert set(document["divergences"]) == {kind.value for kind in Kind}
    assert document["covered_executions"] == 1
    assert document["covered_events"] == 2
    (finding,) = document["findings"]
    assert finding["execution_id"] == str(E)
    assert finding["verdict"] == "refused_multiple_roots"


async def test_some_executions_and_those_since_a_time(pg: Database) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    old = now - timedelta(days=2)
    await pg.insert(chain_rows(E, [1, 2], created_at=old))
    await pg.insert(chain_rows(E + 1, [11, 12], created_at=now))
    assert (await verification(settings(pg), [E + 1, E + 1])).executions == 1
    since = await verification(settings(pg), since=datetime.now(UTC) - timedelta(hours=1))
    assert (since.executions, since.covered) == (1, 1)
    unknown = await verification(settings(pg), [5])
    assert (verdicts(unknown), unknown.exit_code) == ({"empty": 1}, 3)


async def test_a_store_that_lacks_rows_is_behind_and_is_never_filled(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    await pg.insert(chain_rows(E, [1, 2]))
    await backfill(pg, store)
    await pg.insert([event_row(E, 3, prev=2), *chain_rows(E + 1, [11])])
    before = store.read_bytes()
    found = await against(pg, store)
    assert verdicts(found) == {"behind": 2}
    assert found.behind_events == 2
    assert found.exit_code == 3
    assert store.read_bytes() == before


async def test_each_way_in_which_a_store_can_differ_has_its_name(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    for number in range(6):
        await pg.insert(chain_rows(E + number, [1, 2, 3]))
    await backfill(pg, store)
    await add_foreign_row(store, E, 99, move_head=True)
    await drop_row(store, E + 1, 2)
    with closing(sqlite3.connect(store)) as raw:
        raw.execute("UPDATE event SET body = body || ' ' WHERE execution_id = ? AND exec_seq = 2", (E + 2,))
        raw.execute(
            "UPDATE event SET parent_execution_id = 5 WHERE execution_id = ? AND exec_seq = 1", (E + 3,)
        )
        raw.commit()
    await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1 AND event_id = 1", E + 4)
    await pg.execute("DELETE FROM noetl.event WHERE execution_id = $1", E + 5)

    found = await against(pg, store)
    named = {j.execution_id: (j.verdict.value, [kind.value for kind in j.kinds]) for j in found.findings}
    assert named == {
        E: ("second_writer", ["second_writer"]),
        E + 1: ("refused_store_gap", []),
        E + 2: ("divergent", ["payload"]),
        E + 3: ("divergent", ["parent"]),
        E + 4: ("log_pruned", []),
        E + 5: ("log_pruned", []),
    }
    assert found.exit_code == 1
    payload = next(j for j in found.findings if j.execution_id == E + 2)
    assert (payload.position, payload.log_event_id, payload.stored_event_id) == (1, 2, 2)


async def test_what_is_not_good_is_read_once_more_after_the_settle_time(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A predecessor that commits meanwhile heals; with no settle time it is judged at once."""
    await pg.insert([event_row(E, 1), event_row(E, 3, prev=2)])
    at_once = await verification(settings(pg))
    assert verdicts(at_once) == {"refused_dangling_prev": 1}

    async def meanwhile(seconds: float) -> None:
        assert 0 < seconds <= 5
        await pg.insert([event_row(E, 2, prev=1)])

    monkeypatch.setattr("sidecar.comparator.verify.asyncio.sleep", meanwhile)
    settled = await verification(settings(pg), settle_s=5)
    assert verdicts(settled) == {"match": 1}
    assert settled.executions == 1


async def test_a_truncated_log_is_never_called_good(pg: Database, tmp_path: Path) -> None:
    await pg.insert(chain_rows(E, range(1, 6)))
    done = await backfill(pg, tmp_path / "chain.db", read_limit=5)
    assert done["log_truncated"] == 1
    found = await verification(settings(pg, read_limit=5))
    assert verdicts(found) == {"log_truncated": 1}
    assert found.exit_code == 3


async def test_a_backfill_reads_only_what_differs(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    await pg.insert([row for n in range(20) for row in chain_rows(E + n, [1, 2, 3])])
    assert (await backfill(pg, store))["extended"] == 20
    assert not (await backfill(pg, store)).total()
    await pg.insert([event_row(E + 4, 4, prev=3)])
    assert +(await backfill(pg, store)) == Counter(extended=1)
    async with ChainStore.open_readonly(str(store)) as opened:
        assert [e.event_id for e in await opened.chain(E + 4)] == [1, 2, 3, 4]
