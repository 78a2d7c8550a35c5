"""What checks come to together, and what a store without Postgres and Postgres without a store say."""

from __future__ import annotations

import io
import json
import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from sidecar import cli
from sidecar.doctor import house
from sidecar.doctor.checks import Check, State, cannot_tell, document, exit_code, failed, ok, warning
from sidecar.doctor.examination import LOG_CHECKS, NAMES
from sidecar.doctor.main import show
from sidecar.settings import Settings
from sidecar.store import ChainStore

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("NOETL_CHAIN_", "POSTGRES_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NOETL_CHAIN_POPULATE", "on")
    monkeypatch.setenv("NOETL_CHAIN_COMPARE", "on")


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ([ok("a", "x")], 0),
        ([ok("a", "x"), warning("b", "x", "y")], 0),
        ([ok("a", "x"), cannot_tell("b", "x")], 3),
        ([failed("a", "x", "y"), cannot_tell("b", "x")], 1),
        ([failed("a", "x", "y", exit_code=10), failed("b", "x", "y")], 10),
        ([failed("a", "x", "y", exit_code=10), failed("b", "x", "y", exit_code=20)], 20),
        ([failed("a", "x", "y", exit_code=2), cannot_tell("b", "x")], 2),
    ],
)
def test_a_failure_outranks_what_could_not_be_told(checks: list[Check], code: int) -> None:
    assert exit_code(checks) == code
    assert document(checks)["exit_code"] == code


def test_the_table_shows_every_check_and_its_remedy() -> None:
    text = io.StringIO()
    show([ok("a", "fine [b]"), warning("b", "hmm", "do it")], Console(file=text, width=100))
    assert "fine [b]" in text.getvalue()
    assert "→ do it" in text.getvalue()


def test_no_name_of_the_server_steers_the_terminal() -> None:
    text = io.StringIO()
    show([warning("a", "held by \x1b]0;x\x07 of \u202ebob", "end \x1b[2J")], Console(file=text, width=100))
    assert not {"\x1b", "\x07", "\u202e"} & set(text.getvalue())
    assert "\\u001b[2J" in text.getvalue()


def _doctor(capsys: Capture, *arguments: str) -> tuple[int, dict[str, dict[str, str]], str]:
    code = cli.entry(["doctor", "--json", *arguments])
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert [check["name"] for check in answer["checks"]] == list(NAMES)
    assert answer["exit_code"] == code
    for check in answer["checks"]:
        assert check["found"]
        assert check["remedy"] or check["state"] in ("ok", "cannot_tell")
    return code, {check["name"]: check for check in answer["checks"]}, said.out + said.err


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    path = tmp_path / "chain.db"
    async with ChainStore.open(str(path)):
        pass
    return path


def test_without_a_connection_the_log_cannot_be_told_and_the_store_is(store: Path, capsys: Capture) -> None:
    code, found, _ = _doctor(capsys, "--store", str(store))
    assert code == 3
    assert {found[name]["state"] for name in LOG_CHECKS} == {"cannot_tell"}
    assert "NOETL_CHAIN_DSN" in found["connection"]["remedy"]
    assert found["store_format"]["state"] == "ok"
    assert found["store_wal"]["state"] == "ok"
    assert found["gates"]["state"] == "ok"


@pytest.mark.parametrize(
    ("filled", "count", "state", "found", "remedy"),
    [
        ("2 of 3", "3", "ok", "shard 2 of 3 by the settings, and the store was filled as that", ""),
        ("2 of 5", "3", "warning", "it was filled as 2 of 5", "NOETL_CHAIN_SHARD_COUNT back"),
        ("1 of 3", "3", "warning", "it was filled as 1 of 3", "hands over"),
        (None, "3", "warning", "nobody says", "hands over"),
        (None, None, "ok", "shard 0 of 1", ""),
        ("0 of 3", None, "warning", "it was filled as 0 of 3", "hands over"),
        ("to 2 of 3", "3", "warning", "on its way", "goes on"),
    ],
)
def test_a_store_of_another_shard_is_told(
    store: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    filled: str | None,
    count: str | None,
    state: str,
    found: str,
    remedy: str,
) -> None:
    """The store's own word against the settings: index, count, and a change that was cut short."""
    with closing(sqlite3.connect(store)) as file, file:
        file.execute("DELETE FROM meta WHERE key = 'shard'")
        if filled is not None:
            key = "shard_moving" if filled.startswith("to") else "shard"
            file.execute("INSERT INTO meta (key, value) VALUES (?, ?)", (key, filled))
    if count is not None:
        monkeypatch.setenv("NOETL_CHAIN_SHARD_COUNT", count)
        monkeypatch.setenv("NOETL_CHAIN_SHARD_INDEX", "2")
    code, told, _ = _doctor(capsys, "--store", str(store))
    assert code == 3  # there is no connection
    assert told["shard"]["state"] == state
    assert found in told["shard"]["found"]
    assert remedy in told["shard"]["remedy"]


