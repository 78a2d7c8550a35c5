"""Every command: its help and the examples in it, `--json`, and completion in real shells."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import sidecar.app
import sidecar.commands.ack
import sidecar.commands.backfill
import sidecar.commands.inspect
import sidecar.commands.schema
import sidecar.commands.status
import sidecar.commands.store
import sidecar.commands.verify
import sidecar.demo.main
import sidecar.doctor.main
from sidecar import cli
from sidecar.commands import completion
from sidecar.commands.arguments import Shell

Capture = pytest.CaptureFixture[str]
BIN = Path(sys.executable).parent
BODIES = {
    "run": (sidecar.app, "main_run"),
    "verify": (sidecar.commands.verify, "main_verify"),
    "backfill": (sidecar.commands.backfill, "main_backfill"),
    "status": (sidecar.commands.status, "main_status"),
    "doctor": (sidecar.doctor.main, "main_doctor"),
    "demo": (sidecar.demo.main, "main_demo"),
    "inspect": (sidecar.commands.inspect, "main_inspect"),
    "ack": (sidecar.commands.ack, "main_ack"),
    "completion": (completion, "script"),
    "schema print": (sidecar.commands.schema, "main_print"),
    "schema apply": (sidecar.commands.schema, "main_apply"),
    "store check": (sidecar.commands.store, "main_store_check"),
    "store backup": (sidecar.commands.store, "main_store_backup"),
    "store rebuild": (sidecar.commands.store, "main_store_rebuild"),
    "store upgrade": (sidecar.commands.store, "main_store_upgrade"),
}
"""What each command calls when its words are right."""
NO_JSON = {
    "run": "it ends with no answer; its log lines are JSON",
    "completion": "it is read by a shell",
}


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command there is, by its words."""
    found = typer.main.get_command(cli.cli) if group is None else group
    if not hasattr(found, "commands"):
        yield " ".join(path), found
        return
    for name, each in found.commands.items():
        yield from commands(each, (*path, name))


COMMANDS = dict(commands())


def helped(path: str, capsys: Capture) -> str:
    assert cli.entry([*path.split(), "--help"]) == 0
    return capsys.readouterr().out


def test_each_command_is_known_here() -> None:
    assert COMMANDS.keys() == BODIES.keys()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("width", ["40", "200"])
