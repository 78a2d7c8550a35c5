"""I44: every site at which the line stores events hands them to the roller too.

Counted in the syntax tree, so that comments and strings do not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sidecar.core.certificate import Decision
from sidecar.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
STORING = {"populate", "append"}
LINE = [
    path
    for path in sorted((ROOT / "sidecar").rglob("*.py"))
    # The store is what is handed to; core is pure; what `verify` fills is thrown away.
    if path.relative_to(ROOT).parts[1] not in {"store", "core", "demo"}
]


def sites(source: str, receiver: str) -> Iterator[tuple[str, str]]:
    """(function, method) of every call of a storing method on `receiver`."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    value = node.func.value
                    name = value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")
                    if node.func.attr in STORING and name == receiver:
                        yield function.name, node.func.attr


def observes(source: str, function: str) -> int:
    """How often `function` registers an observation for the commit."""
    (found,) = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    )
    names = [node.attr for node in ast.walk(found) if isinstance(node, ast.Attribute)]
    return sum(name.startswith("_observe_") for name in names)


def test_i44_every_event_that_is_stored_is_handed_to_the_roller() -> None:
    handing = ROOT / "sidecar" / "certified.py"
    direct = {path: list(sites(path.read_text("utf-8"), "unit")) for path in LINE}
    assert {path for path, found in direct.items() if found} == {handing}
    source = handing.read_text("utf-8")
    stored = direct[handing]
    assert sorted(method for _, method in stored) == ["append", "populate"]
    assert sum(observes(source, function) for function, _ in stored) == len(stored)
    through = [site for path in LINE for site in sites(path.read_text("utf-8"), "certified")]
    assert len(through) >= 3, "the feed's populate and extension, the comparator's populate"


def test_i44_the_count_can_fail() -> None:
    added = "async def feed(unit):\n    # unit.append(rows)\n    'unit.append(rows)'\n    unit.append(rows)\n"
    assert list(sites(added, "unit")) == [("feed", "append")]
    assert observes(added, "feed") == 0


def test_the_alerts_of_the_certificate_name_series_that_exist() -> None:
    text = (ROOT / "docs" / "certificates.md").read_text("utf-8")
    named = set(re.findall(r"noetl_chain_\w+", text))
    families = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in Metrics().registry.collect()
    }
    assert len(named) >= 5
    assert named <= families
    assert {decision.value for decision in Decision} <= set(re.findall(r"\w+", text))
