"""Recorded rows as chain events, no number changed on the way."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

from sidecar.core.body import JSONB_COLUMNS, canonical_body
from sidecar.core.event import Event
from sidecar.core.jsonvalue import parsed, rendered, text_at
from sidecar.core.links import Ordered, order_by_links
from tests.support.recorded import RecordedSet


@lru_cache(maxsize=3)  # a set takes seconds to render
def ordered_chains(recorded: RecordedSet) -> dict[int, tuple[Event, ...]]:
    """Each execution of the set whose links are one path, in link order."""
    orders = {execution: order_by_links(events) for execution, events in rows_by_execution(recorded).items()}
    return {execution: order.events for execution, order in orders.items() if isinstance(order, Ordered)}


def rows_by_execution(recorded: RecordedSet) -> dict[int, list[Event]]:
    """Each execution of the set, its rows as they lie on the disk."""
    rows: defaultdict[int, list[Event]] = defaultdict(list)
    for line in recorded.lines():
        event = event_of(line)
        rows[event.execution_id].append(event)
    return rows


def event_of(line: str) -> Event:
    """The event of one recorded row."""
    row = parsed(line) or {}
    for column in JSONB_COLUMNS & row.keys():
        if row[column] is not None:
            row[column] = rendered(row[column]).decode()
    return Event(
        _id(row["execution_id"]) or 0,
        _id(row["event_id"]) or 0,
        _id(row["prev_event_id"]),
        _id(row["parent_execution_id"]),
        text_at(row, "event_type") or "",
        canonical_body(row),
    )


def _id(value: object) -> int | None:
    return value if isinstance(value, int) else None
