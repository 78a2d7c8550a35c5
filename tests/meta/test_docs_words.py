"""Commands, options, variables, series, routes and targets that the docs speak of are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sidecar import cli
from sidecar.service.board import Board
from sidecar.settings import Settings, variable
from sidecar.telemetry.health import Health
from sidecar.telemetry.metrics import Metrics
from tests.support.api import served

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
OPERATORS = "();<>|&"
COMMAND = re.compile(r"(?:^|[(|;&] ?|-- |=\S+ )noetl-chain (?=[a-z-])(.*)")
"""Where a shell would look for a program; elsewhere it is the name of a thing."""


def spans(page: Path) -> Iterator[str]:
    """Each line of code: of a block, or between backticks."""
    for block, inline in CODE.findall(page.read_text("utf-8")):
        yield from block.replace("\\\n", " ").splitlines() if block else (inline,)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """What stands behind the program's name, in words."""
    for page in PAGES:
        for span in spans(page):
            found = COMMAND.search(span)
            if found is not None:
                read = shlex.shlex(found[1].replace("…", "_"), posix=True, punctuation_chars=OPERATORS)
                read.whitespace_split = True
                yield f"{page.name}: {span}", list(takewhile(lambda word: word[0] not in OPERATORS, read))


def test_every_command_line_is_one_of_the_program() -> None:
    seen = set()
    for where, words in command_lines():
        command: Any = typer.main.get_command(cli.cli)
        path = []
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            if words[0].isupper() or words[0] == "_":  # COMMAND: whichever
                break
            path.append(words.pop(0))
            assert path[-1] in command.commands, where
            command = command.commands[path[-1]]
        seen.add(" ".join(path))
        known = {name for each in command.params for name in each.opts} | {"--help", "-h"}
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert options <= known, where
    assert {"run", "verify", "backfill", "status", "doctor", "inspect", "store rebuild"} <= seen


def test_every_command_has_its_line_in_the_table() -> None:
    text = (ROOT / "docs" / "commands.md").read_text("utf-8")
    listed = {
        " ".join(word for word in row.split() if word.islower())
        for row in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    }
    wanted = set()
    program: Any = typer.main.get_command(cli.cli)
    for name, command in program.commands.items():
        wanted |= {f"{name} {each}" for each in getattr(command, "commands", ())} or {name}
    assert listed == wanted


VARIABLE = re.compile(r"\bNOETL_(?:CHAIN_)?[A-Z][A-Z0-9_]*[A-Z0-9]\b(?![_*…])")


@cache
def of_the_tests() -> set[str]:
    """Variables that the tests ask for."""
    texts = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")]
    asked = re.findall(r"\"(NOETL_(?:CHAIN_)?TEST_\w+)\"|environ.get\(\"(NOETL_\w+)\"", "\n".join(texts))
    return {name for pair in asked for name in pair if name}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_variable_is_a_setting(page: Path) -> None:
    known = {variable(name) for name in Settings.model_fields} | of_the_tests()
    assert set(VARIABLE.findall(page.read_text("utf-8"))) <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_series_is_exported(page: Path) -> None:
    exported = {
        sample.name for family in Metrics(replicas=1).registry.collect() for sample in family.samples
    } | {family.name for family in Metrics(replicas=1).registry.collect()}
    told = set(
        re.findall(r"(?<![\w:])noetl_chain_[a-z][a-z0-9_]*[a-z0-9]\b(?![_*{…:])", page.read_text("utf-8"))
    )
    assert told - {"noetl_chain_reader", "noetl_chain_session"} <= exported


def test_every_recorded_series_is_recorded() -> None:
    rules = (ROOT / "config" / "prometheus" / "rules" / "recording.yml").read_text("utf-8")
    recorded = set(re.findall(r"record: (\S+)", rules))
    for page in PAGES:
        told = set(re.findall(r"\b[a-z_]+:noetl_chain_[a-z0-9_]+:[a-z0-9_]+", page.read_text("utf-8")))
        assert told <= recorded, page.name


def test_every_route_is_served() -> None:
    routes = {path for _, path in served(Board(Settings.given(), Health()))}
    shapes = [re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)) + "/?") for path in routes]
    for page in PAGES:
        for span in spans(page):
            for told in re.findall(r"/api/v1/[\w/{}.-]*\w}?", span):
                assert any(shape.fullmatch(told) for shape in shapes), f"{page.name}: {told}"


def test_every_target_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for page in PAGES:
        for span in spans(page):
            for line in re.findall(r"(?:^|\s)make ((?:[a-z]+ ?)+)", span):
                assert set(line.split()) <= targets, f"{page.name}: {span}"


def test_every_file_that_is_named_is_there() -> None:
    """By its path from the root, from `sidecar/`, from the page, or alone in a room that its line names."""
    for page in [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "adr").glob("*.md"))]:
        for line in page.read_text("utf-8").splitlines():
            rooms = [ROOT / "sidecar" / room for room in re.findall(r"`(\w+)/`", line)]
            for told in re.findall(r"`([\w./-]+\.(?:py|sql|yaml|toml))`", line):
                places = (ROOT, ROOT / "sidecar", page.parent, *rooms)
                assert any((place / told).exists() for place in places), f"{page.name}: {told}"
