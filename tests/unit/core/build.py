"""Small events, chains, pools and partitions for the tests of the pure core."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sidecar.core.authority import Coverage, Partition, StoredEvent, Watermark
from sidecar.core.event import Event
from sidecar.core.horizon import TailRow

E = 7
EPOCH = "epoch-1"
OLD_EPOCH = "epoch-0"


def ev(
    event_id: int,
    prev: int | None = None,
    *,
    parent: int | None = None,
    kind: str = "step.exit",
    note: str = "",
    execution_id: int = E,
) -> Event:
    """One event; `note` makes the body another one."""
    body = f'{{"event_id":{event_id},"note":"{note}"}}'
    return Event(execution_id, event_id, prev, parent, kind, body)


def chain(*ids: int) -> tuple[Event, ...]:
    """Events in link order, each naming the one before it."""
    return tuple(ev(event_id, prev) for event_id, prev in zip(ids, (None, *ids), strict=False))


def placed(
    events: Iterable[Event], *, origin: str | None = "log", at: int | None = 0
) -> tuple[StoredEvent, ...]:
    return tuple(StoredEvent(seq, event, origin, at) for seq, event in enumerate(events, start=1))


def by_id(stored: Iterable[StoredEvent]) -> dict[int, StoredEvent]:
    return {row.event.event_id: row for row in stored}


def tail(event: Event, *, epoch: str = EPOCH, anchor: int | None = 500, at: int = 0) -> TailRow:
    return TailRow(event, xmin=400, xid=None, epoch=epoch, anchor=anchor, seen_at=at)


def pool_of(*events: Event, epoch: str = EPOCH) -> dict[int, TailRow]:
    return {event.event_id: tail(event, epoch=epoch) for event in events}


def covered(events: Sequence[Event], **changes: Any) -> Partition:
    """The record of a partition that holds `events` and is served, with `changes`."""
    total = len(events)
    fields: dict[str, Any] = {
        "head_seq": total,
        "head_event_id": events[-1].event_id if events else None,
        "watermark": Watermark(1 if events else 0, total),
        "coverage": Coverage(events[0].event_id if events else None, total),
        "head_anchor": 100,
        "head_epoch": EPOCH,
        "first_seen_at": 0,
        **changes,
    }
    return Partition(E, **fields)
