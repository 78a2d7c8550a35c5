"""A folded state as canonical JSON, its digest, and the way back.

Equal states give equal bytes: keys in code-point order, no spaces, sets as sorted arrays, frame
numbers as keys in decimal, pairs as arrays of two.  A field with nothing in it is left out; the
table says which may be.  Without sorted sets two folds of one log differ by a permutation, and
every comparison of states is noise.

Ids are numbers here, because the digest is over what the reference renders.  A reader without
64-bit integers asks `document` for text.

Source: spec 5.3 (canonical state digest).
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from sidecar.core.jsonvalue import ABSENT, Json, parsed, rendered
from sidecar.core.state import CursorFrame, RunState, StepInfo, StepState, WorkflowState

_ALWAYS_OF_STEP: Final = ("name", "state", "attempt")
_ALWAYS_OF_RUN: Final = ("execution_id", "catalog_id", "state")

# Left out when there is none.  A JSON null is a value of `result` and `workload`, not none.
_OPTIONAL_OF_STEP: Final = (
    "error",
    "entered_at",
    "completed_at",
    "completed_event_id",
    "iterations_expected",
)
_OPTIONAL_OF_RUN: Final = ("path", "version", "started_at", "completed_at", "parent_execution_id")

# Left out when false, zero or empty.
_FALSY_OF_STEP: Final = (
    "pending_callback",
    "uses_callback",
    "iteration_results",
    "iterations_dispatched",
    "is_cursor",
)
_SETS_OF_STEP: Final = ("iteration_command_ids", "cursor_completed")
_FALSY_OF_RUN: Final = ("ctx", "ctx_set_marks")

_IDS: Final = ("execution_id", "catalog_id", "parent_execution_id")


def digest(state: WorkflowState) -> str:
    """SHA-256 of the canonical JSON, in hex."""
    return hashlib.sha256(rendered(document(state))).hexdigest()


def canonical_json(state: WorkflowState) -> str:
    """The canonical JSON that the digest is over."""
    return rendered(document(state)).decode()


def document(state: WorkflowState, *, ids_as_text: bool = False) -> dict[str, Json]:
    """The state as JSON values, to be rendered by `jsonvalue.rendered`.

    Args:
        ids_as_text: Execution, catalog and event ids as decimal strings, as every answer over
            HTTP has them.  Such a document has another digest.
    """
    out = _picked(state, _ALWAYS_OF_RUN, _OPTIONAL_OF_RUN, _FALSY_OF_RUN)
    out["steps"] = {name: _step(step, ids_as_text) for name, step in state.steps.items()}
    if state.workload is not ABSENT:
        out["workload"] = state.workload
    if ids_as_text:
        out.update({key: str(out[key]) for key in _IDS if key in out})
        if state.ctx_set_marks:
            out["ctx_set_marks"] = {step: str(mark) for step, mark in state.ctx_set_marks.items()}
    return out


def _step(step: StepInfo, ids_as_text: bool) -> dict[str, Json]:
    out = _picked(step, _ALWAYS_OF_STEP, _OPTIONAL_OF_STEP, _FALSY_OF_STEP)
    for key in _SETS_OF_STEP:
        if members := getattr(step, key):
            out[key] = sorted(members)
    if step.result is not ABSENT:
        out["result"] = step.result
    if step.cursor_issued:
        out["cursor_issued"] = {command: list(pair) for command, pair in step.cursor_issued.items()}
    if step.cursor_frames:
        out["cursor_frames"] = {str(number): _frame(frame) for number, frame in step.cursor_frames.items()}
    if ids_as_text and step.completed_event_id is not None:
        out["completed_event_id"] = str(step.completed_event_id)
    return out


def _frame(frame: CursorFrame) -> dict[str, Json]:
    return _picked(
        frame, ("claim_completed", "claim_rows", "body_issued", "body_completed"), ("claim_ref",), ()
    )


def _picked(
    record: object, always: tuple[str, ...], optional: tuple[str, ...], falsy: tuple[str, ...]
) -> dict[str, Json]:
    out: dict[str, Json] = {key: getattr(record, key) for key in always}
    out.update({key: value for key in optional if (value := getattr(record, key)) is not None})
    out.update({key: value for key in falsy if (value := getattr(record, key))})
    return out


def restored(text: str) -> WorkflowState | None:
    """The state that `canonical_json` printed, its sets sets again; None for any other text."""
    document: Any = parsed(text)
    try:
        return _run_restored(dict(document))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _run_restored(fields: dict[str, Any]) -> WorkflowState:
    fields["state"] = RunState(fields["state"])
    fields["steps"] = {name: _step_restored(dict(step)) for name, step in fields["steps"].items()}
    return WorkflowState(**fields)


def _step_restored(fields: dict[str, Any]) -> StepInfo:
    fields["state"] = StepState(fields["state"])
    for key in _SETS_OF_STEP:
        fields[key] = set(fields.get(key, ()))
    fields["cursor_issued"] = {
        command: (phase, number) for command, (phase, number) in fields.get("cursor_issued", {}).items()
    }
    fields["cursor_frames"] = {
        int(number): CursorFrame(**frame) for number, frame in fields.get("cursor_frames", {}).items()
    }
    return StepInfo(**fields)