def test_a_server_that_is_not_there_fails_the_connection_alone(store: Path, capsys: Capture) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code, found, text = _doctor(
        capsys, "--dsn", f"postgresql://u:s3cret@127.0.0.1:{port}/d", "--store", str(store)
    )
    assert code == 10
    assert found["connection"]["state"] == "failed"
    assert {found[name]["state"] for name in LOG_CHECKS[1:]} == {"cannot_tell"}
    assert "s3cret" not in text
    assert "127.0.0.1" not in text


def test_a_url_that_cannot_be_read_is_a_configuration(store: Path, capsys: Capture) -> None:
    code, found, text = _doctor(capsys, "--dsn", "postgresql://u:s3cret@h:port/d", "--store", str(store))
    assert code == 2
    assert found["connection"]["state"] == "failed"
    assert "s3cret" not in text


def test_a_folder_that_is_missing_is_no_crash_and_is_not_made(tmp_path: Path, capsys: Capture) -> None:
    code, found, _ = _doctor(capsys, "--store", str(tmp_path / "nosuch" / "chain.db"))
    assert code == 20
    assert "mount the volume" in found["store_folder"]["remedy"]
    assert found["store_space"]["state"] == "cannot_tell"
    assert not (tmp_path / "nosuch").exists()


def test_a_store_that_is_not_made_yet_cannot_be_told(tmp_path: Path, capsys: Capture) -> None:
    code, found, _ = _doctor(capsys, "--store", str(tmp_path / "chain.db"))
    assert code == 3
    assert found["store_folder"]["state"] == "ok"
    assert found["store_format"]["state"] == "cannot_tell"
    assert (found["shard"]["state"], "shard 0 of 1" in found["shard"]["found"]) == ("cannot_tell", True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_program_is_a_store_that_cannot_be_used(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "chain.db"
    path.write_bytes(b"not a database, " * 512)
    code, found, _ = _doctor(capsys, "--store", str(path))
    assert code == 20
    assert found["store_format"]["state"] == "failed"


def test_a_store_on_a_server_that_is_not_there_cannot_be_used(capsys: Capture) -> None:
    code, found, text = _doctor(capsys, "--store", "postgresql://u:s3cret@127.0.0.1:1/d")
    assert code == 20
    assert found["store_folder"]["state"] == "failed"
    assert "s3cret" not in text


async def test_who_has_the_store_is_named_and_asking_does_not_take_it(tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    async with ChainStore.open(str(path)):
        found = {check.name: check for check in house.store_checks(f"sqlite:///{path}", None)}
        assert f"held by process {os.getpid()} on " in found["store_lock"].found
    found = {check.name: check for check in house.store_checks(f"sqlite:///{path}", None)}
    assert found["store_lock"].found == "nobody has the store"
    assert all(check.state is State.OK for name, check in found.items() if name != "store_space")


def test_a_network_file_system_and_a_full_disk_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sidecar.store.location

    monkeypatch.setattr(sidecar.store.location, "file_system", lambda folder: "nfs4")
    monkeypatch.setattr(house, "SPACE_WARN_BYTES", 2**70)
    found = {check.name: check for check in house.store_checks(f"sqlite:///{tmp_path / 'chain.db'}", None)}
    assert found["store_folder"].state is State.FAILED
    assert "network file system (nfs4)" in found["store_folder"].found
    assert found["store_space"].state is State.WARNING


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"live_window_s": 7200}, "LATE_WINDOW_S"),
        ({"dangling_s": 10}, "LATE_POLL_S"),
        ({"settle_s": 1}, "TICK_S"),
        ({"settle_s": 7200}, "LATE_WINDOW_S"),
        ({"held_rows": 200_000}, "HELD_ROWS_TOTAL"),
        ({"late_poll_s": 900}, "SWEEP_ROUND_S"),
        ({"poll_ms": 5000, "live_window_s": 1}, "LIVE_WINDOW_S"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(given: dict[str, float], named: str) -> None:
    found = {check.name: check for check in house.settings_checks(Settings.given(**given))}
    assert found["settings"].state is State.WARNING
    assert named in found["settings"].found
    assert list(house.misfits(Settings.given())) == []


def test_gates_that_do_not_fit_and_variables_without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_CHAIN_POPULTE", "on")
    partial = {
        check.name: check for check in house.settings_checks(Settings.given(populate="on", cert="maybe"))
    }
    assert partial["gates"].state is State.WARNING
    assert "NOETL_CHAIN_CERT" in partial["gates"].found
    assert "NOETL_CHAIN_POPULTE" in partial["variables"].found
