"""Recording a state: what is asked, what is written, and what is refused before either."""

from __future__ import annotations

import pytest

from sidecar.errors import Invalid
from sidecar.store import states
from tests.unit.store.statements import Statements


async def test_a_state_gets_the_next_number_and_supersedes_the_one_before() -> None:
    rows = Statements({states._HIGH: [(4,)], states._NEXT: [(5,)]})
    assert await states.record_state(rows, 7, "match", "{}") == 5
    assert rows.said == [
        (states._HIGH, ()),
        (states._NEXT, ("d3_projection", 4)),
        (states._PUT, (5, 7, "match", "{}")),
        (states._SUPERSEDED, (7, 5)),
    ]


async def test_a_count_that_was_lost_is_taken_from_what_is_stored() -> None:
    rows = Statements({states._STORED: [(9,)], states._NEXT: [(10,)]})
    assert await states.record_state(rows, 7, "match", "{}") == 10
    assert rows.said[:3] == [(states._HIGH, ()), (states._STORED, ()), (states._NEXT, ("d3_projection", 9))]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((2**63, "s", "d"), "execution_id is no 64-bit integer"),
        ((7, "\ud800", "d"), "status is no Unicode text"),
        ((7, "s", "\udfff"), "data is no Unicode text"),
    ],
)
async def test_what_is_not_usable_is_named_and_nothing_is_asked(
    given: tuple[int, str, str], message: str
) -> None:
    rows = Statements({})
    with pytest.raises(Invalid, match=f"^{message}$"):
        await states.record_state(rows, *given)
    assert rows.said == []
