"""What a store says of itself as a whole: coverage by verdict, open findings, its observation."""

from __future__ import annotations

import pytest

from sidecar.core.acceptance import OPEN
from sidecar.core.coverage import Observation
from sidecar.core.verdict import Verdict
from sidecar.errors import StoreCorrupt
from sidecar.store import ChainStore, overview
from sidecar.store.observation import ELAPSED, load, save
from sidecar.store.overview import coverage, divergences, open_findings, prepare
from tests.contract.backends import SqliteBackend

NOW = 1_800_000_000_000_000
SECOND = 1_000_000


def plant(
    sqlite: SqliteBackend,
    execution_id: int,
    verdict: str | None,
    *,
    read: int = 0,
    seen: int = 0,
    stored: int = 0,
    changed: int = NOW,
    first: int | None = None,
    kinds: str = "",
) -> None:
    sqlite.run(
        "INSERT INTO partition (execution_id, verdict, verdict_rows, rows_seen, head_seq, last_change_at,"
        " first_seen_at, counted_kinds) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        execution_id, verdict, read, seen, stored, changed, first, kinds,
    )  # fmt: skip


def found(sqlite: SqliteBackend, execution_id: int, verdict: str, **columns: object) -> None:
    names = ", ".join(columns)
    sqlite.run(
        f"INSERT INTO finding (execution_id, verdict, found_at{names and ', ' + names})"
        f" VALUES (?, ?, 1{', ?' * len(columns)})",
        execution_id, verdict, *columns.values(),
    )  # fmt: skip


async def test_each_execution_counts_once_with_the_greater_of_seen_and_stored(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        plant(sqlite, 1, "match", read=10, seen=12, stored=10)
        plant(sqlite, 2, "match", read=5, seen=0, stored=5)
        plant(sqlite, 3, "log_truncated", read=0, seen=10_000, stored=7)
        plant(sqlite, 4, "log_read_failed", read=0, seen=3, stored=20)
        plant(sqlite, 5, "pending_stale", read=4, seen=4, stored=4)
        plant(sqlite, 6, "match", read=99, seen=99, stored=99, changed=NOW - 1)
        answer = await coverage(store, since=NOW, unjudged_before=NOW)
    assert (answer.covered_executions, answer.eligible_executions) == (2, 4)
    assert (answer.covered_events, answer.eligible_events) == (15, 12 + 5 + 10_000 + 20)
    assert answer.pending_executions == 1


async def test_every_verdict_is_counted_under_its_own_label(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        for number, verdict in enumerate(Verdict, start=1):
            plant(sqlite, number, verdict)
        answer = await coverage(store, since=NOW, unjudged_before=NOW)
    assert answer.verdicts == dict.fromkeys(Verdict, 1)


async def test_without_a_verdict_it_is_pending_until_settle_and_then_unjudged(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        plant(sqlite, 1, None, seen=4, first=NOW - 10)
        plant(sqlite, 2, None, seen=5, first=NOW - 9)
        plant(sqlite, 3, None, seen=6)
        answer = await coverage(store, since=0, unjudged_before=NOW - 10)
    assert answer.verdicts == {"unjudged": 1, "pending": 2}
    assert (answer.eligible_executions, answer.eligible_events) == (1, 4)


async def test_coverage_reads_the_index_alone(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        plan = await store.query(f"EXPLAIN QUERY PLAN {overview._BY_VERDICT}", (0, 0))
    steps = [row[3] for row in plan if "partition" in row[3]]
    assert len(steps) == len(Verdict) + 2
    search = "SEARCH partition USING COVERING INDEX partition_by_verdict (verdict=? AND last_change_at>?)"
    assert set(steps) == {search}
    assert not any("TEMP" in row[3] for row in plan)


async def test_a_store_without_the_index_answers_the_same_and_gets_it(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        plant(sqlite, 1, "match", read=3, seen=3, stored=3)
        sqlite.run("DROP INDEX partition_by_verdict")
        sqlite.run("CREATE INDEX partition_by_change ON partition (last_change_at)")
        before = await coverage(store, since=0, unjudged_before=NOW)
        await prepare(store)
        await prepare(store)
        assert await coverage(store, since=0, unjudged_before=NOW) == before
        names = {row[0] for row in await store.query("SELECT name FROM sqlite_schema WHERE type = 'index'")}
    assert before.covered_events == 3
    assert "partition_by_verdict" in names
    assert "partition_by_change" not in names


async def test_open_findings_are_neither_resolved_nor_acknowledged(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        found(sqlite, 1, "divergent")
        found(sqlite, 2, "divergent", resolved_at=5)
        found(sqlite, 3, "second_writer", acknowledged_at=5)
        found(sqlite, 4, "log_lost")
        found(sqlite, 5, "rebuilt")
        counts = await open_findings(store)
    assert {verdict: counts.get(verdict, 0) for verdict in OPEN} == {
        "divergent": 1,
        "second_writer": 0,
        "log_lost": 1,
    }


async def test_an_alarm_that_nobody_wrote_down_is_open(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        plant(sqlite, 1, "divergent", kinds="payload")
        plant(sqlite, 2, "divergent", kinds="payload")
        found(sqlite, 2, "divergent", acknowledged_at=5)
        plant(sqlite, 3, "second_writer", kinds="second_writer")
        found(sqlite, 3, "second_writer", resolved_at=5)  # it came again
        plant(sqlite, 4, "match")
        assert await open_findings(store) == {"divergent": 1, "second_writer": 1}


async def test_divergences_are_what_no_match_has_cleared_by_kind(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        plant(sqlite, 1, "divergent", kinds="edge,payload")
        plant(sqlite, 2, "divergent", kinds="payload")
        plant(sqlite, 3, "match", kinds="")
        counts = await divergences(store)
    assert {kind: n for kind, n in counts.items() if n} == {"edge": 1, "payload": 2}
    assert len(counts) == 12


async def test_observation_survives_a_restart(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        assert await load(store) == Observation()
        await save(store, Observation(since=NOW, elapsed=70 * SECOND, last=NOW + 99))
    async with sqlite.open() as store:
        assert await load(store) == Observation(since=NOW, elapsed=70 * SECOND)
    async with ChainStore.open_readonly(sqlite.url) as reader:
        assert (await load(reader)).elapsed == 70 * SECOND


async def test_an_observation_that_is_no_number_is_refused(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await save(store, Observation(since=NOW))
        sqlite.run("UPDATE meta SET value = 'long' WHERE key = ?", ELAPSED)
        with pytest.raises(StoreCorrupt, match="observation"):
            await load(store)
