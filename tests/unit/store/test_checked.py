"""What the chain cannot hold exactly is refused by the name of the field, at its very bound."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.core.event import ID_MAX, ID_MIN, Event
from sidecar.errors import Invalid
from sidecar.store.checked import check_event, check_sequence, check_text
from tests.support.changing import replace

GOOD = Event(1, 2, None, None, "step.exit", "{}")


@pytest.mark.parametrize("name", ["execution_id", "event_id", "prev_event_id", "parent_execution_id"])
def test_an_id_is_any_64_bit_integer_and_nothing_else(name: str) -> None:
    for usable in (ID_MIN, ID_MAX):
        check_event(replace(GOOD, **{name: usable}))
    for wrong in (ID_MIN - 1, ID_MAX + 1, True, "1", 1.0):
        with pytest.raises(Invalid, match=f"^{name} is no 64-bit integer$"):
            check_event(replace(GOOD, **{name: wrong}))


@pytest.mark.parametrize("name", ["event_type", "body"])
def test_a_text_is_any_unicode_and_nothing_else(name: str) -> None:
    for usable in ("", "a", "\ud7ff\ue000\U0010ffff"):
        check_event(replace(GOOD, **{name: usable}))
    for wrong in ("\ud800", "é\udfff", b"a", None):
        with pytest.raises(Invalid, match=f"^{name} is no Unicode text$"):
            check_event(replace(GOOD, **{name: wrong}))


def test_a_number_counts_from_its_least() -> None:
    for usable in (3, ID_MAX):
        check_sequence(usable, "seq", least=3)
    wrong: Any
    for wrong in (2, ID_MAX + 1, True, "3", 3.0):
        with pytest.raises(Invalid, match=f"^seq is no integer from 3 to {ID_MAX}$"):
            check_sequence(wrong, "seq", least=3)


def test_a_text_of_another_type_is_named() -> None:
    with pytest.raises(Invalid, match=r"^status is no Unicode text$"):
        check_text(1, "status")
