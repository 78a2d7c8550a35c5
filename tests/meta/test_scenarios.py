"""Every scenario of the store, the certificate and the folds has a test by its name."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
WANTED = {
    *(f"c{n:02}" for n in range(1, 30)),
    *(f"d{n:02}" for n in range(1, 11)),
    *(f"f{n:02}" for n in range(1, 9)),
    *(f"i{n:02}" for n in range(1, 58)),
    *(f"r{n:02}" for n in range(1, 27)),
    *(f"w{n:02}" for n in range(1, 42)),
}


def named() -> dict[str, list[str]]:
    """Scenario to the tests that carry its name: `test_c05_c18_…` carries two, and so may a case."""
    found: dict[str, list[str]] = {}
    for file in TESTS.rglob("test_*.py"):
        text = file.read_text()
        cases = [f"_{case}" for case in re.findall(r'\bid="(\w+)"', text)]
        for test in (*re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE), *cases):
            for name in re.findall(r"(?<=_)[cdfirw]\d\d(?=_)", test):
                found.setdefault(name, []).append(test)
    return found


def test_every_scenario_has_a_test_by_its_name() -> None:
    """Source: spec 2.11 (store, durable, format), 4.10, 5.3 and 8.5."""
    assert sorted(WANTED - named().keys()) == []
