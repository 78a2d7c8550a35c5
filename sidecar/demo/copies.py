"""Executions for planted faults: a recorded one under fresh ids.

The bodies are a real engine's; the ids are minted now, in the layout of the engine, so that
they are greater than 2^53 and fall into the partition of today.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from typing import Any, Final

from sidecar.core.event import Event
from sidecar.core.links import Ordered, order_by_links
from sidecar.demo.recording import Recording
from sidecar.errors import InvariantError

EPOCH_MS: Final = 1_704_067_200_000
MACHINE: Final = 1023
"""The machine number in the ids; the recorded engines have others."""

ROWS: Final = 8
"""How many rows a copy has: enough to have a middle."""

DROPPED_KEYS: Final = frozenset({"created_at", "event_time", "ingest_time"})
"""A copy takes these from the server: it happens now."""

Row = dict[str, Any]


class Mint:
    """Fresh ids, each greater than the one before.  Source: spec 1.2."""

    def __init__(self, now_ms: int | None = None) -> None:
        ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        first = (ms - EPOCH_MS) << 22 | MACHINE << 12
        self._ids = itertools.count(first)

    def __call__(self) -> int:
        return next(self._ids)


def template(recording: Recording) -> tuple[Row, ...]:
    """The first `ROWS` rows, in link order, of the recording's smallest clean execution with as many."""
    for execution in _by_size(recording):
        rows = [
            json.loads(row.text)
            for each in recording.transactions
            for row in each.rows
            if row.execution_id == execution
        ]
        ordered = order_by_links(_event(row) for row in rows)
        if isinstance(ordered, Ordered):
            by_id = {row["event_id"]: row for row in rows}
            return tuple(by_id[event.event_id] for event in ordered.events[:ROWS])
    raise InvariantError("no clean execution to copy")


def copy(rows: Sequence[Row], mint: Mint, execution_id: int | None = None) -> list[Row]:
    """The rows as another execution; each names the one before it, the first none."""
    execution = mint() if execution_id is None else execution_id
    fresh: list[Row] = []
    for row in rows:
        prev = fresh[-1]["event_id"] if fresh else None
        kept = {key: value for key, value in row.items() if key not in DROPPED_KEYS}
        fresh.append(
            kept
            | {
                "execution_id": execution,
                "event_id": mint(),
                "prev_event_id": prev,
                "parent_event_id": prev,
                "parent_execution_id": None,
            }
        )
    return fresh


def _by_size(recording: Recording) -> list[int]:
    sizes: dict[int, int] = {}
    for each in recording.transactions:
        for row in each.rows:
            sizes[row.execution_id] = sizes.get(row.execution_id, 0) + 1
    return sorted((each for each in sizes if sizes[each] >= ROWS), key=lambda each: (sizes[each], each))


def _event(row: Row) -> Event:
    return Event(row["execution_id"], row["event_id"], row["prev_event_id"], None, row["event_type"], "")
