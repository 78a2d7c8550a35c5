"""`noetl-chain store …` on real logs and beside a running sidecar; retention in a running one."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.commands import backfill
from sidecar.commands import store as storecommands
from sidecar.commands.verify import verification
from sidecar.comparator.record import recorded
from sidecar.core.authority import Partition
from sidecar.core.populate import InSync, Refused
from sidecar.core.verdict import Judgement, Verdict
from sidecar.errors import ConfigError, StoreError, StoreFormatError, StoreLocked
from sidecar.service import gauges
from sidecar.settings import Settings
from sidecar.store import ChainStore
from sidecar.store.check import check
from sidecar.store.retention import DAY_US
from sidecar.telemetry.wal import WalWatch
from tests.support.captured import captured
from tests.support.databases import Database
from tests.support.meddling import add_foreign_row, drop_row
from tests.support.rows import chain_rows, event_row
from tests.support.service import service

E = 8001
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"

Capture = pytest.CaptureFixture[str]


def settings(store: Path, dsn: str = NOWHERE, **more: Any) -> Settings:
    return Settings.given(dsn=dsn, store=str(store), **more)


async def command(main: Callable[..., int], *args: Any, **options: Any) -> int:
    """In a thread of its own: a command brings its own loop."""
    return await asyncio.to_thread(main, *args, **options)


async def backfilled(pg: Database, store: Path) -> None:
    await backfill.backfilled(settings(store, pg.dsn))


async def test_a_second_writer_s_partition_is_rebuilt_and_matches_again(pg: Database, tmp_path: Path) -> None:
    """Revoked by the comparator; rebuilt while the sidecar is down; judged by the next run."""
    path = tmp_path / "chain.db"
    await pg.insert(chain_rows(E, range(1, 5)))
    async with service(pg.dsn, path) as sidecar:
        await sidecar.verdict(E, "match")
        await add_foreign_row(path, E, 99, move_head=True)
        await pg.insert([event_row(E, 5, prev=4)])
        await sidecar.verdict(E, "second_writer")
        with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
            await storecommands.rebuilt(settings(path), E)
    done = await storecommands.rebuilt(settings(path, pg.dsn), E)
    assert (done.outcome, done.kept, done.rows) == (InSync(5, 5), 5, 5)
    assert (await verification(settings(path, pg.dsn), store_url=str(path))).exit_code == 0
    async with service(pg.dsn, path) as sidecar:
        await sidecar.verdict(E, "match")
        assert [event.event_id for event in (await sidecar.read(E)).events or ()] == [1, 2, 3, 4, 5]
        await sidecar.idle()
        ((evidence,),) = await sidecar.store.query("SELECT evidence FROM finding WHERE verdict = 'rebuilt'")
        assert json.loads(evidence)["partition"]["verdict"] == "second_writer"


async def test_beside_a_running_sidecar_postgres_is_not_even_asked(pg: Database, tmp_path: Path) -> None:
    await backfilled(pg, tmp_path / "chain.db")
    async with ChainStore.open(str(tmp_path / "chain.db")):
        with pytest.raises(StoreLocked) as refused:
            await storecommands.rebuilt(settings(tmp_path / "chain.db"), E)
    assert refused.value.exit_code == 20
    assert "stop the other sidecar" in refused.value.hint


@pytest.mark.parametrize("wrong", ["pruned", "truncated", "fork"])
async def test_a_log_that_is_refused_changes_nothing_and_ends_with_three(
    pg: Database, tmp_path: Path, capsys: Capture, wrong: str
) -> None:
    path = tmp_path / "chain.db"
    await pg.insert(chain_rows(E, range(1, 5)))
    await backfilled(pg, path)
    more: dict[str, Any] = {}
    match wrong:
        case "pruned":
            await pg.execute(f"DELETE FROM noetl.event WHERE execution_id = {E}")
        case "truncated":
            more["read_limit"] = 4
        case "fork":
            await pg.insert([event_row(E, 6, prev=2)])
    label = {"pruned": "log_pruned", "truncated": "log_truncated", "fork": "fork"}[wrong]
    assert (await storecommands.rebuilt(settings(path, pg.dsn, **more), E)).outcome == Refused(label)
    done = await command(storecommands.main_store_rebuild, settings(path, pg.dsn, **more), E, as_json=True)
    assert done == 3
    assert json.loads(capsys.readouterr().out) == {
        "execution_id": str(E), "outcome": label, "rows_kept": 0, "rows": 4,
    }  # fmt: skip
    async with ChainStore.open_readonly(str(path)) as store:
        assert len(await store.chain(E)) == 4
        assert await store.query("SELECT * FROM finding") == []


async def test_what_the_store_does_not_hold_is_usage(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    with pytest.raises(StoreError, match="there is no store"):
        await storecommands.rebuilt(settings(path, pg.dsn), E)
    assert not path.exists()
    await pg.insert(chain_rows(E, range(1, 5)))
    await backfilled(pg, path)
    with pytest.raises(ConfigError, match="holds nothing of execution 5"):
        await storecommands.rebuilt(settings(path), 5)


async def test_check_beside_a_running_sidecar_and_after_meddling(
    pg: Database, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "chain.db"
    await pg.insert(chain_rows(E, range(1, 5)))
    async with service(pg.dsn, path) as sidecar:
        await sidecar.verdict(E, "match")
        capsys.readouterr()  # the log of this process's sidecar
        assert await command(storecommands.main_store_check, settings(path), quick=False, as_json=True) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["executions"], told["events"], told["findings"], told["kinds"]) == (1, 4, [], {})
    await drop_row(path, E, 2)
    assert await command(storecommands.main_store_check, settings(path), quick=True, as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["kinds"] == {"coverage": 1, "sequence": 1}
    assert {found["execution_id"] for found in told["findings"]} == {str(E)}
    assert await command(storecommands.main_store_check, settings(path), quick=False, as_json=False) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{E}  sequence  exec_seq 2 is missing" in err


async def test_a_backup_of_a_running_sidecar_is_a_good_store(
    pg: Database, tmp_path: Path, capsys: Capture
) -> None:
    path, copy = tmp_path / "chain.db", tmp_path / "copy.db"
    await pg.insert(chain_rows(E, range(1, 5)))
    async with service(pg.dsn, path) as sidecar:
        await sidecar.verdict(E, "match")
        capsys.readouterr()  # the log of this process's sidecar
        assert await command(storecommands.main_store_backup, settings(path), copy, as_json=True) == 0
        assert json.loads(capsys.readouterr().out)["bytes"] == copy.stat().st_size
        await pg.insert(chain_rows(E + 1, range(11, 14)))
        await sidecar.verdict(E + 1, "match")
    assert check(copy).executions == 1
    async with service(pg.dsn, copy) as sidecar:  # put back: what came since is read again
        await sidecar.verdict(E + 1, "match")
        await sidecar.verdict(E, "match")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NOETL_CHAIN_", "POSTGRES_"))}
    command = [sys.executable, "-m", "sidecar", "store", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean)


@pytest.mark.torture
async def test_the_commands_as_a_user_calls_them(pg: Database, tmp_path: Path) -> None:
    path, copy = str(tmp_path / "chain.db"), str(tmp_path / "copy.db")
    await pg.insert(chain_rows(-E, range(1, 5)))
    await backfilled(pg, Path(path))

    def all_of_them() -> None:
        assert (checked := run("check", "--store", path)).returncode == 0, checked.stderr
        assert "1 executions, 4 events" in checked.stderr
        assert run("backup", copy, "--store", path).returncode == 0
        assert (again := run("backup", copy, "--store", path)).returncode == 2
        assert "not overwritten" in again.stderr
        assert (upgrade := run("upgrade", "--store", path)).returncode == 2
        assert "nothing to upgrade" in upgrade.stderr
        rebuilt = run("rebuild", f"{-E}", "--store", path, "--dsn", pg.dsn)
        assert (rebuilt.returncode, rebuilt.stdout) == (0, ""), rebuilt.stderr
        assert "4 rows stand there now, 4 are kept as evidence" in rebuilt.stderr
        assert run("rebuild", "no-id", "--store", path).returncode == 2
        for verb in ("check", "upgrade"):
            none = run(verb, "--store", path + "x")
            assert (none.returncode, "there is no store" in none.stderr) == (20, True)

    await asyncio.to_thread(all_of_them)


async def test_upgrade_refuses_another_layout_by_its_number(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    await backfilled(pg, path)
    with closing(sqlite3.connect(path)) as shell, shell:
        shell.execute("UPDATE meta SET value = '7' WHERE key = 'FORMAT_VERSION'")
    with pytest.raises(StoreFormatError, match="version 7"):
        storecommands.main_store_upgrade(settings(path))


async def test_a_running_sidecar_drops_what_is_gone_long_enough(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    log, entries = captured()
    await pg.insert([*chain_rows(E, range(1, 5)), *chain_rows(E + 1, range(11, 14))])
    async with service(pg.dsn, path) as sidecar:
        await sidecar.verdict(E, "match")
        await sidecar.verdict(E + 1, "match")
        await pg.execute(f"DELETE FROM noetl.event WHERE execution_id = {E}")
    async with service(pg.dsn, path, retain_days=2, log=log) as sidecar:
        await sidecar.verdict(E, "log_pruned")
        await sidecar.idle()
        await sidecar.ticks(2)
        assert len((await sidecar.read(E)).events or ()) == 4  # not long enough
        assert sidecar.value("store_dropped_executions_total") == 0
        await asyncio.to_thread(_aged, path, E, 3)

        async def gone() -> bool:
            return await sidecar.store.partition(E) is None

        await sidecar.until(gone)
        assert await sidecar.store.chain(E) == ()

        async def counted() -> bool:
            return sidecar.value("store_dropped_executions_total") == 1

        await sidecar.until(counted)
        (told,) = [entry for entry in entries if entry["event"] == "partitions_dropped"]
        assert (told["executions"], told["rows"]) == (1, 4)
        await pg.insert([event_row(E + 1, 14, prev=13)])
        await sidecar.stored(E + 1, 4)
    async with service(pg.dsn, path, retain_days=2) as sidecar:  # it does not come back
        await sidecar.idle()
        assert await sidecar.store.partition(E) is None
    assert check(path).findings == []


def _aged(path: Path, execution_id: int, days: int) -> None:
    with closing(sqlite3.connect(path, timeout=10)) as shell, shell:
        shell.execute(
            "UPDATE partition SET verdict_at = verdict_at - ?1, last_change_at = last_change_at - ?1"
            " WHERE execution_id = ?2",
            (days * DAY_US, execution_id),
        )


async def test_without_the_setting_nothing_is_dropped(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    await pg.insert(chain_rows(E, range(1, 5)))
    async with service(pg.dsn, path) as sidecar:
        await sidecar.verdict(E, "match")
        await pg.execute(f"DELETE FROM noetl.event WHERE execution_id = {E}")
    async with service(pg.dsn, path) as sidecar:
        await sidecar.verdict(E, "log_pruned")
        await sidecar.idle()
        await asyncio.to_thread(_aged, path, E, 40_000)
        await sidecar.ticks(3)
        assert len(await sidecar.store.chain(E)) == 4


def test_a_log_that_is_still_gone_is_gone_since_it_was_first_missed() -> None:
    """Every change of the partition tree asks again; retention would never come."""
    partition = Partition(E, first_seen_at=1)
    for now, verdict, at in [
        (10, Verdict.MATCH, 10),
        (20, Verdict.MATCH, 20),
        (30, Verdict.LOG_PRUNED, 30),
        (40, Verdict.LOG_PRUNED, 30),
        (50, Verdict.MATCH, 50),
        (60, Verdict.LOG_PRUNED, 60),
    ]:
        partition, _ = recorded(partition, Judgement(E, verdict), now)
        assert (partition.verdict, partition.verdict_at) == (verdict.value, at)


async def test_a_running_sidecar_watches_its_write_ahead_log(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, entries = captured()
    monkeypatch.setattr(gauges, "WalWatch", lambda log: WalWatch(log, bound=1000))
    await pg.insert(chain_rows(E, range(1, 5)))
    async with service(pg.dsn, tmp_path / "chain.db", log=log) as sidecar:
        await sidecar.verdict(E, "match")
        await sidecar.ticks(2)
        assert sidecar.value("store_wal_bytes") > 1000
    assert [entry["event"] for entry in entries].count("store_wal_long") == 1
