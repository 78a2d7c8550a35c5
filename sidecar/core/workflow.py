"""The fold: events in link order -> the state of the workflow.

Each event type has one rule and no rule asks what the state is: an event after a terminal one
still applies, a later terminal overwrites.  Unknown types change nothing.  The order of the
events is the caller's (`core.links`); nothing here compares ids.

An event whose body cannot be read changes nothing either, but it is named in
`Fold.unreadable`: a state that lacks an event is not one to certify or to compare.  No event
makes the fold raise.

Source: spec 5.1, 5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from sidecar.core.envelope import Envelope, opened, reference, user_data
from sidecar.core.event import Event
from sidecar.core.jsonvalue import ABSENT, at, int_at, text_at
from sidecar.core.state import RunState, StepInfo, StepState, WorkflowState

INFRASTRUCTURE_STEP: Final = "__orchestrate__"
"""The engine's own command; its events are in the chain and mean nothing to the workflow."""


def fold(events: Iterable[Event]) -> WorkflowState | None:
    """The state after `events` of one execution in link order; None for no event.

    Use `Fold` where an unreadable event must not go unnoticed.
    """
    return Fold(events).state


class Fold:
    """A state that can take further events; after any split it equals one fold of the whole.

    `state` is None before the first event and the same, moving object after it.
    `unreadable` holds the ids of the events whose bodies could not be read, in order.
    """

    __slots__ = ("count", "state", "unreadable")

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.state: WorkflowState | None = None
        self.count = 0
        self.unreadable: tuple[int, ...] = ()
        self.absorb(events)

    def absorb(self, events: Iterable[Event]) -> None:
        """Apply the events that follow those already absorbed, in link order."""
        for event in events:
            envelope = opened(event)
            if self.state is None:
                # The publish path writes catalog 0 when it knows none; so do we.
                catalog = None if envelope is None else int_at(envelope.body, "catalog_id")
                self.state = WorkflowState(event.execution_id, catalog or 0)
            self.count += 1
            if envelope is None:
                self.unreadable += (event.event_id,)
            else:
                _apply(self.state, envelope)


def _apply(state: WorkflowState, event: Envelope) -> None:
    if event.node_name == INFRASTRUCTURE_STEP:
        return
    kind = event.event.event_type
    if (on_run := _RUN_RULES.get(kind)) is not None:
        on_run(state, event)
    elif (on_step := _STEP_RULES.get(kind)) is not None and event.node_name is not None:
        on_step(state.step(event.node_name), event)


def _playbook_started(state: WorkflowState, event: Envelope) -> None:
    state.state = RunState.IN_PROGRESS
    state.started_at = event.timestamp
    state.parent_execution_id = event.event.parent_execution_id
    workload = at(event.context, "workload")
    state.workload = state.workload if workload is ABSENT else workload
    state.path = _newer(text_at(event.context, "path"), state.path)
    state.version = _newer(text_at(event.context, "version"), state.version)


def _newer(given: str | None, kept: str | None) -> str | None:
    return kept if given is None else given


def _ended(terminal: RunState) -> Callable[[WorkflowState, Envelope], None]:
    def ended(state: WorkflowState, event: Envelope) -> None:
        state.state = terminal
        state.completed_at = event.timestamp

    return ended


def _ctx_updated(state: WorkflowState, event: Envelope) -> None:
    payload = at(event.result, "context")
    if payload is ABSENT:
        payload = event.context
    values = at(payload, "values")
    if isinstance(values, dict):
        state.ctx.update(values)
    step, generation = text_at(payload, "step"), int_at(payload, "gen")
    if step is not None and generation is not None:
        state.ctx_set_marks[step] = generation


def _step_entered(step: StepInfo, event: Envelope) -> None:
    step.state = StepState.ENTERED
    step.entered_at = event.timestamp
    expected = event.dual_int("iterations_expected")
    if expected is not None:
        step.iterations_expected = expected
    if event.dual_bool("__cursor_loop"):
        step.is_cursor = True
        step.cursor_issued.clear()
        step.cursor_completed.clear()
        step.cursor_frames.clear()


def _step_skipped(step: StepInfo, event: Envelope) -> None:
    step.state = StepState.SKIPPED
    step.entered_at = step.completed_at = event.timestamp


def _command_issued(step: StepInfo, event: Envelope) -> None:
    step.state = StepState.COMMAND_ISSUED
    if step.is_iterator:
        step.iterations_dispatched += 1
    cursor, command = at(event.meta, "cursor"), event.command_id
    if cursor is ABSENT or command is None:
        return
    phase, number = text_at(cursor, "phase") or "", int_at(cursor, "frame") or 0
    if command not in step.cursor_issued:
        frame = step.frame(number)
        frame.body_issued += 1 if phase == "body" else 0
    step.cursor_issued[command] = (phase, number)


