"""`noetl-chain inspect`: one execution from both sides, from one, and beside a running sidecar."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli import entry
from sidecar.store import ChainStore
from sidecar.store.acknowledge import acknowledge
from tests.contract.events import chain
from tests.support.databases import Database
from tests.support.fixture_log import load_fixture
from tests.support.meddling import add_foreign_row
from tests.support.recorded import RESTARTS, load_set, recorded_set
from tests.support.rows import chain_rows, event_row
from tests.support.service import service

E = 9100
SECRET = "nobody-may-read-this"
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No log and no store of this machine."""
    for name in ("NOETL_CHAIN_DSN", "NOETL_CHAIN_DSN_FILE", "POSTGRES_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NOETL_CHAIN_STORE", str(tmp_path / "none.db"))


async def inspect(*words: str) -> int:
    """In a thread of its own: a command brings its own loop."""
    return await asyncio.to_thread(entry, ["inspect", *words])


async def shown(capsys: Capture, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = await inspect(*words)
    told = capsys.readouterr()
    return code, told.out, told.err


@asynccontextmanager
async def diverged(pg: Database, path: Path) -> AsyncIterator[None]:
    """A running sidecar that has found one changed row."""
    await pg.insert(chain_rows(E, range(1, 5)))
    async with service(pg.dsn, path) as sidecar:
        await sidecar.verdict(E, "match")
        await sidecar.caught_up()
        await pg.execute(f"UPDATE noetl.event SET error = '{SECRET}' WHERE event_id = 3")
        await sidecar.verdict(E, "divergent")
        await sidecar.idle()
        yield


async def test_beside_a_running_sidecar_both_sides_verdict_and_evidence_are_shown(
    pg: Database, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "chain.db"
    where = ("--dsn", pg.dsn, "--store", str(path))
    async with diverged(pg, path):
        code, out, _ = await shown(capsys, str(E), *where)
        assert code == 0
        for expected in (
            "  log       4 rows, ordered",
            "  store     4 rows",
            "  served    no: ",
            "  verdict   divergent since",
            "  revoked   divergent since",
            "  differ    1: 3",
            "  now       divergent payload at position 2",
            "  finding   1: divergent payload at position 2  found",
            "│ 3 step.exit  [payload differs]",
        ):
            assert expected in out, out
        assert SECRET not in out

        code, out, _ = await shown(capsys, str(E), *where, "--payload")
        assert SECRET in out

        code, out, _ = await shown(capsys, str(E), *where, "--format", "json")
        document = json.loads(out)
        assert document["now"]["verdict"] == document["record"]["verdict"] == "divergent"
        (finding,) = document["findings"]
        assert (finding["finding_id"], finding["execution_id"], finding["log_event"]) == ("1", str(E), "3")
        assert SECRET not in out
        assert [node["differs"] for node in document["nodes"]] == [[], [], ["payload"], []]
        _, out, _ = await shown(capsys, str(E), *where, "--format", "json", "--payload")
        assert SECRET in out

        await asyncio.to_thread(acknowledge, path, 1, "known \x1b[31m", now=1)
        _, out, _ = await shown(capsys, str(E), *where)
        assert "known \\u001b[31m" in out


async def test_without_a_store_the_log_is_drawn_and_it_is_said(
    pg: Database, tmp_path: Path, capsys: Capture
) -> None:
    conn = await pg.connect()
    await load_fixture(conn)
    code, out, err = await shown(capsys, "2001", "--dsn", pg.dsn)
    assert code == 0
    assert "no store was read" in err
    assert "  store     not read" in out
    assert "multiple_roots: event_ids (2001, 2005, 2006)" in out
    assert [line for line in out.splitlines() if line.startswith("● ")] != []
    assert [line.split()[1] for line in out.splitlines() if line.startswith("● ")] == ["2001", "2005", "2006"]
    assert not (tmp_path / "none.db").exists()

    _, out, _ = await shown(capsys, "1002", "--dsn", pg.dsn)
    assert "✗ 14 is missing\n└─● 15 " in out
    _, out, _ = await shown(capsys, "1002", "--dsn", pg.dsn, "--format", "json")
    document = json.loads(out)
    assert document["gaps"] == [{"missing": "14", "named_by": ["15"]}]
    assert (document["store"], document["now"], document["log"]["order"]) == (None, None, "dangling_prev")
    for form, first in (("mermaid", "flowchart TD"), ("dot", "digraph execution {")):
        code, out, _ = await shown(capsys, "1002", "--dsn", pg.dsn, "--format", form)
        assert (code, out.splitlines()[0]) == (0, first)
        assert "14 is missing" in out


async def stored(path: Path, *ids: int) -> None:
    async with ChainStore.open(str(path)) as store:
        await store.populate_from_log(E, chain(*ids, execution_id=E))


@pytest.mark.parametrize("dsn", [(), ("--dsn", NOWHERE)])
async def test_without_postgres_the_store_is_drawn_and_it_is_said(
    tmp_path: Path, capsys: Capture, dsn: tuple[str, ...]
) -> None:
    path = tmp_path / "chain.db"
    await stored(path, *range(1, 74))
    code, out, err = await shown(capsys, str(E), "--store", str(path), *dsn)
    assert code == 0
    assert "the log was not read" in err
    assert "Traceback" not in err
    assert "  log       not read" in out
    assert "│ … 64 more, linear, 6 to 69" in out
    assert "only" not in out, "a side that was not read is not taken for empty"
    _, out, _ = await shown(capsys, str(E), "--store", str(path), *dsn, "--all")
    assert out.count("step.exit") == 73


async def test_both_sides_name_what_only_one_has(pg: Database, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "chain.db"
    await pg.insert(chain_rows(E, range(1, 4)))
    async with service(pg.dsn, path) as sidecar:
        await sidecar.verdict(E, "match")
    await add_foreign_row(path, E, 99, move_head=True)
    await pg.insert([event_row(E, 4, prev=3)])
    code, out, _ = await shown(capsys, str(E), "--dsn", pg.dsn, "--store", str(path))
    assert code == 0
    assert "  only log  1: 4" in out
    assert "  only store 1: 99" in out
    assert "  now       second_writer" in out
    assert "├─● 4 " in out
    async with ChainStore.open(str(path)) as store:
        record = await store.partition(E)
        assert record is not None
        assert (record.verdict, record.revoked_reason) == ("match", None), "nothing was recorded"


async def test_never_seen_by_either_ends_with_3(pg: Database, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "chain.db"
    await stored(path, 1)
    for where in ((), ("--store", str(path))):
        code, out, err = await shown(capsys, "77", "--dsn", pg.dsn, *where)
        assert (code, out) == (3, "")
        assert "execution 77 was never seen" in err


async def test_whether_it_was_seen_is_not_told_while_postgres_is_away(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "chain.db"
    await stored(path, 1)
    code, out, err = await shown(capsys, "77", "--store", str(path), "--dsn", NOWHERE)
    assert (code, out) == (10, "")
    assert "never seen" not in err
    assert (await shown(capsys, "77", "--store", str(path)))[0] == 2, "no log is configured"
    assert (await shown(capsys, "77"))[0] == 2


@pytest.mark.parametrize("bad", ["x", "1.5", "99999999999999999999", "", "1 2"])
async def test_a_bad_id_ends_with_2(capsys: Capture, bad: str) -> None:
    code, out, err = await shown(capsys, bad)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


async def test_a_bad_format_and_a_named_store_that_is_not_there(
    pg: Database, tmp_path: Path, capsys: Capture
) -> None:
    assert (await shown(capsys, "1", "--format", "xml"))[0] == 2
    assert (await shown(capsys, "1", "--dsn", pg.dsn, "--store", str(tmp_path / "not.db")))[0] == 20


async def test_a_log_as_long_as_the_limit_is_not_taken_for_the_whole(
    pg: Database, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_CHAIN_READ_LIMIT", "3")
    await pg.insert(chain_rows(E, range(1, 5)))
    code, out, _ = await shown(capsys, str(E), "--dsn", pg.dsn)
    assert code == 0
    assert "log_truncated" in out


async def test_a_recorded_log_with_restarts_is_readable(pg: Database, capsys: Capture) -> None:
    recorded = recorded_set(RESTARTS)
    conn = await pg.connect()
    await load_set(conn, recorded)
    broken = next(e for e, verdict in recorded.verdicts().items() if verdict == "refused_multiple_roots")
    code, out, _ = await shown(capsys, str(broken), "--dsn", pg.dsn)
    assert code == 0
    roots = [line for line in out.splitlines() if line.startswith("● ")]
    assert len(roots) > 1
    assert len(out.splitlines()) < 60
    for form in ("json", "mermaid", "dot"):
        document: Any = (await shown(capsys, str(broken), "--dsn", pg.dsn, "--format", form))[1]
        assert document
        if form == "json":
            assert len(json.loads(document)["roots"]) == len(roots)
