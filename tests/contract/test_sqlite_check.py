"""`store check`: every contradiction has a name, what is legal has none, memory stays bounded."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.due import Due
from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.horizon import Cursor
from sidecar.errors import StoreError, StoreFormatError
from sidecar.store import check as checking
from sidecar.store.check import Checked, check
from sidecar.store.invariants import Numbers
from sidecar.store.unit import StoreUnit
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain
from tests.support.changing import replace

EXECUTIONS = (ID_MIN, -5, 0, 7, E, ID_MAX)


async def filled(sqlite: SqliteBackend) -> None:
    """Three events in each execution, an empty one, one by single events, an entry, a cursor."""
    async with sqlite.open() as store:
        for number, execution_id in enumerate(EXECUTIONS):
            ids = (3 * number + 1, 3 * number + 2, 3 * number + 3)
            await store.populate_from_log(execution_id, chain(*ids, execution_id=execution_id))
        await store.populate_from_log(8, ())
        for event in chain(1, 2, execution_id=9):
            await store.populate(event)

        async def more(unit: StoreUnit) -> None:
            unit.put_due(Due(E, due_at=1, pending_key="dangling_prev:1", pending_since=1))
            unit.put_cursor(Cursor("live", 5, "e", "s", "t", 1))

        await store.transact(more)


def named(checked: Checked) -> set[tuple[int | None, str]]:
    return {(finding.execution_id, finding.kind) for finding in checked.findings}


@pytest.mark.parametrize("page", [1, 2, 500])
async def test_a_good_store_has_no_finding_whatever_the_page(sqlite: SqliteBackend, page: int) -> None:
    await filled(sqlite)
    pages: list[int] = []
    checked = check(sqlite.path, page=page, moved=pages.append)
    assert (checked.exit_code, checked.findings) == (0, [])
    assert (checked.executions, checked.events) == (len(EXECUTIONS) + 2, 3 * len(EXECUTIONS) + 2)
    assert sum(pages) == checked.executions
    assert max(pages) <= page


@pytest.mark.parametrize(
    ("kinds", "sql"),
    [
        ({"sequence", "coverage"}, "DELETE FROM event WHERE execution_id = {e} AND exec_seq = 2"),
        ({"head", "coverage"}, "DELETE FROM event WHERE execution_id = {e} AND exec_seq = 3"),
        (
            {"link", "coverage"},
            "UPDATE event SET prev_event_id = 99 WHERE execution_id = {e} AND exec_seq = 2",
        ),
        (
            {"link", "coverage"},
            "UPDATE event SET prev_event_id = 99 WHERE execution_id = {e} AND exec_seq = 1",
        ),
        ({"head"}, "UPDATE partition SET head_event_id = 99 WHERE execution_id = {e}"),
        ({"head", "coverage"}, "UPDATE partition SET head_seq = 2 WHERE execution_id = {e}"),
        ({"parent"}, "UPDATE partition SET parent_execution_id = 1 WHERE execution_id = {e}"),
        ({"watermark", "coverage"}, "UPDATE partition SET wm_first = NULL WHERE execution_id = {e}"),
        ({"watermark"}, "UPDATE partition SET wm_first = 4 WHERE execution_id = {e}"),
        ({"watermark"}, "UPDATE partition SET wm_first = 0 WHERE execution_id = {e}"),
        ({"coverage"}, "UPDATE partition SET wm_through = 4 WHERE execution_id = {e}"),
        ({"coverage"}, "UPDATE partition SET wm_first = NULL, wm_through = NULL WHERE execution_id = {e}"),
        ({"coverage"}, "UPDATE partition SET cov_total = 4 WHERE execution_id = {e}"),
        ({"coverage"}, "UPDATE partition SET cov_total = NULL WHERE execution_id = {e}"),
        ({"coverage"}, "UPDATE partition SET cov_root = 99 WHERE execution_id = {e}"),
        (
            {"coverage"},
            "UPDATE partition SET revoked_reason = 'x', revoked_at = 1 WHERE execution_id = {e}",
        ),
        ({"coverage"}, "UPDATE partition SET label = 'fork', labelled_at = 1 WHERE execution_id = {e}"),
        ({"bar"}, "UPDATE partition SET revoked_reason = 'x' WHERE execution_id = {e}"),
        ({"bar", "coverage"}, "UPDATE partition SET label = 'fork' WHERE execution_id = {e}"),
        ({"count"}, "UPDATE partition SET held = -1 WHERE execution_id = {e}"),
        ({"count"}, "UPDATE partition SET rows_seen = -1 WHERE execution_id = {e}"),
        ({"word"}, "UPDATE partition SET terminal = 2 WHERE execution_id = {e}"),
        ({"word"}, "UPDATE partition SET verdict = 'fine', verdict_at = 1 WHERE execution_id = {e}"),
        ({"word"}, "UPDATE partition SET verdict = 'match' WHERE execution_id = {e}"),
        ({"word"}, "UPDATE partition SET counted_kinds = 'count,x' WHERE execution_id = {e}"),
        ({"no_partition"}, "DELETE FROM partition WHERE execution_id = {e}"),
        ({"gseq"}, "UPDATE event SET gseq = 1000 WHERE execution_id = {e} AND exec_seq = 1"),
        ({"gseq"}, "UPDATE event SET gseq = 0 WHERE execution_id = {e} AND exec_seq = 1"),
        ({"gseq"}, "UPDATE event SET gseq = gseq + 1 WHERE execution_id = {e} AND exec_seq = 1"),
        ({"due"}, "UPDATE due SET tries = -1"),
        ({"due"}, "UPDATE due SET reread = -1"),
        ({"due"}, "UPDATE due SET pending_since = NULL"),
    ],
)
async def test_every_contradiction_is_named_with_its_execution(
    sqlite: SqliteBackend, kinds: set[str], sql: str
) -> None:
    await filled(sqlite)
    sqlite.run(sql.format(e=E))
    for page in (1, 500):
        checked = check(sqlite.path, page=page)
        assert named(checked) == {(E, kind) for kind in kinds}
        assert checked.exit_code == 1


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE tail_cursor SET horizon = -1",
        "UPDATE tail_cursor SET lane = ''",
        "INSERT INTO apply_cursor (shard, seq) VALUES (0, -1)",
        "INSERT INTO replica_position (replica, gseq, moved_at) VALUES ('', 1, 1)",
        "INSERT INTO sequence (dataset, high) VALUES ('d3_projection', -1)",
    ],
)
async def test_a_malformed_cursor_is_the_store_s(sqlite: SqliteBackend, sql: str) -> None:
    await filled(sqlite)
    sqlite.run(sql)
    assert named(check(sqlite.path)) == {(None, "cursor")}


async def test_a_lost_sequence_makes_every_number_one_that_was_never_given(sqlite: SqliteBackend) -> None:
    await filled(sqlite)
    sqlite.run("DELETE FROM sequence WHERE dataset = 'event'")
    assert check(sqlite.path).kinds == {"gseq": 3 * len(EXECUTIONS) + 2}


async def test_what_refused_calls_and_replicas_leave_is_legal(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await store.populate(chain(1, execution_id=1)[0])
        with pytest.raises(StoreError):  # the marker stays ahead: spec 2.4
            await store.populate(chain(1, 2, 3, execution_id=1)[2])
        await store.append(chain(1, execution_id=2)[0])
        await store.populate_from_log(3, chain(1, 2, execution_id=3))
        assert await store.revoke(3, "test")
        for seq in (3, 1):
            await store.apply_replicated(chain(1, 2, 3, execution_id=4)[seq - 1], seq)
        await store.apply_replicated(chain(1, 2, execution_id=6, parent=7)[1], 2)
    sqlite.plant_event(1, replace(chain(1)[0], execution_id=5))
    sqlite.run("INSERT INTO partition (execution_id, head_seq, head_event_id) VALUES (5, 1, 1)")
    checked = check(sqlite.path)
    assert checked.findings == []
    assert (checked.incomplete, checked.executions) == (2, 6)


async def test_the_findings_kept_are_bounded_and_all_are_counted(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(sqlite)
    sqlite.run("UPDATE partition SET held = -1")
    monkeypatch.setattr(checking, "FINDINGS_MAX", 2)
    checked = check(sqlite.path)
    assert (len(checked.findings), checked.kinds["count"]) == (2, len(EXECUTIONS) + 2)


async def test_it_writes_nothing_and_runs_beside_a_writer_that_goes_on(sqlite: SqliteBackend) -> None:
    """Between two pages the store is written; every page is one instant, so nothing is found."""
    await filled(sqlite)
    async with sqlite.open() as store:
        loop = asyncio.get_running_loop()
        written = 0

        async def write() -> None:
            nonlocal written
            written += 1
            for execution_id in (E, ID_MAX, 100 + written):  # behind and ahead of the page
                ids = range(10 * execution_id % 10**15, 10 * execution_id % 10**15 + 3)
                known = await store.chain(execution_id)
                if known:
                    new = 10**15 + 10**4 * written + execution_id % 1000
                    event = replace(known[-1], event_id=new, prev_event_id=known[-1].event_id)
                    await store.populate_from_log(execution_id, (*known, event))
                else:
                    await store.populate_from_log(execution_id, chain(*ids, execution_id=execution_id))

        def moved(executions: int) -> None:
            if written < 2 * len(EXECUTIONS):  # each adds an execution ahead of the page
                asyncio.run_coroutine_threadsafe(write(), loop).result()

        checked = await asyncio.to_thread(check, sqlite.path, page=1, moved=moved)
    assert written > len(EXECUTIONS)
    assert checked.findings == []
    assert checked.executions > len(EXECUTIONS) + 2


async def test_a_page_is_one_instant(sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that comes between the records and the rows is not seen beside the older record."""
    await filled(sqlite)
    named_row, came = checking._named, False

    def then_write(columns: str, row: tuple[Any, ...]) -> dict[str, Any]:
        nonlocal came
        if not came:
            came = True
            sqlite.plant_event(4, replace(chain(99)[0], execution_id=ID_MAX))
        return named_row(columns, row)

    monkeypatch.setattr(checking, "_named", then_write)
    assert check(sqlite.path).findings == []
    assert came
    assert named(check(sqlite.path)) == {(ID_MAX, kind) for kind in ("head", "link", "coverage")}


