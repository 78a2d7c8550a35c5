"""The event: what the chain is made of.

Ids are 64-bit integers inside the program and decimal strings in every JSON.  An id says
who an event is, never where it stands: nothing in this program orders a chain by id.
"""

from __future__ import annotations

from typing import Final

import msgspec

ID_MIN: Final = -(2**63)
ID_MAX: Final = 2**63 - 1

TERMINAL_EVENT_TYPES: Final[frozenset[str]] = frozenset(
    {
        "playbook.completed",
        "playbook_completed",
        "playbook.failed",
        "playbook_failed",
        "playbook.cancelled",
        "playbook_cancelled",
        "execution.completed",
        "execution.failed",
        "execution.cancelled",
        "workflow.completed",
        "workflow.failed",
    }
)
"""Every spelling upstream uses for "this execution is over".  Source: spec 1.4."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One row of the log, as far as the chain needs it.

    `prev_event_id` is None at the root.  `body` is the canonical body: the text Postgres
    renders for the fixed column list (spec 4.2), never parsed and rendered again.

    A Struct, as every read makes these by the hundred: a frozen dataclass takes ten times as
    long to make.  It holds no container, so the garbage collector need not look at it.
    """

    execution_id: int
    event_id: int
    prev_event_id: int | None
    parent_execution_id: int | None
    event_type: str
    body: str

    @property
    def is_terminal(self) -> bool:
        return self.event_type in TERMINAL_EVENT_TYPES


def is_id(value: object) -> bool:
    """Whether `value` is a usable 64-bit id; a bool is not."""
    return type(value) is int and ID_MIN <= value <= ID_MAX
