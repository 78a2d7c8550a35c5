"""Cursor loops in the fold: frames, claims and bodies."""

from __future__ import annotations

from typing import Any

from sidecar.core.state import CursorFrame, StepInfo
from tests.unit.core.told import Tale


def _cursor() -> Tale:
    tale = Tale()
    _enter(tale)
    return tale


def _enter(tale: Tale) -> None:
    tale.tell("step.enter", "cur", result={"status": "ok", "context": {"__cursor_loop": True}})


def _issue(tale: Tale, command: str, phase: str, frame: int) -> None:
    tale.tell(
        "command.issued", "cur", meta={"command_id": command, "cursor": {"phase": phase, "frame": frame}}
    )


def _step(tale: Tale) -> StepInfo:
    return tale.state.steps["cur"]


def test_claims_and_bodies_are_counted_by_frame() -> None:
    tale = _cursor()
    _issue(tale, "k0", "claim", 0)
    tale.completes("cur", "k0")
    _issue(tale, "b0", "body", 0)
    _issue(tale, "b1", "body", 0)
    _issue(tale, "k1", "claim", 1)
    tale.completes("cur", "b1")
    step = _step(tale)
    assert step.cursor_issued == {
        "k0": ("claim", 0),
        "b0": ("body", 0),
        "b1": ("body", 0),
        "k1": ("claim", 1),
    }
    assert step.cursor_completed == {"k0", "b1"}
    assert step.cursor_frames == {
        0: CursorFrame(claim_completed=True, body_issued=2, body_completed=1),
        1: CursorFrame(),
    }
    assert not step.is_completed


def test_a_body_that_completes_or_is_issued_twice_counts_once() -> None:
    tale = _cursor()
    _issue(tale, "b0", "body", 0)
    _issue(tale, "b0", "body", 0)
    tale.completes("cur", "b0")
    tale.completes("cur", "b0")
    assert _step(tale).cursor_frames == {0: CursorFrame(body_issued=1, body_completed=1)}


def test_a_command_issued_again_for_another_frame_overwrites_the_pair_only() -> None:
    tale = _cursor()
    _issue(tale, "b0", "body", 0)
    _issue(tale, "b0", "body", 4)
    assert _step(tale).cursor_issued == {"b0": ("body", 4)}
    assert _step(tale).cursor_frames == {0: CursorFrame(body_issued=1)}
    tale.completes("cur", "b0")
    assert _step(tale).cursor_frames == {0: CursorFrame(body_issued=1), 4: CursorFrame(body_completed=1)}


def test_a_command_nobody_issued_is_not_counted() -> None:
    tale = _cursor()
    tale.completes("cur", "stray")
    tale.completes("cur", None)
    step = _step(tale)
    assert (step.cursor_completed, step.cursor_frames, step.is_completed) == (set(), {}, False)


def test_phase_and_frame_have_defaults() -> None:
    tale = _cursor()
    tale.tell("command.issued", "cur", meta={"command_id": "x", "cursor": {}})
    tale.tell("command.issued", "cur", meta={"command_id": "y", "cursor": "?"})
    tale.tell("command.issued", "cur", meta={"command_id": "z"})
    tale.tell("command.issued", "cur", meta={"cursor": {"phase": "body"}})
    assert _step(tale).cursor_issued == {"x": ("", 0), "y": ("", 0)}
    assert _step(tale).cursor_frames == {0: CursorFrame()}


def _answer(tale: Tale, command: str, inner: dict[str, Any]) -> None:
    tale.tell("call.done", "cur", meta={"command_id": command}, result={"status": "ok", **inner})


def test_the_rows_of_a_claim_arrive_on_call_done() -> None:
    tale = _cursor()
    _issue(tale, "k0", "claim", 0)
    _answer(tale, "k0", {"context": {"data": {"rows": [{"id": 1}, {"id": 2}]}}})
    step = _step(tale)
    assert step.cursor_frames[0].claim_rows == [{"id": 1}, {"id": 2}]
    assert step.cursor_frames[0].claim_ref is None
    assert not step.result


def test_a_reference_stands_in_for_rows_that_were_too_many() -> None:
    tale = _cursor()
    _issue(tale, "k0", "claim", 0)
    _issue(tale, "k1", "claim", 1)
    _answer(tale, "k0", {"context": {"result": {"reference": {"ref": "noetl://rows/0"}}}})
    _answer(tale, "k1", {"reference": {"ref": "noetl://rows/1"}})
    frames = _step(tale).cursor_frames
    assert (frames[0].claim_rows, frames[0].claim_ref, frames[1].claim_ref) == (
        [],
        "noetl://rows/0",
        "noetl://rows/1",
    )


def test_rows_win_over_a_reference_and_a_body_brings_neither() -> None:
    tale = _cursor()
    _issue(tale, "k0", "claim", 0)
    _issue(tale, "b0", "body", 0)
    _answer(tale, "k0", {"context": {"rows": []}, "reference": {"ref": "noetl://rows/0"}})
    _answer(tale, "b0", {"context": {"rows": [1]}, "reference": {"ref": "noetl://rows/1"}})
    assert _step(tale).cursor_frames == {0: CursorFrame(body_issued=1)}


def test_a_drain_completes_the_step() -> None:
    tale = _cursor()
    _issue(tale, "k0", "claim", 0)
    drain = tale.tell("step.exit", "cur", result={"status": "ok", "context": {"__cursor_drained": True}})
    step = _step(tale)
    assert (step.is_completed, step.completed_event_id) == (True, drain.event_id)


def test_a_drain_may_stand_in_the_context_column_but_a_word_is_no_drain() -> None:
    tale = _cursor()
    tale.tell("step.exit", "cur", context={"__cursor_drained": "true"})
    assert not _step(tale).is_completed
    mixed = {"status": "ok", "context": {"__cursor_drained": "yes"}}
    tale.tell("step.exit", "cur", result=mixed, context={"__cursor_drained": True})
    assert _step(tale).is_completed


def test_re_entry_clears_the_frames() -> None:
    tale = _cursor()
    _issue(tale, "k0", "claim", 0)
    tale.completes("cur", "k0")
    _enter(tale)
    step = _step(tale)
    assert (step.is_cursor, step.cursor_issued, step.cursor_completed, step.cursor_frames) == (
        True,
        {},
        set(),
        {},
    )


def test_an_entry_without_the_marker_keeps_them() -> None:
    tale = _cursor()
    _issue(tale, "k0", "claim", 0)
    tale.tell("step.enter", "cur", result={"status": "ok", "context": {"__cursor_loop": False}})
    assert _step(tale).cursor_issued == {"k0": ("claim", 0)}
    assert _step(tale).is_cursor


def test_every_body_of_a_frame_counts() -> None:
    tale = _cursor()
    for command in ("b0", "b1"):
        _issue(tale, command, "body", 0)
        tale.completes("cur", command)
    assert _step(tale).cursor_frames == {0: CursorFrame(body_issued=2, body_completed=2)}


def test_an_answer_to_a_claim_that_nobody_made_is_nothing() -> None:
    tale = _cursor()
    tale.tell(
        "call.done", "cur", meta={"command_id": "stranger"}, result={"status": "ok", "context": {"rows": [1]}}
    )
    assert _step(tale).cursor_frames == {}