async def test_a_damaged_page_is_a_finding_and_nothing_else_is_read(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        for execution_id in range(40):
            first = 100 * execution_id + 1
            await store.populate_from_log(
                execution_id, chain(*range(first, first + 20), execution_id=execution_id)
            )
    root = sqlite.run("SELECT rootpage FROM sqlite_schema WHERE name = 'event_identity'")[0][0]
    image = bytearray(sqlite.path.read_bytes())
    image[(root - 1) * 4096 : root * 4096] = bytes(4096)
    sqlite.path.write_bytes(image)
    checked = check(sqlite.path)
    assert checked.damaged
    assert set(checked.kinds) == {"damage"}
    assert (checked.executions, checked.exit_code) == (0, 20)


async def test_only_the_long_form_sees_an_index_that_lacks_a_row(sqlite: SqliteBackend) -> None:
    await filled(sqlite)
    with closing(sqlite3.connect(sqlite.path)) as shell, shell:
        # An index that leaves one row out, under the text of one that has them all.
        ((whole,),) = shell.execute("SELECT sql FROM sqlite_schema WHERE name = 'due_order'").fetchall()
        shell.execute("DROP INDEX due_order")
        shell.execute("CREATE INDEX due_order ON due (due_at) WHERE due_at <> 1")
        shell.execute("PRAGMA writable_schema = ON")
        shell.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'due_order'", (whole,))
    assert set(check(sqlite.path).kinds) == {"damage"}
    assert not check(sqlite.path, quick=True).damaged


async def test_what_is_no_store_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        check(tmp_path / "none.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreFormatError):
        check(tmp_path / "empty.db")
    (tmp_path / "text.db").write_text("no database " * 1000)
    with pytest.raises(StoreError):
        check(tmp_path / "text.db")


def test_numbers_far_apart_cost_little_and_are_told_apart() -> None:
    numbers = Numbers()
    told = [1, 2, 65_535, 65_536, 2**62, 2**62 + 1]
    assert all(numbers.add(number) for number in told)
    assert not any(numbers.add(number) for number in told)
    assert numbers.add(3)
