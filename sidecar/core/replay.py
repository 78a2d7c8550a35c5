"""The replay fold: events in link order -> six projections for people and reports.

Execution, stages, frames, commands, business objects, loops.  The engine's own replay sorts by
event id; here the order is the caller's, which is link order.  Where the two servers of the
engine differ, this follows the one whose output is the published expectation: it knows
workflow.* and execution.* terminals and adds no summary to the execution's payload references.

An event whose body cannot be read changes nothing and is named in `unreadable`.  Nothing raises.

Source: spec 5.4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from sidecar.core import identity
from sidecar.core import replay_rules as rules
from sidecar.core.envelope import opened
from sidecar.core.event import Event
from sidecar.core.identity import ObjectIdentity
from sidecar.core.jsonvalue import ABSENT, Json, at, rendered
from sidecar.core.projections import (
    BusinessObject,
    Command,
    ExecutionView,
    Frame,
    Loop,
    Record,
    Stage,
    record_document,
)
from sidecar.core.replay_rules import Reading

PROJECTIONS: Final = ("execution", "stages", "frames", "commands", "business_objects", "loops")


class Replay:
    """The six projections, able to take further events in link order."""

    __slots__ = (
        "business_objects",
        "commands",
        "event_count",
        "execution",
        "frames",
        "last_event_id",
        "last_event_type",
        "loops",
        "stages",
        "unreadable",
    )

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.event_count = 0
        self.last_event_id: int | None = None
        self.last_event_type: str | None = None
        self.execution = ExecutionView()
        self.stages: dict[str, Stage] = {}
        self.frames: dict[str, Frame] = {}
        self.commands: dict[str, Command] = {}
        self.business_objects: dict[str, BusinessObject] = {}
        self.loops: dict[str, Loop] = {}
        self.unreadable: tuple[int, ...] = ()
        self.absorb(events)

    def absorb(self, events: Iterable[Event]) -> None:
        """Apply the events that follow those already absorbed, in link order."""
        for event in events:
            envelope = opened(event)
            if envelope is None:
                self.unreadable += (event.event_id,)
            else:
                self._apply(Reading(envelope))

    def document(self) -> dict[str, Json]:
        """All projections as JSON values."""
        return {
            "event_count": self.event_count,
            "last_event_id": self.last_event_id,
            "last_event_type": self.last_event_type,
            "execution": record_document(self.execution),
            "stages": _documents(self.stages),
            "frames": _documents(self.frames),
            "commands": _documents(self.commands),
            "business_objects": _documents(self.business_objects),
            "loops": _documents(self.loops),
        }

    def checksums(self) -> dict[str, str]:
        """SHA-256 in hex of each projection's canonical JSON, and of all under `overall`."""
        whole = self.document()
        return {name: checksum(whole[name]) for name in PROJECTIONS} | {"overall": checksum(whole)}

    def _apply(self, read: Reading) -> None:
        self.event_count += 1
        self.last_event_id = read.event_id
        self.last_event_type = read.event_type
        rules.move_execution(self.execution, read)
        if read.stage_id is not None:
            rules.move_stage(self._stage(read, read.stage_id), read)
        if read.frame_id is not None:
            frame = Frame(read.frame_id, read.stage_id, read.event_id)
            rules.move_frame(self.frames.setdefault(read.frame_id, frame), read)
        if read.command_id is not None:
            command = Command(read.command_id, read.event_id)
            rules.move_command(self.commands.setdefault(read.command_id, command), read)
        if (named := identity.business_object(read.envelope)) is not None:
            rules.move_object(self._business_object(read, named), read)
        if (loop_id := identity.loop_id(read.envelope)) is not None:
            rules.move_loop(self._loop(read, loop_id), read)

    def _stage(self, read: Reading, stage_id: str) -> Stage:
        if stage_id not in self.stages:
            step_name = at(read.meta, "step_name") or read.node_name
            kind = _null(at(read.meta, "kind"))
            self.stages[stage_id] = Stage(stage_id, kind, step_name, read.event_id)
        return self.stages[stage_id]

    def _business_object(self, read: Reading, named: ObjectIdentity) -> BusinessObject:
        if named.key not in self.business_objects:
            self.business_objects[named.key] = BusinessObject(
                named.key,
                named.object_type,
                named.object_id,
                first_event_id=read.event_id,
                last_event_id=read.event_id,
                last_event_type=read.event_type,
            )
        return self.business_objects[named.key]

    def _loop(self, read: Reading, loop_id: str) -> Loop:
        if loop_id not in self.loops:
            total = _null(at(read.meta, "collection_size") or at(read.meta, "total"))
            self.loops[loop_id] = Loop(loop_id, read.node_name, total, read.event_id)
        return self.loops[loop_id]


def checksum(value: Json) -> str:
    """SHA-256 in hex of the canonical JSON of `value`."""
    return hashlib.sha256(rendered(value)).hexdigest()


def _null(value: Json) -> Json:
    return None if value is ABSENT else value


def _documents(records: Mapping[str, Record]) -> dict[str, Json]:
    return {key: record_document(record) for key, record in records.items()}
