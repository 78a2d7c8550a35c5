"""The fold's rules, one event type after the other."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sidecar.core.state import RunState, StepState, WorkflowState
from sidecar.core.workflow import Fold, fold
from tests.unit.core.told import CATALOG, EXECUTION, Tale, time_of


def test_no_event_is_no_state() -> None:
    assert fold([]) is None


def test_w01_state_names_print() -> None:
    assert [str(state) for state in RunState] == [
        "initial",
        "in_progress",
        "completed",
        "failed",
        "cancelled",
    ]
    assert f"{StepState.COMMAND_ISSUED}" == "command_issued"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("initial", RunState.INITIAL),
        ("PENDING", RunState.INITIAL),
        ("in_progress", RunState.IN_PROGRESS),
        ("Running", RunState.IN_PROGRESS),
        ("COMPLETED", RunState.COMPLETED),
        ("success", RunState.COMPLETED),
        ("failed", RunState.FAILED),
        ("Error", RunState.FAILED),
        ("cancelled", RunState.CANCELLED),
        ("CANCELED", RunState.CANCELLED),
        ("no such state", RunState.INITIAL),
        ("", RunState.INITIAL),
    ],
)
def test_w02_state_names_are_parsed_in_any_case(text: str, meant: RunState) -> None:
    assert RunState.named(text) is meant


def test_w03_completed_failed_and_cancelled_are_terminal() -> None:
    assert {state for state in RunState if state.is_terminal} == {
        RunState.COMPLETED,
        RunState.FAILED,
        RunState.CANCELLED,
    }


@pytest.mark.parametrize(
    ("spelling", "state"),
    [
        ("playbook_cancelled", RunState.CANCELLED),
        ("playbook.cancelled", RunState.CANCELLED),
        ("playbook_completed", RunState.COMPLETED),
        ("playbook.completed", RunState.COMPLETED),
        ("playbook_failed", RunState.FAILED),
        ("playbook.failed", RunState.FAILED),
    ],
)
def test_w04_both_spellings_of_a_terminal_end_the_run(spelling: str, state: RunState) -> None:
    tale = Tale()
    tale.tell("playbook_started")
    tale.tell(spelling)
    assert tale.state.state is state
    assert tale.state.completed_at == time_of(1)


def test_w05_start_enter_issue_complete() -> None:
    tale = Tale()
    workload = {"rows": 5}
    context = {"workload": workload, "path": "mine/med", "version": "7"}
    tale.tell("playbook_started", "mine/med", context=context, parent_execution_id=42)
    tale.tell("step.enter", "start")
    tale.tell("command.issued", "start")
    done = tale.tell("command.completed", "start", result={"status": "ok", "context": {"n": 1}})
    state = tale.state
    assert (state.execution_id, state.catalog_id) == (EXECUTION, CATALOG)
    assert state.state is RunState.IN_PROGRESS
    assert (state.workload, state.path, state.version) == (workload, "mine/med", "7")
    assert (state.started_at, state.completed_at, state.parent_execution_id) == (time_of(0), None, 42)
    assert list(state.steps) == ["start"]
    step = state.steps["start"]
    assert step.state is StepState.COMPLETED
    assert step.result == {"status": "ok", "context": {"n": 1}}
    assert (step.entered_at, step.completed_at, step.completed_event_id) == (
        time_of(1),
        time_of(3),
        done.event_id,
    )


def test_w07_a_step_goes_from_entered_to_completed() -> None:
    tale = Tale()
    seen = []
    for kind in ("step.enter", "command.issued", "command.claimed", "command.started", "command.completed"):
        tale.tell(kind, "a", meta={"attempt": 2})
        seen.append(tale.state.steps["a"].state.value)
    assert seen == ["entered", "command_issued", "command_claimed", "command_started", "completed"]
    assert tale.state.steps["a"].attempt == 2


@pytest.mark.parametrize("spelling", ["step.skipped", "step_skipped"])
def test_w08_w09_a_skipped_step_is_done_and_not_completed(spelling: str) -> None:
    tale = Tale()
    tale.tell(spelling, "b")
    step = tale.state.steps["b"]
    assert (step.state, step.is_done, step.is_completed) == (StepState.SKIPPED, True, False)
    assert step.entered_at == step.completed_at == time_of(0)


def _loop(expected: int) -> Tale:
    tale = Tale()
    tale.tell("step.enter", "it", result={"status": "ok", "context": {"iterations_expected": expected}})
    return tale


def test_w10_an_iterator_completes_with_its_last_command_and_keeps_arrival_order() -> None:
    tale = _loop(3)
    for value, command in ((2, "c2"), (0, "c0")):
        tale.completes("it", command, value=value)
        assert not tale.state.steps["it"].is_completed
    last = tale.completes("it", "c1", value=1)
    step = tale.state.steps["it"]
    assert (step.is_completed, step.completed_event_id) == (True, last.event_id)
    assert isinstance(step.result, list)
    assert [each["context"]["value"] for each in step.result] == [2, 0, 1]
    assert step.result == step.iteration_results
    assert step.result is not step.iteration_results


def test_w11_a_command_that_completes_twice_counts_once() -> None:
    tale = _loop(2)
    tale.completes("it", "c0")
    tale.completes("it", "c0")
    step = tale.state.steps["it"]
    assert (step.iterations_completed, len(step.iteration_results), step.is_completed) == (1, 1, False)


def test_w12_two_of_three_is_not_completed() -> None:
    tale = _loop(3)
    tale.completes("it", "c0")
    tale.completes("it", "c1")
    step = tale.state.steps["it"]
    assert (step.is_iterator, step.iterations_completed, step.is_completed) == (True, 2, False)
    assert step.completed_at is None


def test_w13_one_workers_whole_lifecycle_is_one_iteration() -> None:
    tale = _loop(3)
    for index in range(3):
        tale.tell("command.issued", "it", meta={"command_id": f"c{index}"})
    meta = {"command_id": "c0"}
    for kind in ("command.claimed", "command.started", "step.enter", "call.done", "step.exit"):
        tale.tell(kind, "it", meta=meta, result={"status": "ok", "context": {"command_id": "c0"}})
    tale.completes("it", "c0")
    step = tale.state.steps["it"]
    assert (step.iterations_expected, step.iterations_dispatched, step.iterations_completed) == (3, 3, 1)
    assert not step.is_completed


def test_w14_a_plain_step_is_no_iterator() -> None:
    tale = Tale()
    tale.tell("step.enter", "a")
    tale.tell("command.issued", "a", meta={"command_id": "c"})
    tale.completes("a", "c")
    step = tale.state.steps["a"]
    assert (step.is_iterator, step.iterations_dispatched, step.iterations_completed) == (False, 0, 0)
    assert step.is_completed


def test_w20_an_errors_data_on_call_done_survives_a_completion_without_data() -> None:
    tale = Tale()
    rich = {"status": "error", "context": {"data": {"error": "no such table"}}}
    tale.tell("call.done", "a", result=rich)
    tale.completes("a", "c")
    assert tale.state.steps["a"].result == rich
    assert tale.state.steps["a"].is_completed


def test_call_done_overwrites_and_leaves_the_state_alone() -> None:
    tale = Tale()
    tale.tell("command.started", "a")
    tale.tell("call.done", "a", result={"status": "one"})
    tale.tell("action_done", "a", result={"status": "two"})
    tale.tell("call.done", "a")
    step = tale.state.steps["a"]
    assert (step.result, step.state) == ({"status": "two"}, StepState.COMMAND_STARTED)


def test_w23_the_engines_own_command_is_no_step() -> None:
    tale = Tale()
    for kind in ("playbook_started", "step.enter", "command.issued", "command.completed", "playbook.failed"):
        tale.tell(kind, "__orchestrate__")
    assert tale.state == WorkflowState(EXECUTION, CATALOG)
    tale.tell("step.enter", "real")
    assert list(tale.state.steps) == ["real"]


def test_w30_an_issue_reopens_a_completed_step_and_keeps_its_result() -> None:
    tale = Tale()
    tale.tell("call.done", "a", result={"status": "ok", "context": {"n": 1}})
    tale.completes("a", "c")
    tale.tell("command.issued", "a")
    step = tale.state.steps["a"]
    assert (step.state, step.result) == (StepState.COMMAND_ISSUED, {"status": "ok", "context": {"n": 1}})
    assert step.completed_at is not None


def test_w31_the_last_ctx_update_wins_and_marks_are_kept() -> None:
    tale = Tale()
    first = {"values": {"offset": 0, "kept": True}, "step": "a", "gen": 11}
    tale.tell("ctx.updated", result={"status": "ok", "context": first})
    tale.tell("ctx.updated", context={"values": {"offset": 5}, "step": "b", "gen": 2**62})
    assert tale.state.ctx == {"offset": 5, "kept": True}
    assert tale.state.ctx_set_marks == {"a": 11, "b": 2**62}


def test_the_halves_of_a_ctx_update_are_independent() -> None:
    tale = Tale()
    tale.tell("ctx.updated", context={"values": [1], "step": "a", "gen": 1})
    tale.tell("ctx.updated", context={"values": {"x": 1}, "step": "b", "gen": 1.5})
    tale.tell("ctx.updated", context={"values": {"y": 1}, "step": "c", "gen": True})
    assert tale.state.ctx_set_marks == {"a": 1}
    assert tale.state.ctx == {"x": 1, "y": 1}


def test_a_ctx_update_reads_the_result_even_when_its_context_is_null() -> None:
    tale = Tale()
    tale.tell("ctx.updated", result={"status": "ok", "context": None}, context={"values": {"x": 1}})
    assert tale.state.ctx == {}


PARKED = {"status": "ok", "context": {"pending_callback": True, "command_id": "c"}}


def test_w35_a_wire_shaped_completion_parks() -> None:
    tale = Tale()
    tale.tell("command.started", "a")
    tale.tell("command.completed", "a", meta={"pending_callback": True, "command_id": "c"})
    step = tale.state.steps["a"]
    assert (step.pending_callback, step.uses_callback) == (True, True)
    assert (step.state, step.completed_at) == (StepState.COMMAND_STARTED, None)


def test_w36_a_context_shaped_completion_parks() -> None:
    tale = Tale()
    tale.tell("command.completed", "a", context={"pending_callback": True})
    step = tale.state.steps["a"]
    assert (step.pending_callback, step.uses_callback, step.completed_at) == (True, True, None)


def test_w37_call_done_completes_a_parked_step_with_the_id_of_the_resume() -> None:
    tale = Tale()
    tale.tell("command.completed", "a", result=PARKED)
    resume = tale.tell("call.done", "a", result={"status": "ok", "context": {"n": 1}})
    step = tale.state.steps["a"]
    assert (step.pending_callback, step.uses_callback, step.is_completed) == (False, True, True)
    assert (step.completed_event_id, step.completed_at) == (resume.event_id, time_of(1))
    assert step.result == {"status": "ok", "context": {"n": 1}}


def test_w38_a_failure_unparks() -> None:
    tale = Tale()
    tale.tell("command.completed", "a", result=PARKED)
    tale.tell("command.failed", "a", result={"status": "error", "error": "timed out"})
    step = tale.state.steps["a"]
    assert (step.pending_callback, step.uses_callback) == (False, True)
    assert (step.state, step.error, step.completed_at) == (StepState.FAILED, "timed out", time_of(1))


def test_w39_an_ordinary_step_is_never_marked() -> None:
    tale = Tale()
    tale.tell("step.enter", "a")
    tale.tell("call.done", "a", result={"status": "ok"})
    tale.completes("a", "c")
    step = tale.state.steps["a"]
    assert (step.pending_callback, step.uses_callback) == (False, False)


def test_a_parked_iteration_counts_as_done() -> None:
    tale = _loop(1)
    tale.tell("command.completed", "it", result=PARKED)
    step = tale.state.steps["it"]
    assert (step.is_completed, step.pending_callback) == (True, False)


def test_the_error_is_the_first_string_and_stays_when_there_is_none() -> None:
    tale = Tale()
    tale.tell("step_failed", "a", result={"status": "error", "error": 5, "context": {"error": "deep"}})
    assert tale.state.steps["a"].error == "deep"
    tale.tell("action_failed", "a", result={"status": "error"})
    assert tale.state.steps["a"].error == "deep"


@pytest.mark.parametrize(
    "kind",
    [
        "playbook.started",
        "playbook.initialized",
        "step.failed",
        "execution.completed",
        "execution.failed",
        "workflow.completed",
        "loop.done",
        "frame.committed",
        "call.error",
        "command.cancelled",
        "",
    ],
)
def test_other_types_change_nothing(kind: str) -> None:
    tale = Tale()
    tale.tell(kind, "a", context={"workload": {"x": 1}, "values": {"x": 1}})
    assert tale.state == WorkflowState(EXECUTION, CATALOG)


@pytest.mark.parametrize(
    "kind", ["step.enter", "step.skipped", "command.issued", "command.completed", "call.done"]
)
def test_a_step_event_without_a_name_does_nothing(kind: str) -> None:
    tale = Tale()
    tale.tell(kind, None, result={"status": "ok"})
    assert tale.state.steps == {}


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("step.enter", StepState.ENTERED),
        ("step_enter", StepState.ENTERED),
        ("step_started", StepState.ENTERED),
        ("command.started", StepState.COMMAND_STARTED),
        ("action_started", StepState.COMMAND_STARTED),
        ("command.completed", StepState.COMPLETED),
        ("action_completed", StepState.COMPLETED),
        ("step.exit", StepState.COMPLETED),
        ("step_completed", StepState.COMPLETED),
        ("command.failed", StepState.FAILED),
        ("action_failed", StepState.FAILED),
        ("step_failed", StepState.FAILED),
        ("call.done", StepState.PENDING),
        ("action_done", StepState.PENDING),
    ],
)
def test_every_spelling_of_a_step_event_moves_the_step(kind: str, state: StepState) -> None:
    tale = Tale()
    tale.tell(kind, "a")
    assert tale.state.steps["a"].state is state


def test_a_workload_of_null_is_a_workload_and_a_start_without_one_keeps_it() -> None:
    tale = Tale()
    tale.tell("playbook_started", context={"workload": None, "path": 5}, parent_execution_id=3)
    tale.tell("playbook_started", context={"path": "p"})
    assert tale.state.workload is None
    assert (tale.state.path, tale.state.version, tale.state.parent_execution_id) == ("p", None, None)


def test_re_entry_keeps_result_iterations_and_completion() -> None:
    tale = _loop(1)
    tale.completes("it", "c0", value=1)
    before = tale.state.steps["it"]
    tale.tell("step_started", "it")
    after = tale.state.steps["it"]
    assert after.state is StepState.ENTERED
    assert (after.result, after.iteration_command_ids, after.completed_at, after.iterations_expected) == (
        before.result,
        {"c0"},
        before.completed_at,
        1,
    )


def test_an_iterator_with_null_results_completes_with_an_empty_aggregate() -> None:
    tale = _loop(2)
    for command in ("c0", "c1"):
        tale.tell("command.completed", "it", meta={"command_id": command})
    step = tale.state.steps["it"]
    assert (step.is_completed, step.result, step.iterations_completed) == (True, [], 2)


def test_a_completion_without_a_command_still_asks_whether_all_are_there() -> None:
    tale = _loop(0)
    tale.tell("command.completed", "it")
    assert tale.state.steps["it"].is_completed


def test_call_done_leaves_an_iterators_result_to_its_iterations() -> None:
    tale = _loop(2)
    tale.tell("call.done", "it", result={"status": "ok"}, meta={"command_id": "c0"})
    tale.completes("it", "c0")
    tale.completes("it", "c1")
    result = tale.state.steps["it"].result
    assert isinstance(result, list)
    assert len(result) == 2


def test_events_after_a_terminal_still_apply_and_a_later_terminal_overwrites() -> None:
    tale = Tale()
    tale.tell("playbook.completed")
    tale.tell("step.enter", "late")
    tale.tell("playbook_failed")
    assert tale.state.state is RunState.FAILED
    assert tale.state.completed_at == time_of(2)
    assert tale.state.steps["late"].state is StepState.ENTERED


def test_a_fold_grows_with_its_chain() -> None:
    tale = _loop(2)
    growing = Fold(tale.events)
    tale.completes("it", "c0")
    tale.completes("it", "c1")
    growing.absorb(tale.events[1:])
    assert growing.state == tale.state
    assert growing.count == 3


def test_the_folds_load_no_database_no_settings_and_no_loop() -> None:
    program = (
        "import sys; from sidecar.core.workflow import fold; from sidecar.core.replay import Replay;"
        " from sidecar.core.digest import digest; print(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded.isdisjoint({"asyncpg", "aiosqlite", "sqlite3", "pydantic", "pydantic_settings", "asyncio"})
    assert "msgspec" in loaded


def test_a_second_start_that_names_nothing_keeps_what_the_first_has_named() -> None:
    tale = Tale()
    tale.tell("playbook_started", context={"path": "a/b", "version": "3"})
    tale.tell("playbook_started", context={})
    assert (tale.state.path, tale.state.version) == ("a/b", "3")


@pytest.mark.parametrize("kind", ["playbook_completed", "playbook.failed", "playbook.cancelled"])
def test_an_end_has_its_state_and_its_time(kind: str) -> None:
    tale = Tale()
    tale.tell("playbook_started", context={"path": "a/b"})
    ended = tale.tell(kind)
    assert tale.state.state.is_terminal
    assert tale.state.completed_at is not None
    assert tale.state.completed_at in ended.body


def test_a_step_knows_its_name() -> None:
    tale = Tale()
    tale.tell("step.enter", "a")
    assert tale.state.steps["a"].name == "a"
