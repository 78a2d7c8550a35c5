"""The simulation can fail: a guard that is taken out of the program is seen within some seeds."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.run import simulate

SHOWN: dict[str, tuple[int, str]] = {}
"""Mutant -> a seed that shows it, and words of what it shows."""


@pytest.mark.parametrize("name", SHOWN)
def test_a_guard_taken_out_is_seen(name: str) -> None:
    seed, words = SHOWN[name]
    assert simulate(seed).wrong == []
    with MUTANTS[name][1]():
        assert any(words in wrong for wrong in simulate(seed).wrong)
