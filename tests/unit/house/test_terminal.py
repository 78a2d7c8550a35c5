"""What people see: whole words at any width, colours by NO_COLOR and FORCE_COLOR, bars on terminals."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from sidecar.commands.console import show_acknowledged, show_check, show_verification
from sidecar.commands.consolestatus import show_status
from sidecar.comparator.findings import Verification
from sidecar.core.verdict import Judgement, Kind, Verdict
from sidecar.doctor import main as doctor
from sidecar.doctor.checks import Check, State
from sidecar.inspection.tabled import Whole
from sidecar.store import ChainStore
from sidecar.store.acknowledge import Acknowledged
from sidecar.store.check import Checked, Finding
from sidecar.telemetry import logs
from tests.web.given import standing, tallies, told

FIRST = -(2**63)
IDS = [FIRST + n for n in range(4)]
MANY = 1_480_123
WIDTHS = (40, 80, 200)
COLOUR = re.compile(r"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38;5;[0-9]+)m")


def verification() -> None:
    found = Verification("store")
    found.add([Judgement(each, Verdict.DIVERGENT, (Kind.PAYLOAD,), position=3, log_rows=7) for each in IDS])
    show_verification(found, 1.5)


def checked() -> None:
    found = Checked(executions=4, events=10**9)
    for each in IDS:
        found.findings.append(Finding(each, "link", f"event {each} names another"))
        found.kinds["link"] += 1
    show_check(found, 1.5)


def acknowledged() -> None:
    show_acknowledged(Acknowledged(IDS[0], IDS[1], "divergent", "payload", False, None, None))


def status() -> None:
    show_status({**told(standing(tallies(match=MANY), findings={"divergent": 3})), "from": "api"})


def examined() -> None:
    name = "prepared transactions"
    checks = [Check(name, State.CANNOT_TELL, f"event {each} is there", f"ask for {each}") for each in IDS]
    doctor.show(checks, Console(stderr=True, highlight=False))


SHOWN: dict[Callable[[], None], dict[str, int]] = {
    verification: {str(each): 1 for each in IDS},
    checked: {str(each): 2 for each in IDS} | {"1,000,000,000": 1},
    acknowledged: {str(each): 1 for each in IDS[:2]},
    # The sentence, and the covered and the eligible ones of two windows; and the verdicts.
    status: {f"{MANY:,}": 2 + 2 * 2 + 1, f"{40 * MANY:,}": 2 + 2 * 2},
    examined: {str(each): 2 for each in IDS},
}
"""What is shown, and how often each word of it has to be met whole."""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("show", SHOWN, ids=lambda show: show.__name__)
def test_no_id_and_no_number_is_cut(
    show: Callable[[], None],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show()
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= width
    for word, times in SHOWN[show].items():
        whole = re.compile(rf"(?<![\w,-]){re.escape(word)}(?![\w,])")
        assert sum(len(whole.findall(line)) for line in lines) == times, word


def table() -> Table:
    made = Table(box=None, pad_edge=False)
    made.add_column("execution")
    made.add_column("")
    made.add_column("events", justify="right")
    made.add_column("rows", justify="right")
    made.add_row(str(FIRST), "", "1,000", "2,000")
    return made


def drawn(width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(Whole(table()))
    return out.getvalue()


def test_a_table_is_a_table_where_its_words_fit_and_one_line_a_cell_elsewhere() -> None:
    assert drawn(40).splitlines()[0].split() == ["execution", "events", "rows"]
    assert drawn(32) == f"execution {FIRST}\n  events    1,000\n  rows      2,000\n"


@pytest.mark.parametrize("show", SHOWN, ids=lambda show: show.__name__)
def test_colours_are_the_user_s_to_give_and_to_take(
    show: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def coloured(**given: str) -> bool:
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, text in given.items():
            monkeypatch.setenv(name, text)
        show()
        return COLOUR.search(capsys.readouterr().err) is not None

    monkeypatch.setenv("TERM", "xterm-256color")
    assert not coloured()  # no terminal
    assert coloured(FORCE_COLOR="1")
    assert not coloured(FORCE_COLOR="1", NO_COLOR="1")


@pytest.mark.parametrize(
    ("given", "terminal", "wanted"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_log_lines_for_people_follow_them_too(
    given: dict[str, str], terminal: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Out(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    assert logs.coloured(Out()) is wanted


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    path = tmp_path / "chain.db"
    async with ChainStore.open(str(path)):
        pass
    return path


def on_a_terminal(command: list[str]) -> str:
    """What the command writes to its stderr, which is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        written = b""
        try:
            while piece := os.read(ours, 4096):
                written += piece
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(ours)
        assert process.wait(30) == 0
    return written.decode()


def test_a_bar_is_for_terminals_alone(store: Path) -> None:
    command = [sys.executable, "-m", "sidecar", "store", "check", "--store", str(store)]
    hidden = "\x1b[?25l"  # the cursor, while a bar moves
    assert hidden in on_a_terminal(command)
    forced = {**os.environ, "FORCE_COLOR": "1"}
    piped = subprocess.run(command, capture_output=True, text=True, env=forced, timeout=30)
    assert "nothing in it contradicts itself" in piped.stderr
    assert hidden not in piped.stderr
