"""Rules of the house that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIDECAR = sorted((ROOT / "sidecar").rglob("*.py"))
FOLDERS = ("sidecar", "tests", "migrations", "docs", "benchmarks", ".ci")
TEXT = {".py", ".md", ".sql", ".toml", ".txt", ".sh", ""}


def _nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path in SIDECAR:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            yield path, node


def test_no_assert_in_the_program_because_an_optimised_run_strips_it() -> None:
    assert [f"{path}:{node.lineno}" for path, node in _nodes() if isinstance(node, ast.Assert)] == []


def test_nothing_catches_everything() -> None:
    broad = {"Exception", "BaseException"}
    caught = [
        (path, node)
        for path, node in _nodes()
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in broad))
    ]
    swallowed = [f"{path}:{node.lineno}" for path, node in caught if not _raises_again(node)]
    assert swallowed == []


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def _files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    at_the_root = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")]
    return [
        path for path in [*inside, *at_the_root] if path.suffix in TEXT and "__pycache__" not in path.parts
    ]


# Written in pieces, so that this file does not contain what it looks for.
FORBIDDEN = {
    "a merge that was left": r"(?m)^<{7} |^>{7} ",
    "an absolute path of one machine": "(?<![a-z:])/(" + "work|root|home/[a-z]" + ")/",
    "a package index": "py" + r"pi\.(org|python)|python" + "hosted|index" + "-url",
    "something left undone": r"\b(TO" + "DO|FIX" + "ME|X" + r"XX)\b",
    "an address in the company's mail": "noreply" + "@",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_contains(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in _files()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert hits == []


def test_what_silences_a_check_says_why() -> None:
    bare = re.compile(r"# (?:ruff: )?noqa(?:: [A-Z]+[0-9]+(?:, ?[A-Z]+[0-9]+)*)?$")
    python = [path for path in _files() if path.suffix == ".py"]
    lines = [(path, line.rstrip()) for path in python for line in path.read_text("utf-8").splitlines()]
    assert sum("# noqa" in line for _, line in lines) > 30
    assert [f"{path.relative_to(ROOT)}: {line.strip()}" for path, line in lines if bare.search(line)] == []


def test_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_no_file_of_the_program_is_a_god() -> None:
    long = {path.name: len(path.read_text("utf-8").splitlines()) for path in SIDECAR}
    assert {name: lines for name, lines in long.items() if lines > 500} == {}
