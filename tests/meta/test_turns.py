"""A suite of .ci/run has the time that its longest test asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.turns import GRACE_S, may_begin

ROOT = Path(__file__).parents[2]
SUITE = re.compile(r"^\s*suite (\w+) (\d+) ", re.MULTILINE)
MARKED = ("browser", "docker", "pgbouncer")
BOUND = re.compile(r"mark\.timeout\((\d+)\)")


def _seconds() -> dict[str, int]:
    return {name: int(text) for name, text in SUITE.findall((ROOT / ".ci" / "run").read_text())}


@pytest.mark.parametrize("marker", MARKED)
def test_a_suite_begins_with_the_time_of_its_longest_test(marker: str) -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    bounds = [int(found) for text in texts if f"mark.{marker}" in text for found in BOUND.findall(text)]
    # A minute: the suite's clock runs before the first test does.
    assert may_begin(max(bounds, default=0), _seconds()[marker] - 60)


@pytest.mark.parametrize(
    ("bound_s", "left_s", "begins"),
    [(0, 1, True), (0, -1, False), (900, 301, True), (900, 299, False), (GRACE_S, 1, True)],
)
def test_a_test_begins_when_it_ends_before_the_suite_is_cut_off(
    bound_s: float, left_s: float, begins: bool
) -> None:
    assert may_begin(bound_s, left_s) is begins
