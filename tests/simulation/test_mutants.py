"""The simulation can fail: a guard that is taken out of the program is seen within some seeds."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, first_seed
from tests.simulation.scenes import SCENES, first_wrong, played

WITHIN = 60
SHOWN = {
    "no label at once": "no label",
    "served while rows are held": "is served as",
    "absent rows resolved by length": "expected",
    "rejoin: the anchor read before the poll": "is joined to",
}
"""Mutant -> words of what shows it."""


JOINS = {
    "rejoin: the root's anchor for the tip's": "is joined to",
    "rejoin: H for the anchor": "is served as",
    "rejoin: a join is never withdrawn": "expected rejoin_withdrawn",
}
"""Of the rule for restarted executions, likewise."""


@pytest.mark.parametrize("name", SHOWN)
def test_a_guard_taken_out_is_seen(name: str) -> None:
    found = first_seed(name, WITHIN)
    assert found is not None
    assert SHOWN[name] in found[1]


@pytest.mark.parametrize("name", SCENES)
def test_a_clause_that_few_seeds_come_near_is_seen_in_its_scene(name: str) -> None:
    with MUTANTS[name][1]():
        shown = first_wrong(name)
    assert shown is not None
    right = played(name, shown.seed)
    assert right.wrong == []
    assert right.table, "the scene was played"


@pytest.mark.torture
@pytest.mark.parametrize("name", SCENES)
def test_the_program_is_right_wherever_a_scene_falls(name: str) -> None:
    assert first_wrong(name) is None


@pytest.mark.torture
@pytest.mark.parametrize("name", JOINS)
def test_a_clause_of_the_rule_for_joins_taken_out_is_seen(name: str) -> None:
    found = first_seed(name, WITHIN)
    assert found is not None
    assert JOINS[name] in found[1]
