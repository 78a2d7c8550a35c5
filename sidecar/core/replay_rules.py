"""How one event moves each record of the replay projections.

Every function changes the record it is given and nothing else; which record that is, and
whether it is new, is decided in `core.replay`.

Source: spec 5.4 (per event).
"""

from __future__ import annotations

from typing import Final

from sidecar.core import identity
from sidecar.core.envelope import Envelope
from sidecar.core.jsonvalue import Json, at, text_at
from sidecar.core.projections import BusinessObject, Command, ExecutionView, Frame, Loop, Stage

_EXECUTION_STATUS: Final = {
    "playbook.completed": "COMPLETED",
    "playbook_completed": "COMPLETED",
    "workflow.completed": "COMPLETED",
    "execution.completed": "COMPLETED",
    "playbook.failed": "FAILED",
    "playbook_failed": "FAILED",
    "workflow.failed": "FAILED",
    "execution.failed": "FAILED",
    "playbook.cancelled": "CANCELLED",
    "playbook_cancelled": "CANCELLED",
}
_ENTERS: Final = frozenset({"step.enter", "step_enter", "step_started"})
_LEAVES: Final = frozenset({"step.exit", "step_completed", "command.completed"})
_COMMAND_ENDS: Final = {
    "command.completed": "COMPLETED",
    "command.failed": "FAILED",
    "command.cancelled": "CANCELLED",
}


class Reading:
    """One event with the identities that several projections ask for."""

    __slots__ = (
        "command_id",
        "envelope",
        "event_id",
        "event_type",
        "frame_id",
        "meta",
        "node_name",
        "payload_ref",
        "stage_id",
        "status",
    )

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        self.event_id = envelope.event.event_id
        self.event_type = envelope.event.event_type
        self.meta = envelope.meta
        self.node_name = envelope.node_name
        self.status = text_at(envelope.body, "status")
        self.stage_id = identity.stage_id(envelope)
        self.frame_id = identity.frame_id(envelope)
        self.command_id = identity.command_id(envelope)
        self.payload_ref = identity.payload_reference(envelope)


def move_execution(view: ExecutionView, read: Reading) -> None:
    view.status = _EXECUTION_STATUS.get(read.event_type, view.status)
    if read.event_type in _ENTERS and view.status == "UNKNOWN":
        view.status = "RUNNING"
    if read.event_type in _ENTERS | _LEAVES and read.node_name is not None:
        view.last_node_name = read.node_name
    if read.payload_ref is not None:
        view.payload_refs.append({"event_id": read.event_id, "reference": read.payload_ref})


def move_stage(stage: Stage, read: Reading) -> None:
    stage.last_event_id = read.event_id
    if read.event_type == "stage.opened":
        stage.status = "OPEN"
        stage.opened_event_id = read.event_id
    elif read.event_type == "stage.closed":
        stage.status = read.status or "CLOSED"
        stage.closed_event_id = read.event_id


def move_frame(frame: Frame, read: Reading) -> None:
    frame.last_event_id = read.event_id
    frame.stage_id = read.stage_id or frame.stage_id
    frame.command_id = read.command_id or frame.command_id
    match read.event_type:
        case "frame.dispatched":
            frame.status = "CLAIMED"
            frame.claimed_event_id = read.event_id
            frame.attempts = max(frame.attempts, _whole(at(read.meta, "attempt")) or 1)
        case "frame.started":
            frame.status = "RUNNING"
        case "frame.committed":
            frame.row_count = _else(_whole(at(read.meta, "row_count")), frame.row_count)
            _frame_ended(frame, read, "COMPLETED")
        case "frame.failed":
            _frame_ended(frame, read, "FAILED")
        case "frame.abandoned":
            frame.status = read.status or "ABANDONED"
        case _:
            frame.status = read.status or frame.status


def move_command(command: Command, read: Reading) -> None:
    command.last_event_id = read.event_id
    command.stage_id = read.stage_id or command.stage_id
    command.frame_id = read.frame_id or command.frame_id
    command.worker_id = text_at(read.envelope.body, "worker_id") or command.worker_id
    match read.event_type:
        case "command.issued":
            command.status = "PENDING"
            command.issued_event_id = read.event_id
        case "command.claimed":
            command.status = "CLAIMED"
            command.claimed_event_id = read.event_id
        case "command.started":
            command.status = "RUNNING"
            command.started_event_id = read.event_id
        case ended if ended in _COMMAND_ENDS:
            command.status = read.status or _COMMAND_ENDS[ended]
            command.terminal_event_id = read.event_id
        case other if other.startswith("command."):
            command.status = read.status or command.status


def move_object(found: BusinessObject, read: Reading) -> None:
    found.last_event_id = read.event_id
    found.last_event_type = read.event_type
    found.event_count += 1
    said = at(read.meta, "business_object")
    version = at(said, "version") or at(read.meta, "business_object_version")
    found.version = _whole(version) or found.event_count
    status = _object_status(read)
    found.status = status or found.status
    if status == "DELETED":
        found.deleted_event_id = read.event_id
    _merge_attributes(found, said)
    if read.payload_ref is not None:
        summary = identity.payload_summary(read.payload_ref)
        entry: Json = {"event_id": read.event_id, "reference": read.payload_ref, "summary": summary}
        found.payload_refs.append(entry)
        found.last_payload_ref = entry


def move_loop(loop: Loop, read: Reading) -> None:
    loop.last_event_id = read.event_id
    match read.event_type:
        case "command.completed" | "loop.shard.done":
            loop.done += 1
        case "command.failed" | "loop.shard.failed":
            loop.failed += 1
        case "loop.done" | "loop.fanin.completed":
            loop.completed = True


def _frame_ended(frame: Frame, read: Reading, status: str) -> None:
    frame.status = read.status or status
    frame.events_emitted = _else(_whole(at(read.meta, "events_emitted")), frame.events_emitted)
    frame.terminal_event_id = read.event_id
    frame.output_ref = read.payload_ref
    frame.output_ref_summary = identity.payload_summary(read.payload_ref)


def _object_status(read: Reading) -> str | None:
    """What the event says, else what its type's ending means."""
    if read.status:
        return read.status
    kind = read.event_type.lower()
    if kind.endswith((".deleted", ".removed")):
        return "DELETED"
    return "ACTIVE" if kind.endswith((".created", ".updated", ".upserted")) else None


def _merge_attributes(found: BusinessObject, said: Json) -> None:
    state = at(said, "state")
    if isinstance(state, dict):
        found.attributes = dict(state)
    patch = at(said, "patch") or at(said, "attributes")
    if isinstance(patch, dict):
        found.attributes.update(patch)


def _whole(value: Json) -> int | None:
    """An integer, spelled as one or as text of its digits."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return None


def _else(value: int | None, kept: int) -> int:
    return kept if value is None else value
