"""What the comparator keeps of a verdict for the night: evidence beside it, in one transaction."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.core.event import Event
from sidecar.store.acknowledge import acknowledge, take_back
from tests.contract.events import chain
from tests.support.captured import captured
from tests.support.changing import replace
from tests.support.databases import Database
from tests.support.meddling import add_foreign_row, drop_row
from tests.support.rows import chain_rows, event_row
from tests.support.scripted import Scripted
from tests.support.service import service

E = 7100
SECRET = "nobody-may-read-this"


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Scripted]:
    scripted = await Scripted.open(tmp_path)
    yield scripted
    await scripted.store.close()


def changed(event: Event, text: str = SECRET) -> Event:
    return replace(event, body=f'{{"event_id":{event.event_id},"note":"{text}"}}')


async def diverged(line: Scripted) -> tuple[Event, Event]:
    """Stored, then changed in the log; both bodies of the third event."""
    rows = chain(1, 2, 3, 4, execution_id=E)
    await line.write(*rows)
    await line.judge(E)
    line.commit(changed(rows[2]))
    await line.judge(E)
    return rows[2], changed(rows[2])


async def test_a_divergence_keeps_both_bodies_positions_epoch_horizons_and_times(line: Scripted) -> None:
    ours, theirs = await diverged(line)
    (found,) = await line.store.findings(E)
    assert (found.verdict, found.kind, found.position, found.is_open) == ("divergent", "payload", 2, True)
    assert (found.log_event, found.store_event) == ("3", "3")
    told = found.evidence
    assert told is not None
    bodies = [
        next(row["body"] for row in told[side]["shown"] if row["event_id"] == "3")
        for side in ("log", "store")
    ]
    assert bodies == [theirs.body, ours.body]
    assert told["epoch"] == line.epoch
    assert [lane["lane"] for lane in told["lanes"]] == ["live"]
    assert told["log"]["read_at"] < told["store"]["read_at"] <= found.found_at
    assert told["partition"]["verdict"] == "match"


async def test_judged_again_it_stays_one_and_a_match_resolves_it(line: Scripted) -> None:
    ours, theirs = await diverged(line)
    await line.judge(E)
    (found,) = await line.store.findings(E)
    line.commit(ours)
    report = await line.judge(E)
    assert [judged.judgement.verdict for judged in report.judged] == ["match"]
    (resolved,) = await line.store.findings(E)
    assert (resolved.finding_id, resolved.is_open, resolved.evidence) == (
        found.finding_id,
        False,
        found.evidence,
    )
    line.commit(theirs)
    await line.judge(E)
    assert [each.is_open for each in await line.store.findings(E)] == [False, True]


async def test_i17_a_second_writer_names_the_origin_of_every_row_the_log_lacks(line: Scripted) -> None:
    await line.write(*chain(1, 2, 3, execution_id=E))
    await line.judge(E)
    await add_foreign_row(line.path, E, 98, move_head=True)
    await line.store.append(Event(E, 99, 98, None, "step.exit", "{}"))
    await line.judge(E)
    (found,) = await line.store.findings(E)
    assert (found.verdict, found.kind, found.store_event) == ("second_writer", "second_writer", "98")
    assert found.evidence is not None
    shown = found.evidence["store"]["shown"]
    assert [(row["event_id"], row["origin"]) for row in shown] == [
        ("3", "log"),
        ("98", None),
        ("99", "append"),
    ]
    assert found.evidence["only_store"] == {"count": 2, "first": ["98", "99"]}


@pytest.mark.parametrize("epoch", ["epoch-1", "epoch-2"], ids=["second_writer", "log_lost"])
async def test_a_further_row_that_goes_behind_an_acknowledged_one_is_a_finding_of_its_own(
    line: Scripted, epoch: str
) -> None:
    await line.write(*chain(1, 2, 3, 4, 5, execution_id=E))
    await line.judge(E)
    line.epoch = epoch
    del line.log[E][3]
    await line.judge(E)
    (known,) = await line.store.findings(E)
    await asyncio.to_thread(acknowledge, line.path, known.finding_id, "known", now=1)
    await line.judge(E)
    assert len(await line.store.findings(E)) == 1, "the same again is acknowledged"
    del line.log[E][4]
    for _ in range(3):
        await line.judge(E)
    before, after = await line.store.findings(E)
    assert (before.is_open, after.is_open) == (False, True)
    assert after.verdict == before.verdict
    assert before.evidence is not None
    assert before.evidence["only_store"] == {"count": 1, "first": ["3"]}, "what was acknowledged stands"


async def test_a_lost_log_keeps_the_lost_rows(line: Scripted) -> None:
    rows = chain(1, 2, 3, execution_id=E)
    await line.write(*rows)
    await line.judge(E)
    del line.log[E][3]
    line.epoch = "epoch-2"
    await line.judge(E)
    (found,) = await line.store.findings(E)
    assert (found.verdict, found.is_open) == ("log_lost", True)
    assert found.evidence is not None
    assert [row["body"] for row in found.evidence["store"]["shown"]] == [rows[1].body, rows[2].body]
    assert found.evidence["epoch"] == "epoch-2"


async def test_i27_what_is_pending_keeps_no_evidence(line: Scripted) -> None:
    first, _, third = chain(1, 2, 3, execution_id=E)
    await line.write(first, third)
    report = await line.judge(E)
    assert [judged.judgement.verdict for judged in report.judged] == ["pending_visibility"]
    assert await line.store.findings(E) == []


async def test_a_fork_shows_both_branches(line: Scripted) -> None:
    rows = chain(1, 2, 3, execution_id=E)
    await line.write(*rows, replace(rows[2], event_id=4, body='{"event_id":4}'))
    await line.judge(E)
    (found,) = await line.store.findings(E)
    assert found.verdict == "refused_fork"
    assert found.evidence is not None
    assert [row["event_id"] for row in found.evidence["log"]["shown"]] == ["2", "3", "4"]


async def test_a_gap_in_the_store_shows_the_rows_at_it(line: Scripted) -> None:
    await line.write(*chain(1, 2, 3, 4, execution_id=E))
    await line.judge(E)
    await drop_row(line.path, E, 2)
    await line.judge(E)
    (found,) = await line.store.findings(E)
    assert found.verdict == "refused_store_gap"
    assert found.evidence is not None
    assert [row["event_id"] for row in found.evidence["store"]["shown"]] == ["1", "3", "4"]


async def test_an_unservable_partition_leaves_a_finding(line: Scripted) -> None:
    await line.write(*chain(1, 2, execution_id=E))
    await line.judge(E)
    # More is covered than there is: the same root, so a populate leaves it.
    with closing(sqlite3.connect(line.path)) as conn, conn:
        conn.execute("UPDATE partition SET cov_total = 9")
    await line.judge(E)
    (found,) = await line.store.findings(E)
    assert (found.verdict, found.detail) == ("unservable", "coverage_total_mismatch")


# Beside a running sidecar


async def test_findings_open_is_born_at_zero_counts_and_goes_back(pg: Database, tmp_path: Path) -> None:
    """An acknowledgement and a match are seen at the next gauge; the payload stays in its column."""
    log, said = captured()
    path = tmp_path / "chain.db"
    await pg.insert([*chain_rows(E, range(1, 4)), *chain_rows(E + 1, range(11, 14))])
    async with service(pg.dsn, path, log=log) as sidecar:
        assert sidecar.moved("findings_open") == {}
        assert sidecar.value("findings_open", verdict="divergent") == 0
        for e in (E, E + 1):
            await sidecar.verdict(e, "match")
        await sidecar.caught_up()

        async def open_are(expected: dict[str, float]) -> None:
            async def holds() -> bool:
                return sidecar.moved("findings_open") == expected

            await sidecar.until(holds)

        change = f"UPDATE noetl.event SET error = '{SECRET}' WHERE event_id IN (2, 12)"
        await pg.execute(change)
        await open_are({"divergent": 2})
        (found,) = await sidecar.store.findings(E)
        assert SECRET in json.dumps(found.evidence)
        assert [entry["verdict"] for entry in said if entry["event"] == "verdict"] == ["divergent"] * 2
        assert SECRET not in repr(said)

        rows_before = await sidecar.store.query("SELECT * FROM event ORDER BY 1, 2")
        await asyncio.to_thread(acknowledge, path, found.finding_id, "known", now=1)
        await open_are({"divergent": 1})
        (shown,) = await sidecar.store.findings(E)
        assert (shown.acknowledged_why, shown.acknowledged_at) == ("known", found.found_at)
        assert await sidecar.store.query("SELECT * FROM event ORDER BY 1, 2") == rows_before

        # The sidecar goes on as before: it feeds, and judges the acknowledged one again.
        await pg.insert([event_row(E, 4, prev=3), *chain_rows(E + 2, range(21, 24))])
        await sidecar.verdict(E + 2, "match")
        await open_are({"divergent": 1})
        assert len(await sidecar.store.findings(E)) == 1

        await asyncio.to_thread(take_back, path, found.finding_id)
        await open_are({"divergent": 2})
        await pg.execute("UPDATE noetl.event SET error = NULL WHERE event_id IN (2, 12)")
        await pg.insert([event_row(E, 5, prev=4), event_row(E + 1, 14, prev=13)])
        await open_are({})
        assert sidecar.value("evidence_dropped_total") == 0
        assert sidecar.divergences() == {"payload": 2}


async def test_evidence_that_had_to_go_is_counted(pg: Database, tmp_path: Path) -> None:
    await pg.insert(chain_rows(E, range(1, 4)))
    async with service(pg.dsn, tmp_path / "chain.db", evidence_max_bytes=0) as sidecar:
        await pg.insert([event_row(E, 9, prev=None)])
        await sidecar.verdict(E, "refused_multiple_roots")

        async def holds() -> bool:
            return sidecar.moved("findings_open") == {"refused_multiple_roots": 1}

        await sidecar.until(holds)
        assert sidecar.value("evidence_dropped_total") == 1
        assert [each.evidence for each in await sidecar.store.findings(E)] == [None]
