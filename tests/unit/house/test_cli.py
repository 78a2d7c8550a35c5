"""The commands: what they take, what they refuse, how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from sidecar import __version__, cli
from sidecar.commands import arguments
from sidecar.errors import (
    ConfigError,
    InvariantError,
    SidecarError,
    SourceUnavailable,
    StoreLocked,
)

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
HEAVY = (
    "asyncpg",
    "aiosqlite",
    "starlette",
    "uvicorn",
    "pydantic_settings",
    "structlog",
    "prometheus_client",
    "rich",
)

Capture = pytest.CaptureFixture[str]


def raising(error: BaseException) -> Callable[..., int]:
    def main(*args: Any, **options: Any) -> int:
        raise error

    return main


@pytest.fixture
def demo_ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., int]], None]:
    """Put another body under `noetl-chain demo`."""
    import sidecar.demo.main

    def use(body: Callable[..., int]) -> None:
        monkeypatch.setattr(sidecar.demo.main, "main_demo", body)

    return use


Ends = Callable[[Callable[..., int]], None]


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["verify", "--help"], ["--version"], ["schema", "--help"], ["store", "check", "--help"]],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from sidecar.cli import entry\n"
        f"code = entry({arguments!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")


def test_the_console_script_and_the_module_are_one_program() -> None:
    script = str(Path(sys.executable).with_name("noetl-chain"))
    for command in ([script], [sys.executable, "-m", "sidecar"]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout) == (0, f"noetl-chain {__version__}\n")


@pytest.mark.parametrize(
    "verb",
    [
        *("run", "verify", "backfill", "demo", "schema print", "schema apply"),
        *("store check", "store backup", "store rebuild", "store upgrade"),
    ],
)
def test_every_command_takes_the_common_options(verb: str, capsys: Capture) -> None:
    assert cli.entry([*verb.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--dsn ", "--dsn-file ", "--store "))


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--bogus"],
        ["nothing"],
        ["verify", "--since", "yesterday"],
        ["verify", "--execution", "12x"],
        ["verify", "--execution", str(2**63)],
        ["verify", "--settle", "-1"],
        ["verify", "--settle", "nan"],
        ["verify", "--store", "mysql://x"],
        ["run", "--dsn", "a", "--dsn-file", "b"],
        ["demo", "--dsn", "postgresql://h/d"],
        ["demo", "--speed", "0"],
        ["schema", "apply", "everything"],
        ["store", "rebuild", "12x"],
        ["store", "rebuild"],
        ["store", "backup"],
        ["store", "check", "twice", "twice"],
        ["schema", "apply", "noetl", "--dsn", "postgresql://h/d"],
    ],
)
def test_wrong_usage_ends_with_two_and_says_why_on_stderr(arguments: list[str], capsys: Capture) -> None:
    assert cli.entry(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no", hint="do"), 2),
        (SourceUnavailable("no", hint="do"), 10),
        (StoreLocked("no", hint="do"), 20),
        (ExceptionGroup("tasks", [ExceptionGroup("more", [StoreLocked("no", hint="do")])]), 20),
    ],
)
def test_a_failure_is_one_line_a_hint_and_its_code(
    error: Exception, code: int, demo_ends: Ends, capsys: Capture
) -> None:
    demo_ends(raising(error))
    assert cli.entry(["demo"]) == code
    assert capsys.readouterr() == ("", "noetl-chain: no\n  do\n")


def test_a_message_of_several_lines_becomes_one(demo_ends: Ends, capsys: Capture) -> None:
    demo_ends(raising(ConfigError("a\n  b")))
    cli.entry(["demo"])
    assert capsys.readouterr().err == "noetl-chain: a b\n"


@pytest.mark.parametrize(
    "bug",
    [
        InvariantError("ours"),
        RuntimeError("ours"),
        ExceptionGroup("tasks", [ConfigError("theirs"), InvariantError("ours")]),
    ],
)
def test_our_own_bugs_are_not_dressed_up(bug: Exception, demo_ends: Ends) -> None:
    demo_ends(raising(bug))
    with pytest.raises((InvariantError, RuntimeError, ExceptionGroup)):
        cli.entry(["demo"])


def test_ctrl_c_ends_with_130(demo_ends: Ends) -> None:
    demo_ends(raising(KeyboardInterrupt()))
    assert cli.entry(["demo"]) == 130


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_command_s_code_is_the_process_s(code: int, demo_ends: Ends) -> None:
    demo_ends(lambda **options: code)
    assert cli.entry(["demo"]) == code


def test_options_reach_the_command(demo_ends: Ends) -> None:
    given: dict[str, Any] = {}

    def main(**options: Any) -> int:
        given.update(options)
        return 0

    demo_ends(main)
    cli.entry(["demo", "--seconds", "5", "--speed", "2.5", "--keep", "--json"])
    assert given == {"seconds": 5.0, "speed": 2.5, "keep": True, "as_json": True}


def test_verify_does_not_take_its_store_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from sidecar.commands import verify

    given: dict[str, Any] = {}

    def main(settings: object, **options: Any) -> int:
        given.update(options)
        return 0

    monkeypatch.setattr(verify, "main_verify", main)
    monkeypatch.setenv("NOETL_CHAIN_STORE", "/nowhere/chain.db")
    assert cli.entry(["verify", "--execution", "5", "--execution", "-7", "--json"]) == 0
    assert given == {
        "executions": (5, -7),
        "since": None,
        "store": None,
        "settle": 0.0,
        "as_json": True,
        "report": None,
    }
    cli.entry(["verify", "--store", "/nowhere/chain.db", "--settle", "3"])
    assert (given["store"], given["settle"]) == ("sqlite:////nowhere/chain.db", 3.0)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("2h", NOW - timedelta(hours=2)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-11-30", datetime(2026, 11, 30, tzinfo=UTC)),
        ("2026-11-30T10:00:00+02:00", datetime(2026, 11, 30, 8, tzinfo=UTC)),
        ("2026-11-30T10:00:00Z", datetime(2026, 11, 30, 10, tzinfo=UTC)),
    ],
)
def test_since_is_a_span_or_a_time(text: str, at: datetime) -> None:
    assert arguments.moment(text, now=NOW) == at


@pytest.mark.parametrize("text", ["", "h", "1w", "-1h", "999999999d", "2026-13-01", "0001-01-01T00:00+02:00"])
def test_any_other_since_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        arguments.moment(text, now=NOW)


SIGNAL_AT_AN_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # behind `&` it would be ignored
sys.argv = ["noetl-chain", VERB]

class Ends:
    # A class body is where an exception would come out as another one.
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGNAL)

class AtTheImport:
    def find_spec(self, name, path, target=None):
        if name == "sidecar.cli":
            type("Owner", (), {"field": Ends()})

sys.meta_path.insert(0, AtTheImport())
from sidecar.__main__ import main
main()
"""


