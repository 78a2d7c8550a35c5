"""The canonical JSON of a state and its digest."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.digest import canonical_json, digest, document, restored
from sidecar.core.jsonvalue import Number, rendered
from sidecar.core.state import CursorFrame, RunState, StepInfo, StepState, WorkflowState
from sidecar.core.workflow import fold
from tests.unit.core.told import DEEP, TEXT, VALUES, Tale, with_raw


def _full() -> WorkflowState:
    step = StepInfo(
        "s",
        StepState.COMPLETED,
        result={"n": Number("1.10")},
        error="e",
        entered_at="t1",
        completed_at="t2",
        completed_event_id=2**62,
        attempt=1,
        pending_callback=True,
        uses_callback=True,
        iterations_expected=0,
        iteration_command_ids={"b", "a"},
        iteration_results=[None],
        iterations_dispatched=2,
        is_cursor=True,
        cursor_issued={"b": ("body", 10), "a": ("claim", 9)},
        cursor_completed={"b", "a"},
        cursor_frames={10: CursorFrame(True, [1], 2, 1, "ref"), 9: CursorFrame()},
    )
    return WorkflowState(
        1, 2, RunState.FAILED, {"s": step}, {"x": None}, {"s": 5}, {"w": 1}, "p", "v", "t0", "t3", 7
    )


def test_every_field_stands_in_the_canonical_json() -> None:
    assert canonical_json(_full()) == (
        '{"catalog_id":2,"completed_at":"t3","ctx":{"x":null},"ctx_set_marks":{"s":5},"execution_id":1,'
        '"parent_execution_id":7,"path":"p","started_at":"t0","state":"failed","steps":{"s":{"attempt":1,'
        '"completed_at":"t2","completed_event_id":4611686018427387904,"cursor_completed":["a","b"],'
        '"cursor_frames":{"10":{"body_completed":1,"body_issued":2,"claim_completed":true,"claim_ref":"ref",'
        '"claim_rows":[1]},"9":{"body_completed":0,"body_issued":0,"claim_completed":false,"claim_rows":[]}},'
        '"cursor_issued":{"a":["claim",9],"b":["body",10]},"entered_at":"t1","error":"e","is_cursor":true,'
        '"iteration_command_ids":["a","b"],"iteration_results":[null],"iterations_dispatched":2,'
        '"iterations_expected":0,"name":"s","pending_callback":true,"result":{"n":1.10},"state":"completed",'
        '"uses_callback":true}},"version":"v","workload":{"w":1}}'
    )


def test_what_is_empty_is_left_out_and_the_rest_is_always_there() -> None:
    state = WorkflowState(1, 2, steps={"s": StepInfo("s")})
    assert canonical_json(state) == (
        '{"catalog_id":2,"execution_id":1,"state":"initial",'
        '"steps":{"s":{"attempt":0,"name":"s","state":"pending"}}}'
    )
    assert (
        canonical_json(WorkflowState(1, 2))
        == '{"catalog_id":2,"execution_id":1,"state":"initial","steps":{}}'
    )


def test_a_null_workload_and_a_null_result_are_values() -> None:
    state = WorkflowState(1, 2, steps={"s": StepInfo("s", result=None)}, workload=None)
    assert '"result":null' in canonical_json(state)
    assert '"workload":null' in canonical_json(state)


def test_zero_is_left_out_only_where_the_table_says_so() -> None:
    state = WorkflowState(1, 2, parent_execution_id=0, path="", steps={"s": StepInfo("s", error="")})
    printed = json.loads(canonical_json(state))
    assert (printed["parent_execution_id"], printed["path"], printed["steps"]["s"]["error"]) == (0, "", "")


def test_the_digest_is_the_sha256_of_the_canonical_json() -> None:
    assert digest(_full()) == hashlib.sha256(canonical_json(_full()).encode()).hexdigest()


def test_w41_i40_the_digest_ignores_insertion_order_in_maps_and_sets() -> None:
    names = ["a", "b", "c"]
    digests = set()
    for order in itertools.permutations(names):
        step = StepInfo("s", iteration_command_ids=set(order), cursor_completed=set(order))
        step.cursor_issued = dict.fromkeys(order, ("body", 1))
        state = WorkflowState(1, 2, steps={name: StepInfo(name) for name in order})
        state.steps["s"] = step
        state.ctx = dict.fromkeys(order, 1)
        digests.add(digest(state))
    assert len(digests) == 1


def test_w41_the_digest_moves_on_one_value_and_on_a_nested_change() -> None:
    states = [_full() for _ in range(4)]
    states[1].steps["s"].attempt = 2
    states[2].steps["s"].result = {"n": Number("1.1")}
    states[3].steps["s"].cursor_frames[9].claim_rows = [{}]
    assert len({digest(state) for state in states}) == 4


def test_w41_a_round_trip_keeps_the_members_of_sets() -> None:
    again = restored(canonical_json(_full()))
    assert again == _full()
    assert again is not None
    assert again.steps["s"].iteration_command_ids == {"a", "b"}
    assert again.steps["s"].cursor_issued["b"] == ("body", 10)
    assert digest(again) == digest(_full())


def test_a_restored_state_goes_on_as_the_fold_would() -> None:
    tale = Tale()
    context = {"iterations_expected": 2}
    tale.tell("step.enter", "it", result={"status": "ok", "context": context})
    tale.completes("it", "c0")
    again = restored(canonical_json(tale.state))
    assert again == tale.state


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"execution_id":1,"catalog_id":2,"state":"odd","steps":{}}',
        '{"execution_id":1,"catalog_id":2,"state":"initial","steps":[1]}',
        '{"execution_id":1,"catalog_id":2,"state":"initial","steps":{"s":1}}',
        '{"execution_id":1,"catalog_id":2,"state":"initial","steps":{},"more":1}',
        '{"catalog_id":2,"state":"initial","steps":{}}',
    ],
)
def test_another_text_is_no_state(text: str) -> None:
    assert restored(text) is None


def test_ids_are_text_where_it_is_asked_for() -> None:
    printed: Any = json.loads(rendered(document(_full(), ids_as_text=True)))
    assert (printed["execution_id"], printed["catalog_id"], printed["parent_execution_id"]) == ("1", "2", "7")
    assert printed["ctx_set_marks"] == {"s": "5"}
    assert printed["steps"]["s"]["completed_event_id"] == str(2**62)
    plain: Any = json.loads(rendered(document(WorkflowState(1, 2), ids_as_text=True)))
    assert "parent_execution_id" not in plain


@pytest.mark.parametrize(
    "number", ["12345678901234567890123", "1.10", "1e400", "0.1234567890123456789", "9" * 5000]
)
def test_a_number_survives_from_the_body_to_the_digest(number: str) -> None:
    tale = Tale()
    event = tale.tell("playbook_started", context={"workload": {"n": "HERE"}})
    folded = fold([with_raw(event, number)])
    assert folded is not None
    assert f'"workload":{{"n":{number}}}' in canonical_json(folded)
    assert restored(canonical_json(folded)) == folded


def test_a_body_deeper_than_a_parser_goes_is_folded_and_printed() -> None:
    tale = Tale()
    event = tale.tell("call.done", "a", result={"status": "ok", "context": "HERE"})
    nested = "[" * DEEP + "]" * DEEP
    folded = fold([with_raw(event, nested)])
    assert folded is not None
    assert nested in canonical_json(folded)
    assert len(digest(folded)) == 64
    again = restored(canonical_json(folded))
    assert again is not None
    assert digest(again) == digest(folded)


STEPS = st.builds(
    StepInfo,
    name=TEXT,
    result=VALUES,
    iteration_command_ids=st.sets(TEXT, max_size=4),
    cursor_completed=st.sets(TEXT, max_size=4),
    cursor_issued=st.dictionaries(TEXT, st.tuples(TEXT, st.integers(-(2**63), 2**63 - 1)), max_size=3),
    cursor_frames=st.dictionaries(st.integers(-9, 99), st.builds(CursorFrame), max_size=3),
)


@given(st.dictionaries(TEXT, STEPS, max_size=3), st.dictionaries(TEXT, VALUES, max_size=3), VALUES)
def test_any_state_comes_back_from_its_text(
    steps: dict[str, StepInfo], ctx: dict[str, Any], load: Any
) -> None:
    state = WorkflowState(1, 2, steps=steps, ctx=ctx, workload=load)
    again = restored(canonical_json(state))
    assert again == state
    assert again is not None
    assert canonical_json(again) == canonical_json(state)


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=5), st.randoms())
def test_any_order_of_insertion_gives_one_digest(ctx: dict[str, Any], chance: Any) -> None:
    keys = list(ctx)
    chance.shuffle(keys)
    shuffled = {key: ctx[key] for key in keys}
    assert digest(WorkflowState(1, 2, ctx=ctx)) == digest(WorkflowState(1, 2, ctx=shuffled))
