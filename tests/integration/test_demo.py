"""The whole demo in a process of its own: it agrees, it can be stopped, it leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sidecar.demo.faults import FAULTS

DEMO = [sys.executable, "-m", "sidecar", "demo"]
ENDS_S = 15.0


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A short temporary folder of the demo's own: a socket's path has little room."""
    folder = Path(tempfile.gettempdir()) / f"nc-demo-{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
    folder.mkdir(mode=0o755)
    yield folder
    folder.rmdir()  # fails when the demo left something in it


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*DEMO, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)},
    )


def children(process: subprocess.Popen[str]) -> list[Any]:
    found: list[Any] = psutil.Process(process.pid).children(recursive=True)
    return found


def gone(processes: list[Any]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=ENDS_S)
    return not alive


def until(process: subprocess.Popen[str], word: str, within_s: float = 40) -> None:
    """Read the demo's lines until one holds `word`."""
    assert process.stdout is not None
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        ready, _, _ = select.select([process.stdout], [], [], deadline - time.monotonic())
        if ready and word in process.stdout.readline():
            return
    pytest.fail(f"the demo never said {word!r}")


def test_a_short_demo_agrees_in_both_directions(temporary: Path) -> None:
    process = started(temporary, "--seconds", "3", "--json")
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, f"{out}\n{err}"
    told = json.loads(out)
    assert told["agrees"] is told["settled"] is True
    assert told["missing"] == told["extra"] == told["miscounted"] == told["taken_back"] == []
    assert told["published"] >= len(FAULTS) - 3  # three faults end in a match; the log was really read
    assert {each["fault"] for each in told["faults"]} == {fault.name for fault in FAULTS}
    assert all(each["seen"] == each["expected"] for each in told["faults"])
    assert all(type(each["execution_id"]) is str for each in told["faults"])
    assert told["divergences"] == {"payload": 1, "second_writer": 1}
    assert told["verdicts"] == told["ledger"]
    assert told["rows_written"] > 1000
    coverage, verdicts = told["coverage"], told["verdicts"]
    assert coverage["covered_executions"] == verdicts["match"] > 0
    assert coverage["eligible_executions"] == sum(verdicts.values()) - verdicts["log_pruned"]
    assert 0 < coverage["covered_events"] < coverage["eligible_events"]
    assert told["open_transactions_max"] > 1
    assert told["horizon_age_max_s"] > 1  # the long transaction really pinned it


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGINT, marks=pytest.mark.torture), signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_nothing(temporary: Path, signum: signal.Signals) -> None:
    process = started(temporary, "--seconds", "30")
    until(process, "playing")
    mine = children(process)
    assert {"postgres"} <= {each.name() for each in mine}
    process.send_signal(signum)
    process.communicate(timeout=ENDS_S)
    assert process.returncode == 128 + signum
    assert gone(mine)


@pytest.mark.torture
def test_killed_it_takes_server_and_sidecar_along(temporary: Path) -> None:
    process = started(temporary, "--seconds", "30")
    until(process, "playing")
    mine = children(process)
    process.kill()
    process.communicate(timeout=ENDS_S)
    assert gone(mine)
    # The folder stays; the next start sweeps it.
    again = started(temporary, "--seconds", "30")
    until(again, "playing")
    again.terminate()
    again.communicate(timeout=ENDS_S)
    assert not list(temporary.iterdir())


@pytest.mark.torture
def test_a_time_in_which_nothing_is_whole_is_refused(temporary: Path) -> None:
    process = started(temporary, "--seconds", "1", "--speed", "0.1")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "play longer" in err


@pytest.mark.torture
def test_the_three_recordings_whole(temporary: Path) -> None:
    process = started(temporary, "--seconds", "27", "--json")
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, f"{out}\n{err}"
    told = json.loads(out)
    assert sum(each["executions"] for each in told["played"]) == 231 + 155 + 214
    assert sum(each["rows"] for each in told["played"]) == 11367 + 7659 + 12792