def _done(program: str, **words: str) -> tuple[int, str, str]:
    for word, meaning in words.items():
        program = program.replace(word, meaning)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("verb", "name", "code"),
    [("run", "SIGTERM", 0), ("verify", "SIGTERM", 143), ("run", "SIGINT", 0), ("verify", "SIGINT", 130)],
)
def test_a_signal_in_the_middle_of_an_import(verb: str, name: str, code: int) -> None:
    assert _done(SIGNAL_AT_AN_IMPORT, VERB=repr(verb), SIGNAL=name) == (code, "", "")


SIGNAL_AT_WORK = """
import os, signal, sys, types
signal.signal(signal.SIGINT, signal.default_int_handler)  # behind `&` it would be ignored
sys.argv = ["noetl-chain", "demo"]

def main_demo(**options):
    try:
        os.kill(os.getpid(), signal.SIGNAL)
        signal.pause()
    finally:
        print("tidied up")

demo = types.ModuleType("sidecar.demo.main")
demo.main_demo = main_demo
sys.modules["sidecar.demo.main"] = demo
from sidecar.__main__ import main
main()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_at_work_unwinds_the_stack(name: str, code: int) -> None:
    assert _done(SIGNAL_AT_WORK, SIGNAL=name) == (code, "tidied up\n", "")


SIGNAL_AT_THE_END = """
import atexit, os, signal, sys
sys.argv = ["noetl-chain", "completion", "bash"]
atexit.register(os.kill, os.getpid(), signal.SIGNAL)
from sidecar.__main__ import main
main()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_after_the_work_changes_nothing(name: str) -> None:
    code, told, said = _done(SIGNAL_AT_THE_END, SIGNAL=name)
    assert (code, said) == (0, "")
    assert told.rstrip().endswith("noetl-chain")


WORDS = ["--version", "completion bash", "schema print", "--help"]


@pytest.mark.parametrize("words", WORDS)
def test_output_that_cannot_be_written_is_no_finding(words: str) -> None:
    """1 would say that the log and the store differ."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sidecar", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "noetl-chain: the output cannot be written (ENOSPC)\n  write it elsewhere\n",
    )


@pytest.mark.parametrize("words", WORDS)
def test_output_that_nobody_reads_is_no_finding(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        done = subprocess.run(
            [sys.executable, "-m", "sidecar", *words.split()],
            stdout=unread,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_the_handler_stands_before_anything_else_is_imported() -> None:
    program = (
        "import sys; before = set(sys.modules)\n"
        "import sidecar.__main__\n"
        "new = {name for name in sys.modules if name not in before}\n"
        "print(sorted(name for name in new if name.startswith('sidecar')), 'typing' in new)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout == "['sidecar', 'sidecar.__main__', 'sidecar.termination'] False\n"


def test_commands_of_a_test_leave_its_process_alone(demo_ends: Ends) -> None:
    before = signal.getsignal(signal.SIGTERM)
    demo_ends(lambda **options: 0)
    cli.entry(["demo"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_every_error_class_has_a_code_of_the_design() -> None:
    def all_of(kind: type[SidecarError]) -> set[type[SidecarError]]:
        return {kind}.union(*(all_of(child) for child in kind.__subclasses__()))

    assert {kind.exit_code for kind in all_of(SidecarError)} <= {1, 2, 10, 20}


def test_schema_print_puts_names_in_place(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_SCHEMA", "other")
    assert cli.entry(["schema", "print", "postgres", "--reader", "me"]) == 0
    out = capsys.readouterr().out
    assert 'GRANT SELECT ON "other".event TO "me";' in out
    assert not any(line.startswith("\\") for line in out.splitlines())
    assert cli.entry(["schema", "print"]) == 0
    out = capsys.readouterr().out
    assert all(f"-- {group}/0" in out for group in ("store", "postgres", "noetl"))


def test_schema_apply_makes_a_store_once(tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    for _ in range(2):
        assert cli.entry(["schema", "apply", "store", "--store", str(store)]) == 0
    assert store.exists()


def test_schema_apply_without_the_folder_makes_nothing(tmp_path: Path, capsys: Capture) -> None:
    assert cli.entry(["schema", "apply", "store", "--store", str(tmp_path / "no" / "chain.db")]) == 20
    assert not os.listdir(tmp_path)
    assert "does not exist" in capsys.readouterr().err
