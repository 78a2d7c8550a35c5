"""Events for folds, told in a few words: a chain whose bodies are canonical."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from sidecar.core.body import JSONB_COLUMNS, canonical_body
from sidecar.core.event import Event
from sidecar.core.jsonvalue import Number
from sidecar.core.state import WorkflowState
from sidecar.core.workflow import fold
from tests.support.changing import replace

EXECUTION = 385795318182055936
CATALOG = 771590063237890065

DEEP = 20_000
"""Levels of nesting that no recursive parser takes."""

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
DECIMALS = st.decimals(-999, 999, places=3).map(lambda number: Number(f"{number:f}"))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | DECIMALS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
"""JSON values as the folds hold them."""


class Tale:
    """Events of one execution, each linked to the one before; ids go down, so no sort can help."""

    def __init__(self, first_id: int = 900_000) -> None:
        self.events: list[Event] = []
        self._next = first_id

    def tell(self, event_type: str, node: str | None = None, **columns: Any) -> Event:
        """Add an event.  `context`, `result`, `meta`, `payload_ref` are values; None is SQL NULL."""
        self._next -= 7
        parent = columns.pop("parent_execution_id", None)
        prev = self.events[-1].event_id if self.events else None
        row: dict[str, Any] = {
            "execution_id": EXECUTION,
            "catalog_id": CATALOG,
            "event_id": self._next,
            "prev_event_id": prev,
            "parent_execution_id": parent,
            "event_type": event_type,
            "node_name": node,
            "created_at": time_of(len(self.events)),
            **columns,
        }
        for key in JSONB_COLUMNS & row.keys():
            row[key] = None if row[key] is None else json.dumps(row[key])
        event = Event(EXECUTION, self._next, prev, parent, event_type, canonical_body(row))
        self.events.append(event)
        return event

    def completes(self, node: str, command: str | None, **result: Any) -> Event:
        """A command.completed as workers send it."""
        context = {**result, "command_id": command} if command else result
        return self.tell("command.completed", node, result={"status": "ok", "context": context})

    @property
    def state(self) -> WorkflowState:
        folded = fold(self.events)
        assert folded is not None
        return folded


def with_raw(event: Event, raw: str) -> Event:
    """The event with `raw` where its body says "HERE"."""
    return replace(event, body=event.body.replace('"HERE"', raw))


def time_of(index: int) -> str:
    """The timestamp of the event at `index`."""
    return f"2026-11-30T12:00:{index:02d}.5"
