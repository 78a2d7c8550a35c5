"""Where the fold looks for a value, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.core.context import build_context, set_targets
from sidecar.core.envelope import Envelope, flatten, opened, reference, user_data
from sidecar.core.jsonvalue import ABSENT
from tests.unit.core.told import CATALOG, EXECUTION, Tale


def _opened(**columns: Any) -> Envelope:
    envelope = opened(Tale().tell("command.completed", "a", **columns))
    assert envelope is not None
    return envelope


def _result(**context: Any) -> dict[str, Any]:
    return {"status": "ok", "context": context}


def test_a_null_column_is_absent_and_a_json_null_is_not() -> None:
    envelope = opened(Tale().tell("x", None, context=None, meta=0))
    assert envelope is not None
    assert (envelope.context, envelope.meta, envelope.node_name) == (ABSENT, 0, None)


# dual


@pytest.mark.parametrize(
    ("inner", "column", "found"),
    [
        (3, 4, 3),
        (None, 4, 4),
        ("3", 4, 4),
        (True, 4, 4),
        (3.0, 4, 4),
        (2**63, 4, 4),
        (-(2**63), 4, -(2**63)),
        (2**63 - 1, 4, 2**63 - 1),
        ("3", "4", None),
        (0, 4, 0),
    ],
)
def test_a_dual_integer_skips_what_is_of_another_type(inner: Any, column: Any, found: int | None) -> None:
    assert _opened(result=_result(n=inner), context={"n": column}).dual_int("n") == found


@pytest.mark.parametrize(
    ("inner", "column", "found"),
    [(False, True, False), (None, True, True), (1, False, False), ("true", 1, None)],
)
def test_a_dual_boolean_skips_what_is_of_another_type(inner: Any, column: Any, found: bool | None) -> None:
    assert _opened(result=_result(b=inner), context={"b": column}).dual_bool("b") is found


# command ids


def test_a_command_id_is_the_first_string_of_three_places() -> None:
    data = {"command_id": "data"}
    places = {"context": {"command_id": "context"}, "data": data}
    assert _opened(meta={"command_id": "meta"}, result=places).command_id == "meta"
    assert _opened(meta={"command_id": 5}, result=places).command_id == "context"
    assert _opened(result={"context": {"command_id": None}, "data": data}).command_id == "data"
    assert _opened(command_id=9001, context=data).command_id is None


# parked


def test_w33_the_marker_is_read_from_meta() -> None:
    assert _opened(meta={"pending_callback": True}).is_parked


def test_w34_the_marker_is_read_from_the_result_while_context_is_null() -> None:
    assert _opened(result=_result(pending_callback=True), context=None).is_parked


def test_w40_an_absent_marker_is_not_parked() -> None:
    assert not _opened(result=_result(), context={}, meta={}).is_parked
    assert not _opened().is_parked


@pytest.mark.parametrize(
    ("result", "context", "meta", "parked"),
    [
        (False, True, True, False),
        (True, False, False, True),
        (None, False, True, False),
        ("true", True, False, True),
        (1, "true", True, True),
        (1, 1, 1, False),
    ],
)
def test_a_later_place_is_asked_only_when_the_earlier_holds_no_boolean(
    result: Any, context: Any, meta: Any, parked: bool
) -> None:
    envelope = _opened(
        result=_result(pending_callback=result),
        context={"pending_callback": context},
        meta={"pending_callback": meta},
    )
    assert envelope.is_parked is parked


# user data


def test_w15_the_standard_envelope_unwraps() -> None:
    inner = {"status": "ok", "context": {"data": {"hot": True}, "stdout": ""}}
    assert user_data(_result(result=inner)) == {"hot": True}


def test_a_context_with_data_gives_its_data_and_one_without_gives_itself() -> None:
    assert user_data(_result(data={"n": 1}, other=2)) == {"n": 1}
    assert user_data(_result(n=1)) == {"n": 1}
    assert user_data(_result(data=None)) is None
    assert user_data({"status": "ok", "context": None}) is None


def test_w16_a_flat_result_stays() -> None:
    assert user_data({"n": 1}) == {"n": 1}
    assert user_data([1]) == [1]


def test_w17_null_is_no_data() -> None:
    assert user_data(None) is ABSENT
    assert user_data(ABSENT) is ABSENT


def test_labels_are_merged_in_sorted_order_and_a_later_one_wins() -> None:
    labelled = {"b": {"n": 2, "x": 1}, "a": {"n": 1, "b": 7}}
    assert flatten(labelled) == {"a": {"n": 1, "b": 7}, "b": 7, "n": 2, "x": 1}
    assert labelled == {"b": {"n": 2, "x": 1}, "a": {"n": 1, "b": 7}}


@pytest.mark.parametrize("plain", [{}, [], None, "x", {"a": {}, "b": 1}, [{"a": {}}]])
def test_what_is_not_labelled_stays(plain: Any) -> None:
    assert flatten(plain) == plain


def test_a_reference_is_a_string_in_one_of_two_places() -> None:
    inner = {"reference": {"ref": "deep"}}
    outer = {"ref": "outer"}
    assert reference({"context": {"result": inner}, "reference": outer}) == "deep"
    assert reference({"context": {"result": {"reference": {"ref": 1}}}, "reference": outer}) == "outer"
    assert reference({"reference": "outer"}) is None
    assert reference(None) is None


# context


def test_w06_the_context_has_workload_keys_path_and_steps() -> None:
    tale = Tale()
    tale.tell("playbook_started", context={"workload": {"rows": 5}, "path": "p", "version": "2"})
    tale.tell("step.enter", "silent")
    context = build_context(tale.state)
    assert context == {
        "rows": 5,
        "workload": {"rows": 5},
        "path": "p",
        "version": "2",
        "steps": {},
        "execution_id": str(EXECUTION),
        "catalog_id": str(CATALOG),
    }


def test_w18_step_data_stands_at_the_top_and_the_envelope_under_steps() -> None:
    tale = Tale()
    envelope = _result(result={"status": "ok", "context": {"data": {"hot": True}}})
    tale.tell("playbook_started", context={"workload": {"rows": 5}})
    tale.tell("call.done", "a", result=envelope)
    context = build_context(tale.state)
    assert context["a"] == {"hot": True, "data": {"hot": True}}
    assert context["steps"] == {"a": envelope}
    assert context["workload"] == {"rows": 5}


def test_w19_w21_data_names_the_step_data_unless_the_step_named_it() -> None:
    tale = Tale()
    tale.tell("call.done", "flat", result=_result(n=1))
    tale.tell("call.done", "own", result=_result(data={"data": {"x": 1}, "n": 2}))
    tale.tell("call.done", "list", result=_result(data=[1]))
    context = build_context(tale.state)
    assert context["flat"] == {"n": 1, "data": {"n": 1}}
    assert context["own"] == {"data": {"x": 1}, "n": 2}
    assert context["list"] == [1]
    assert tale.state.steps["flat"].result == _result(n=1)


def test_w22_a_labelled_sequence_is_flattened_and_reachable_by_label() -> None:
    tale = Tale()
    tale.tell("call.done", "seq", result=_result(data={"first": {"n": 1}, "second": {"m": 2}}))
    seq = build_context(tale.state)["seq"]
    assert isinstance(seq, dict)
    assert (seq["n"], seq["m"], seq["first"], seq["second"]) == (1, 2, {"n": 1}, {"m": 2})
    assert seq["data"] == {"n": 1, "m": 2, "first": {"n": 1}, "second": {"m": 2}}


def test_w32_ctx_overlays_the_workload_at_the_top_only() -> None:
    tale = Tale()
    tale.tell("playbook_started", context={"workload": {"offset": 0}})
    values = {"offset": 5, "execution_id": "other", "steps": "gone"}
    tale.tell("ctx.updated", context={"values": values})
    context = build_context(tale.state)
    assert context["offset"] == 5
    assert context["workload"] == {"offset": 0}
    assert context["steps"] == "gone"
    assert context["execution_id"] == str(EXECUTION)


def test_a_step_with_a_null_result_stands_under_steps_only() -> None:
    tale = Tale()
    tale.tell("playbook_started", context={"workload": [1, 2]})
    state = tale.state
    state.step("a").result = None
    context = build_context(state)
    assert context["steps"] == {"a": None}
    assert "a" not in context
    assert "workload" not in context


# set


@pytest.mark.parametrize(
    ("key", "target"),
    [
        pytest.param("ctx.offset", "offset", id="w24_ctx"),
        pytest.param("iter.i", "i", id="w25_iter"),
        pytest.param("step.n", "n", id="w26_step"),
        pytest.param("offset", "offset", id="w27_bare"),
        pytest.param("other.n", "other.n", id="w28_unknown_scope"),
        ("ctx.a.b", "a.b"),
        ("ctx", "ctx"),
        ("ctxx.a", "ctxx.a"),
    ],
)
def test_set_drops_a_known_scope_before_the_first_dot(key: str, target: str) -> None:
    assert set_targets({key: 1}) == {target: 1}


def test_w29_all_scopes_together() -> None:
    mutations = {"ctx.a": 1, "iter.b": 2, "step.c": 3, "d": 4, "other.e": 5}
    assert set_targets(mutations) == {"a": 1, "b": 2, "c": 3, "d": 4, "other.e": 5}


def test_a_column_that_is_not_there_is_absent_everywhere() -> None:
    envelope = opened(Tale().tell("x", "a"))
    assert envelope is not None
    assert (envelope.context, envelope.result, envelope.meta) == (ABSENT, ABSENT, ABSENT)
