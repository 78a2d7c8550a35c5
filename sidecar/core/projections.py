"""What the replay fold keeps: the records of its six projections, and their JSON.

A field that is ABSENT was never set and is left out; None is printed as null.  Ids of stages,
frames, commands and loops are text, ids of events are numbers.

Source: spec 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from sidecar.core.jsonvalue import ABSENT, Absent, Json


@dataclass(slots=True)
class ExecutionView:
    """The execution as a whole; `payload_refs` are {event_id, reference} in order."""

    status: str = "UNKNOWN"
    last_node_name: str | None = None
    payload_refs: list[Json] = field(default_factory=list)


@dataclass(slots=True)
class Stage:
    """One stage.  What the first event says of kind and step stays; nothing moves the counters."""

    stage_id: str
    kind: Json
    step_name: Json
    last_event_id: int
    status: str = "UNKNOWN"
    frame_count: int = 0
    row_count: int = 0
    events_emitted: int = 0
    failed_count: int = 0
    opened_event_id: int | Absent = ABSENT
    closed_event_id: int | Absent = ABSENT


@dataclass(slots=True)
class Frame:
    """One frame of a stage."""

    frame_id: str
    stage_id: str | None
    last_event_id: int
    status: str = "UNKNOWN"
    row_count: int = 0
    attempts: int = 0
    events_emitted: int = 0
    command_id: str | Absent = ABSENT
    claimed_event_id: int | Absent = ABSENT
    terminal_event_id: int | Absent = ABSENT
    output_ref: Json = ABSENT
    output_ref_summary: Json = ABSENT


@dataclass(slots=True)
class Command:
    """One command."""

    command_id: str
    last_event_id: int
    status: str = "UNKNOWN"
    stage_id: str | Absent = ABSENT
    frame_id: str | Absent = ABSENT
    worker_id: str | Absent = ABSENT
    issued_event_id: int | Absent = ABSENT
    claimed_event_id: int | Absent = ABSENT
    started_event_id: int | Absent = ABSENT
    terminal_event_id: int | Absent = ABSENT


@dataclass(slots=True)
class BusinessObject:
    """One object of the business; `payload_refs` are {event_id, reference, summary} in order."""

    object_key: str
    object_type: str
    object_id: str
    first_event_id: int
    last_event_id: int
    last_event_type: str
    status: str = "UNKNOWN"
    version: int = 0
    event_count: int = 0
    deleted_event_id: int | None = None
    last_payload_ref: Json = None
    payload_refs: list[Json] = field(default_factory=list)
    attributes: dict[str, Json] = field(default_factory=dict)


@dataclass(slots=True)
class Loop:
    """One loop.  `total` is what its first event says."""

    loop_id: str
    step_name: str | None
    total: Json
    last_event_id: int
    done: int = 0
    failed: int = 0
    completed: bool = False


Record = ExecutionView | Stage | Frame | Command | BusinessObject | Loop


def record_document(record: Record) -> dict[str, Json]:
    """The record as JSON values."""
    pairs = ((item.name, getattr(record, item.name)) for item in fields(record))
    return {name: value for name, value in pairs if value is not ABSENT}
