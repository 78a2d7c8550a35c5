"""The simulation can fail: a guard that is taken out of the program is seen within some seeds."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import first_seed

WITHIN = 60
SHOWN = {
    "no label at once": "no label",
    "served while rows are held": "is served as",
    "absent rows resolved by length": "expected",
}
"""Mutant -> words of what shows it."""


@pytest.mark.parametrize("name", SHOWN)
def test_a_guard_taken_out_is_seen(name: str) -> None:
    found = first_seed(name, WITHIN)
    assert found is not None
    assert SHOWN[name] in found[1]