def _command_claimed(step: StepInfo, _event: Envelope) -> None:
    step.state = StepState.COMMAND_CLAIMED


def _command_started(step: StepInfo, event: Envelope) -> None:
    step.state = StepState.COMMAND_STARTED
    attempt = int_at(event.meta, "attempt")  # the table has no column of that name
    if attempt is not None:
        step.attempt = attempt


def _command_failed(step: StepInfo, event: Envelope) -> None:
    step.state = StepState.FAILED
    step.completed_at = event.timestamp
    step.pending_callback = False
    step.error = _newer(event.error, step.error)


def _command_completed(step: StepInfo, event: Envelope) -> None:
    """The four ways a completion can be meant, first that fits.  Source: spec 5.2."""
    if step.is_cursor and not event.dual_bool("__cursor_drained"):
        _cursor_command_completed(step, event)
    elif step.iterations_expected is not None:
        _iteration_completed(step, event, step.iterations_expected)
    elif event.is_parked:
        step.pending_callback = step.uses_callback = True
    else:
        _complete(step, event)
        # The payload came with call.done; this event carries only a status.
        if step.result is ABSENT:
            step.result = event.result


def _complete(step: StepInfo, event: Envelope) -> None:
    step.state = StepState.COMPLETED
    step.completed_at = event.timestamp
    step.completed_event_id = event.event.event_id


def _cursor_command_completed(step: StepInfo, event: Envelope) -> None:
    command = event.command_id
    if command is None or command not in step.cursor_issued or command in step.cursor_completed:
        return
    step.cursor_completed.add(command)
    phase, number = step.cursor_issued[command]
    # A command issued again for another frame may name one that was never opened.
    frame = step.frame(number)
    if phase == "claim":
        frame.claim_completed = True
    elif phase == "body":
        frame.body_completed += 1


def _iteration_completed(step: StepInfo, event: Envelope, expected: int) -> None:
    command = event.command_id
    if command is not None and command not in step.iteration_command_ids:
        step.iteration_command_ids.add(command)
        if event.result is not ABSENT:
            step.iteration_results.append(event.result)
    if step.iterations_completed >= expected:
        _complete(step, event)
        step.result = list(step.iteration_results)


def _call_done(step: StepInfo, event: Envelope) -> None:
    if step.is_cursor:
        _claim_answered(step, event)
        return
    if not step.is_iterator and event.result is not ABSENT:
        step.result = event.result
    if step.pending_callback:
        step.pending_callback = False
        _complete(step, event)


def _claim_answered(step: StepInfo, event: Envelope) -> None:
    command = event.command_id
    if command is None or command not in step.cursor_issued:
        return
    phase, number = step.cursor_issued[command]
    if phase != "claim":
        return
    frame = step.frame(number)
    rows = at(user_data(event.result), "rows")
    if isinstance(rows, list):
        frame.claim_rows = list(rows)
    elif (ref := reference(event.result)) is not None:
        frame.claim_ref = ref


_RUN_RULES: Final[dict[str, Callable[[WorkflowState, Envelope], None]]] = {
    "playbook_started": _playbook_started,  # this spelling only
    "playbook_completed": _ended(RunState.COMPLETED),
    "playbook.completed": _ended(RunState.COMPLETED),
    "playbook_failed": _ended(RunState.FAILED),
    "playbook.failed": _ended(RunState.FAILED),
    "playbook_cancelled": _ended(RunState.CANCELLED),
    "playbook.cancelled": _ended(RunState.CANCELLED),
    "ctx.updated": _ctx_updated,
}

_STEP_RULES: Final[dict[str, Callable[[StepInfo, Envelope], None]]] = {
    "step.enter": _step_entered,
    "step_enter": _step_entered,
    "step_started": _step_entered,
    "step.skipped": _step_skipped,
    "step_skipped": _step_skipped,
    "command.issued": _command_issued,
    "command.claimed": _command_claimed,
    "command.started": _command_started,
    "action_started": _command_started,
    "command.completed": _command_completed,
    "action_completed": _command_completed,
    "step.exit": _command_completed,
    "step_completed": _command_completed,
    "call.done": _call_done,
    "action_done": _call_done,
    "command.failed": _command_failed,
    "action_failed": _command_failed,
    "step_failed": _command_failed,  # the dotted spelling does nothing
}
