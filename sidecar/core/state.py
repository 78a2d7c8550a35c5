"""The state of a workflow: what a fold over its events holds.

Plain mutable records and the words for their states; the rules that move them are in
`core.workflow`.  Every field and default is of spec 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sidecar.core.jsonvalue import ABSENT, Json


class RunState(StrEnum):
    """How far an execution is."""

    INITIAL = "initial"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)

    @classmethod
    def named(cls, text: str) -> RunState:
        """The state an upstream spelling means, in any case; an unknown one is INITIAL.

        Source: spec 5.3.
        """
        return _SPELLINGS.get(text.lower(), cls.INITIAL)


_SPELLINGS: Final = {
    "initial": RunState.INITIAL,
    "pending": RunState.INITIAL,
    "in_progress": RunState.IN_PROGRESS,
    "running": RunState.IN_PROGRESS,
    "completed": RunState.COMPLETED,
    "success": RunState.COMPLETED,
    "failed": RunState.FAILED,
    "error": RunState.FAILED,
    "cancelled": RunState.CANCELLED,
    "canceled": RunState.CANCELLED,
}


class StepState(StrEnum):
    """How far a step is."""

    PENDING = "pending"
    ENTERED = "entered"
    COMMAND_ISSUED = "command_issued"
    COMMAND_CLAIMED = "command_claimed"
    COMMAND_STARTED = "command_started"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(slots=True)
class CursorFrame:
    """One round of a cursor loop: a claim that takes rows, and a body command for each of them."""

    claim_completed: bool = False
    claim_rows: list[Json] = field(default_factory=list)
    body_issued: int = 0
    body_completed: int = 0
    claim_ref: str | None = None


@dataclass(slots=True)
class StepInfo:
    """One step.  Times are the canonical text of the body; `result` is ABSENT until there is one."""

    name: str
    state: StepState = StepState.PENDING
    result: Json = ABSENT
    error: str | None = None
    entered_at: str | None = None
    completed_at: str | None = None
    completed_event_id: int | None = None
    attempt: int = 0
    pending_callback: bool = False
    uses_callback: bool = False
    iterations_expected: int | None = None
    iteration_command_ids: set[str] = field(default_factory=set)
    iteration_results: list[Json] = field(default_factory=list)
    iterations_dispatched: int = 0
    is_cursor: bool = False
    cursor_issued: dict[str, tuple[str, int]] = field(default_factory=dict)
    cursor_completed: set[str] = field(default_factory=set)
    cursor_frames: dict[int, CursorFrame] = field(default_factory=dict)

    @property
    def is_iterator(self) -> bool:
        return self.iterations_expected is not None

    @property
    def iterations_completed(self) -> int:
        return len(self.iteration_command_ids)

    @property
    def is_done(self) -> bool:
        """Nothing more is awaited of it, whether it went well or not."""
        return self.state in (StepState.COMPLETED, StepState.FAILED, StepState.SKIPPED)

    @property
    def is_completed(self) -> bool:
        return self.state is StepState.COMPLETED

    def frame(self, number: int) -> CursorFrame:
        """The frame of this number, made when it is not there."""
        return self.cursor_frames.setdefault(number, CursorFrame())


@dataclass(slots=True)
class WorkflowState:
    """One execution.  `workload` is ABSENT until a start event names one, which may be null."""

    execution_id: int
    catalog_id: int
    state: RunState = RunState.INITIAL
    steps: dict[str, StepInfo] = field(default_factory=dict)
    ctx: dict[str, Json] = field(default_factory=dict)
    ctx_set_marks: dict[str, int] = field(default_factory=dict)
    workload: Json = ABSENT
    path: str | None = None
    version: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    parent_execution_id: int | None = None

    def step(self, name: str) -> StepInfo:
        """The step of this name, made pending when it is not there."""
        found = self.steps.get(name)
        if found is None:
            found = self.steps[name] = StepInfo(name)
        return found
