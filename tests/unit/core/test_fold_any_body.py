"""Whatever a body holds, the folds do not raise, and growing equals folding afresh."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.context import build_context
from sidecar.core.digest import canonical_json, digest, restored
from sidecar.core.event import Event
from sidecar.core.jsonvalue import Number, rendered
from sidecar.core.replay import Replay
from sidecar.core.state import RunState, StepState
from sidecar.core.workflow import _RUN_RULES, _STEP_RULES, Fold, fold
from tests.unit.core.told import DEEP, Tale, with_raw

KINDS = sorted(
    {*_RUN_RULES, *_STEP_RULES, "stage.opened", "frame.committed", "frame.dispatched", "loop.done"}
)
KEYS = [
    *("context", "result", "data", "rows", "reference", "ref", "command_id", "error", "pending_callback"),
    *(
        "iterations_expected",
        "__cursor_loop",
        "__cursor_drained",
        "cursor",
        "phase",
        "frame",
        "values",
        "step",
    ),
    *("gen", "workload", "path", "version", "attempt", "business_object", "type", "id", "state", "patch"),
    *("loop_id", "stage_id", "frame_id", "total", "rows_ref", "meta", "row_count"),
]
LEAVES = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, 2, -1, 2**63, -(2**70), Number("1.10"), Number("1e400")])
    | st.sampled_from(["", "c0", "c1", "claim", "body", "é\U0001f680", "\x00"])
)
ODD = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "context": ODD,
        "result": ODD,
        "meta": ODD,
        "payload_ref": ODD,
        "node_name": st.sampled_from(["a", "b", "__orchestrate__", "", 5, None]),
        "timestamp": LEAVES,
        "catalog_id": LEAVES,
        "status": LEAVES,
        "aggregate_type": st.sampled_from(["stage", "frame", "business_object", 5]),
        "aggregate_id": LEAVES,
        "stage_id": LEAVES,
        "command_id": LEAVES,
        "worker_id": LEAVES,
    },
)


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    told = draw(st.lists(st.tuples(st.sampled_from(KINDS), BODIES), max_size=8))
    return [
        Event(1, number, number - 1 or None, None, kind, rendered(body).decode())
        for number, (kind, body) in enumerate(told, start=1)
    ]


@settings(max_examples=50)
@given(events())
def test_no_body_makes_a_fold_raise(chain: list[Event]) -> None:
    state = fold(chain)
    assert (state is None) == (not chain)
    if state is not None:
        build_context(state)
        assert restored(canonical_json(state)) == state
    Replay(chain).checksums()


@settings(max_examples=50)
@given(events(), st.data())
def test_any_split_of_a_chain_gives_the_state_of_the_whole(chain: list[Event], data: st.DataObject) -> None:
    growing, rest = Fold(), list(chain)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        growing.absorb(rest[:size])
        rest = rest[size:]
    whole = fold(chain)
    assert growing.state == whole
    assert growing.count == len(chain)
    if whole is not None and growing.state is not None:
        assert digest(growing.state) == digest(whole)


@pytest.mark.parametrize("body", ["", "[]", "null", "{", '{"node_name":"\\ud800"}', "[" * 100_000, "\ud800"])
def test_a_body_that_cannot_be_read_is_named_and_changes_nothing(body: str) -> None:
    tale = Tale()
    tale.tell("playbook_started")
    tale.tell("step.enter", "a")
    broken = Event(1, 77, None, None, "playbook.failed", body)
    folded = Fold([*tale.events[:1], broken, *tale.events[1:], broken])
    assert folded.unreadable == (77, 77)
    assert folded.count == 4
    assert folded.state == tale.state


def test_an_unreadable_first_event_still_names_its_execution() -> None:
    folded = Fold([Event(5, 77, None, None, "playbook_started", "{")])
    assert folded.state is not None
    assert (folded.state.execution_id, folded.state.catalog_id, folded.state.state) == (
        5,
        0,
        RunState.INITIAL,
    )


def test_a_readable_chain_names_none() -> None:
    tale = Tale()
    tale.tell("playbook_started")
    assert Fold(tale.events).unreadable == ()


def test_a_body_of_300_kilobytes_is_folded() -> None:
    tale = Tale()
    result = {"status": "ok", "context": {"data": {"blob": "lorem é " * 38_000}}}
    tale.tell("call.done", "a", result=result)
    assert len(tale.events[0].body.encode()) > 300_000
    assert tale.state.steps["a"].result == result


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"context":', "}")])
def test_a_deep_body_moves_the_state_like_any_other(opening: str, closing: str) -> None:
    tale = Tale()
    event = tale.tell("command.completed", "a", result={"status": "ok", "context": "HERE"})
    deep = with_raw(event, opening * DEEP + "1.10" + closing * DEEP)
    state = fold([deep])
    assert state is not None
    assert state.steps["a"].state is StepState.COMPLETED
    assert canonical_json(state).count("1.10") == 1
    assert "a" in build_context(state)
    assert len(Replay([deep]).checksums()["overall"]) == 64
