"""What a page of a list costs: index searches, the same work however many executions there are."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.core.event import ID_MAX
from sidecar.store import ChainStore
from sidecar.store.findings import INDEX
from sidecar.store.listing import FINDING, FINDINGS, OF_EXECUTION, OPEN_FINDINGS, VERDICTS, listed

GROUP = 100
"""Executions that changed in the same batch."""


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    path = tmp_path / "chain.db"
    async with ChainStore.open(str(path)):
        pass
    return path


def fill(conn: sqlite3.Connection, first: int, last: int) -> None:
    conn.executemany(
        "INSERT INTO partition (execution_id, verdict, last_change_at) VALUES (?,?,?)",
        [(i, ("match", "divergent", None)[i % 3], i // GROUP) for i in range(first, last)],
    )
    conn.commit()


def plan(conn: sqlite3.Connection, sql: str) -> list[str]:
    parameters = {f"?{number}" for number in (1, 2, 3) if f"?{number}" in sql}
    return [row[3] for row in conn.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * len(parameters))]


@pytest.mark.parametrize("verdict", [None, "match", "unjudged"])
def test_a_page_of_executions_searches_its_index(store: Path, verdict: str | None) -> None:
    with closing(sqlite3.connect(store)) as conn:
        details = plan(conn, listed(verdict))
    index = [detail for detail in details if "partition_by_verdict" in detail]
    assert len(index) == 2 * (len(VERDICTS) if verdict is None else 1)
    assert all(detail.startswith("SEARCH partition USING COVERING INDEX") for detail in index)
    assert not any(detail.startswith("SCAN partition") for detail in details)


@pytest.mark.parametrize("verdict", [None, "match", "unjudged"])
def test_a_page_costs_the_same_when_the_store_grows_tenfold(store: Path, verdict: str | None) -> None:
    """In SQLite's own steps; the newest page, and one in the middle."""
    steps: list[list[int]] = []
    with closing(sqlite3.connect(store)) as conn:
        for first, last in ((0, 3000), (3000, 30_000)):
            fill(conn, first, last)
            steps.append([work(conn, verdict, at) for at in (ID_MAX, 15)])
    assert steps[1][0] <= steps[0][0] * 1.02
    assert steps[1][1] == steps[0][1]


def work(conn: sqlite3.Connection, verdict: str | None, at: int) -> int:
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    conn.set_progress_handler(tick, 1)
    assert len(conn.execute(listed(verdict), (at, None, 50)).fetchall()) == 50
    conn.set_progress_handler(None, 1)
    return count


def test_findings_are_found_by_their_keys(store: Path) -> None:
    with closing(sqlite3.connect(store)) as conn:
        conn.execute(INDEX)
        assert plan(conn, FINDINGS) == ["SEARCH finding USING INTEGER PRIMARY KEY (rowid<?)"]
        assert plan(conn, FINDING) == ["SEARCH finding USING INTEGER PRIMARY KEY (rowid=?)"]
        assert plan(conn, OF_EXECUTION)[0].startswith("SEARCH finding USING INDEX finding_by_execution")
        assert any("finding_open" in detail for detail in plan(conn, OPEN_FINDINGS))
