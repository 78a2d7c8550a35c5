"""`noetl-chain ack`: on a store at rest and beside a running sidecar, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli import entry
from sidecar.core.evidence import Finding
from sidecar.errors import StoreBusy, StoreLocked
from sidecar.store import ChainStore
from sidecar.store import acknowledge as acknowledging
from sidecar.store.acknowledge import WHY_MAX, acknowledge
from sidecar.store.check import check
from sidecar.store.overview import open_findings
from sidecar.store.unit import StoreUnit
from tests.contract.events import E, chain

Capture = pytest.CaptureFixture[str]


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """A store at rest with two findings."""
    path = tmp_path / "chain.db"
    async with ChainStore.open(str(path)) as opened:
        await opened.populate_from_log(E, chain(1, 2, 3))
        await opened.transact(_found)
    return path


async def _found(unit: StoreUnit) -> int:
    return await unit.note_findings(
        (
            Finding(E, "divergent", {"log": {}}, kind="payload", position=1),
            Finding(E + 1, "log_lost", {"log": {}}),
        ),
        (),
    )


def dump(path: Path) -> dict[str, list[Any]]:
    """Every table but the acknowledgement columns."""
    with closing(sqlite3.connect(path)) as conn:
        names = [name for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        conn.execute("UPDATE finding SET acknowledged_at = NULL, acknowledged_why = NULL")  # not committed
        return {name: conn.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in names}


def ack(path: Path, *words: str) -> int:
    return entry(["ack", *words, "--store", str(path)])


def acknowledged(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as conn:
        return conn.execute("SELECT finding_id, acknowledged_why FROM finding ORDER BY 1").fetchall()


def test_a_finding_is_acknowledged_kept_and_taken_back(store: Path, capsys: Capture) -> None:
    before = dump(store)
    assert ack(store, "1", "--why", "a restored backup", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told.pop("acknowledged_at") > 0
    assert told == {
        "finding_id": "1",
        "execution_id": str(E),
        "verdict": "divergent",
        "kind": "payload",
        "resolved": False,
        "acknowledged": True,
        "why": "a restored backup",
    }
    assert acknowledged(store) == [(1, "a restored backup"), (2, None)]
    assert ack(store, "1", "--undo") == 0
    assert "counts again" in capsys.readouterr().err
    assert acknowledged(store) == [(1, None), (2, None)]
    assert dump(store) == before


def test_a_store_at_rest_is_left_at_rest(store: Path) -> None:
    assert ack(store, "1", "--why", "x") == 0
    assert sorted(path.name for path in store.parent.iterdir()) == ["chain.db", "chain.db.lock"]
    assert check(store).findings == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["9", "--why", "x"], "there is no finding 9"),
        (["1"], "needs a reason"),
        (["1", "--why", " \t"], "needs a reason"),
        (["1", "--why", "x" * (WHY_MAX + 1)], "longer than"),
        (["2", "--undo"], "finding 2 is not acknowledged"),
        (["1", "--undo", "--why", "x"], "both given"),
        (["0", "--why", "x"], "decimal number"),
        (["-1", "--why", "x"], "decimal number"),
        (["one", "--why", "x"], "decimal number"),
        (["99999999999999999999", "--why", "x"], "decimal number"),
    ],
)
def test_what_cannot_be_acknowledged_is_refused_with_2(
    store: Path, capsys: Capture, words: list[str], says: str
) -> None:
    before = dump(store)
    assert ack(store, *words) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert "Traceback" not in told.err
    assert told.out == ""
    assert dump(store) == before
    assert acknowledged(store) == [(1, None), (2, None)]


def test_a_second_acknowledgement_is_refused_and_the_first_reason_stays(store: Path, capsys: Capture) -> None:
    assert ack(store, "1", "--why", "first") == 0
    assert ack(store, "1", "--why", "second") == 2
    assert "acknowledged already" in capsys.readouterr().err
    assert acknowledged(store)[0] == (1, "first")


def test_no_store_and_another_database_end_with_20(tmp_path: Path, capsys: Capture) -> None:
    assert ack(tmp_path / "none.db", "1", "--why", "x") == 20
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as conn:
        conn.execute("CREATE TABLE t (x)")
    assert ack(other, "1", "--why", "x") == 20
    assert not (tmp_path / "none.db").exists()
    assert "Traceback" not in capsys.readouterr().err


async def test_beside_the_one_writer_it_waits_its_turn_and_leaves_the_lock_alone(store: Path) -> None:
    """The writer's transaction is under way when the command comes: it waits, and both go through."""
    waiting = threading.Event()

    async with ChainStore.open(str(store)) as running:
        before = dump(store)

        def command() -> int:
            waiting.set()
            return ack(store, "1", "--why", "x")

        async def feeding(unit: StoreUnit) -> asyncio.Future[int]:
            await unit.rows("UPDATE partition SET held = held")  # the write lock is taken
            task = asyncio.get_running_loop().run_in_executor(None, command)
            await asyncio.to_thread(waiting.wait, 10)
            assert acknowledged(store) == [(1, None), (2, None)]
            unit.append(())
            return task

        task = await running.transact(feeding)
        assert await task == 0
        assert await open_findings(running) == {"log_lost": 1}
        with pytest.raises(StoreLocked):
            await ChainStore.open(str(store))
        await running.populate_from_log(E, chain(1, 2, 3, 4))
        assert (await running.chain_if_authoritative(E)).events == chain(1, 2, 3, 4)
        assert {k: v for k, v in dump(store).items() if k == "finding"} == {"finding": before["finding"]}


def test_nobody_writes_between_its_look_and_its_mark(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write lock is taken before the finding is read; else the mark may meet a newer snapshot."""
    looked = acknowledging._checked

    def meddled(*found: Any) -> Any:
        with (
            closing(sqlite3.connect(store, timeout=0)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("UPDATE finding SET detail = 'meddled'")
        return looked(*found)

    monkeypatch.setattr(acknowledging, "_checked", meddled)
    assert acknowledge(store, 1, "x", now=1).why == "x"


def test_a_transaction_that_does_not_end_is_busy_and_nothing_is_written(store: Path) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            acknowledge(store, 1, "x", now=1, wait_s=0.05)
    assert acknowledged(store) == [(1, None), (2, None)]
