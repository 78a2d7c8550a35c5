"""Ids and the terminal vocabulary."""

from __future__ import annotations

import pytest

from sidecar.core.authority import StoredEvent
from sidecar.core.event import ID_MAX, ID_MIN, TERMINAL_EVENT_TYPES, Event, is_id
from tests.unit.core.build import ev


@pytest.mark.parametrize("value", [0, 1, -1, ID_MIN, ID_MAX, 2**53 + 1])
def test_every_64_bit_integer_is_an_id(value: int) -> None:
    assert is_id(value)


@pytest.mark.parametrize("value", [ID_MAX + 1, ID_MIN - 1, True, False, "1", "", None, 1.0])
def test_nothing_else_is_an_id(value: object) -> None:
    assert not is_id(value)


def test_bounds_are_those_of_bigint() -> None:
    assert (ID_MIN, ID_MAX) == (-9223372036854775808, 9223372036854775807)


def test_both_spellings_of_every_end_are_terminal() -> None:
    playbook = {f"playbook{dot}{end}" for dot in "._" for end in ("completed", "failed", "cancelled")}
    execution = {f"execution.{end}" for end in ("completed", "failed", "cancelled")}
    workflow = {"workflow.completed", "workflow.failed"}
    assert playbook | execution | workflow == TERMINAL_EVENT_TYPES
    assert all(ev(1, kind=kind).is_terminal for kind in TERMINAL_EVENT_TYPES)


@pytest.mark.parametrize(
    "kind", ["command.completed", "step.exit", "playbook.started", "", "PLAYBOOK.FAILED"]
)
def test_no_other_event_is_terminal(kind: str) -> None:
    assert not ev(1, kind=kind).is_terminal


def test_an_event_is_a_value() -> None:
    event = Event(1, 2, None, parent_execution_id=3, event_type="step.exit", body="{}")
    assert event == Event(1, 2, None, 3, "step.exit", "{}")
    assert hash(event) == hash(Event(1, 2, None, 3, "step.exit", "{}"))
    assert event != Event(1, 2, None, 3, "step.exit", "{ }")
    assert repr(event) == (
        "Event(execution_id=1, event_id=2, prev_event_id=None, parent_execution_id=3,"
        " event_type='step.exit', body='{}')"
    )


@pytest.mark.parametrize("field", ["event_id", "body", "unknown"])
def test_an_event_and_its_place_do_not_change(field: str) -> None:
    event = Event(1, 2, None, None, "step.exit", "{}")
    with pytest.raises(AttributeError):
        setattr(event, field, 1)
    with pytest.raises(AttributeError):
        setattr(StoredEvent(1, event), "exec_seq" if field == "event_id" else field, 1)