def test_its_help_ends_with_examples_that_are_right(
    path: str, width: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is run as it stands, all but its work."""
    monkeypatch.setenv("COLUMNS", width)
    before, _, examples = helped(path, capsys).partition("\n  Examples:\n")
    assert before
    lines = examples.splitlines()
    assert 1 <= len(lines) <= 3
    called: list[str] = []

    def body(*args: Any, **options: Any) -> Any:
        called.append(path)
        return "" if path == "completion" else 0

    monkeypatch.setattr(*BODIES[path], body)
    monkeypatch.setattr("sidecar.readings.Path.read_text", lambda *_: "postgresql://reader@db/noetl")
    for line in lines:
        words = shlex.split(line.strip())
        while "=" in words[0]:  # a variable in front
            name, _, value = words.pop(0).partition("=")
            monkeypatch.setenv(name, value)
        assert words[: 1 + len(path.split())] == [completion.PROGRAM, *path.split()]
        assert cli.entry(words[1:]) == 0, capsys.readouterr().err
    assert called == [path] * len(lines)


@pytest.mark.parametrize("path", BODIES)
def test_it_takes_json_or_says_why_not(path: str, capsys: Capture) -> None:
    assert ("--json" in helped(path, capsys)) is (path not in NO_JSON)


@pytest.mark.parametrize("path", BODIES)
def test_it_takes_the_options_that_name_log_and_store(path: str, capsys: Capture) -> None:
    text = helped(path, capsys)
    assert all(option in text for option in ("--dsn URL", "--dsn-file FILE", "--store PATH|URL"))


def test_the_list_of_commands_says_whole_sentences(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for group in ([], ["schema"], ["store"]):
        assert cli.entry([*group, "--help"]) == 0
        listed = capsys.readouterr().out.partition("Commands:")[2]
        assert listed
        assert "..." not in listed


def test_the_demo_and_a_completion_script_have_no_store_of_yours(capsys: Capture) -> None:
    for words in (["demo", "--store", "x"], ["completion", "bash", "--dsn-file", "x"]):
        assert cli.entry(words) == 2
        assert "leave out --dsn, --dsn-file and --store" in capsys.readouterr().err


def test_inspect_takes_json_as_a_format(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    given: list[str] = []

    def body(*args: Any, form: str, **options: Any) -> int:
        given.append(form)
        return 0

    monkeypatch.setattr(sidecar.commands.inspect, "main_inspect", body)
    for words in ([], ["--json"], ["--json", "--format", "json"], ["--format", "dot"]):
        assert cli.entry(["inspect", "5", *words]) == 0
    assert given == ["text", "json", "json", "dot"]
    assert cli.entry(["inspect", "5", "--json", "--format", "dot"]) == 2
    assert "--format" in capsys.readouterr().err


ASKED = {
    "st": {"status", "store"},
    "store rebuild --": {"--dsn", "--dsn-file", "--store", "--json", "--help"},
    "inspect 1 --format ": {"text", "json", "mermaid", "dot"},
    "schema apply ": {"store", "noetl", "postgres", "wal"},
}
"""What is typed, and what is offered."""
ANSWER = "answer:"
TRIED = {
    "bash": f"""
        eval "$(noetl-chain completion bash)"
        complete -p noetl-chain | grep -q -- '-o default' || exit 9 # files where nothing is known
        for typed; do
            IFS=' ' read -r -a COMP_WORDS <<<"noetl-chain $typed"
            case "$typed" in *" ") COMP_WORDS+=("") ;; esac
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _noetl_chain_completion noetl-chain
            echo {ANSWER} "${{COMPREPLY[@]}}"
        done""",
    "zsh": f"""
        autoload -Uz compinit && compinit -D -u
        eval "$(noetl-chain completion zsh)"
        [[ ${{_comps[noetl-chain]}} == _noetl_chain_completion ]] || exit 9
        # What it would choose from: words in quotes, a colon and what it means behind each.
        _arguments() {{ print -r -- "$1" | sed -E 's/:"[^"]*"//g' | grep -o '"[^"]*"' | tr -d '"' }}
        for typed; do
            words=(${{=:-noetl-chain $typed}})
            [[ $typed == *" " ]] && words+=("")
            CURRENT=${{#words}}
            echo {ANSWER} $(_noetl_chain_completion)
        done""",
    "fish": f"""
        noetl-chain completion fish | source
        for typed in $argv
            echo {ANSWER} (complete -C "noetl-chain $typed" | cut -f 1)
        end""",
}
STARTED = {
    "bash": ["bash", "--norc", "-c", TRIED["bash"], "bash"],
    "zsh": ["zsh", "-f", "-c", TRIED["zsh"], "zsh"],
    "fish": ["fish", "--no-config", "-c", TRIED["fish"]],
}


@pytest.mark.parametrize("shell", list(Shell))
def test_a_real_shell_completes(shell: Shell, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [*STARTED[shell], *ASKED], capture_output=True, text=True, env=env, timeout=100, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    offered = [set(each.split()) for each in done.stdout.split(ANSWER)[1:]]
    assert offered == list(ASKED.values())


def test_while_a_shell_asks_nothing_heavy_is_loaded() -> None:
    program = (
        "import sys\n"
        "from sidecar.cli import entry\n"
        "code = entry([])\n"
        "heavy = ('asyncpg', 'aiosqlite', 'starlette', 'pydantic_settings', 'structlog')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    asked = {completion.VARIABLE: "complete_bash", "COMP_WORDS": "noetl-chain ver", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **asked},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "verify\n", "[]\n")


def test_an_answer_for_a_shell_is_made_by_the_variable_its_script_sets() -> None:
    for shell in Shell:
        assert re.search(rf"{completion.VARIABLE}=complete_{shell}\b", completion.script(shell.value))
