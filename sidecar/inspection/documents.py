"""What store and log hold of one execution, as JSON values: one builder for command and API.

Ids are decimal strings: a JSON number may lose their last digits.  Nothing here shows a body,
except the evidence of a finding where that is asked for by name.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sidecar.core.authority import Partition
from sidecar.core.due import Due
from sidecar.core.links import order_by_links
from sidecar.core.picture import Node, Picture
from sidecar.core.ports import ExecutionLog
from sidecar.store.findings import Kept

Document = dict[str, Any]


def time(at: int | None) -> str | None:
    """Microseconds since 1970 as an ISO 8601 time in UTC; None where there is none or no such year."""
    if at is None:
        return None
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).isoformat(
            timespec="microseconds"
        )
    except OverflowError:
        return None


def summary(partition: Partition) -> Document:
    """One line of a list of executions."""
    return {
        "execution_id": str(partition.execution_id),
        "parent_execution_id": text(partition.parent_execution_id),
        "verdict": partition.verdict,
        "verdict_at": time(partition.verdict_at),
        "rows_seen": partition.rows_seen,
        "rows_stored": partition.head_seq,
        "rows_held": partition.held,
        "terminal": partition.terminal,
        "label": partition.label,
        "revoked_reason": partition.revoked_reason,
        "first_seen_at": time(partition.first_seen_at),
        "last_change_at": time(partition.last_change_at),
    }


def record(partition: Partition) -> Document:
    """Everything the store records of one execution beside its events."""
    mark, cover = partition.watermark, partition.coverage
    return {
        **summary(partition),
        "head_event_id": text(partition.head_event_id),
        "watermark": None if mark is None else {"first": mark.first, "through": mark.through},
        "coverage": None
        if cover is None
        else {"root_event_id": text(cover.root_event_id), "total": cover.total},
        "labelled_at": time(partition.labelled_at),
        "revoked_at": time(partition.revoked_at),
        "verdict_rows": partition.verdict_rows,
        "counted_kinds": sorted(partition.counted_kinds),
    }


def due(entry: Due) -> Document:
    """An entry of the work list."""
    return {
        "due_at": time(entry.due_at),
        "reasons": [
            name
            for name in ("reread", "changed", "labelled", "terminal_seen")
            if getattr(entry, name) is not None
        ],
        "pending_key": entry.pending_key,
        "pending_since": time(entry.pending_since),
        "tries": entry.tries,
    }


def finding(kept: Kept) -> Document:
    """A finding without its evidence."""
    return {
        "finding_id": str(kept.finding_id),
        "execution_id": str(kept.execution_id),
        "verdict": kept.verdict,
        "kind": kept.kind,
        "position": kept.position,
        "detail": kept.detail,
        "log_event": kept.log_event,
        "store_event": kept.store_event,
        "open": kept.is_open,
        "found_at": time(kept.found_at),
        "resolved_at": time(kept.resolved_at),
        "acknowledged_at": time(kept.acknowledged_at),
        "acknowledged_why": kept.acknowledged_why,
    }


def without_bodies(evidence: Any) -> Any:
    """Evidence as those may see it who have no token: places, ids, lengths and hashes."""
    if isinstance(evidence, dict):
        return {key: without_bodies(value) for key, value in evidence.items() if key != "body"}
    return [without_bodies(each) for each in evidence] if isinstance(evidence, list) else evidence


def log_side(log: ExecutionLog) -> Document:
    """What one read of the log came to; `rows` is None where it reached the limit."""
    events = log.events
    return {
        "rows": None if events is None else len(events),
        "truncated": events is None,
        "order": None if events is None else order_by_links(events).label,
        "epoch": log.read.epoch,
    }


def drawing(drawn: Picture) -> Document:
    """Events and what is irregular among them; an edge is an event's `prev_event_id`."""
    return {
        "roots": [str(each) for each in drawn.roots],
        "gaps": [{"missing": str(at), "named_by": [str(i) for i in each]} for at, each in drawn.gaps],
        "forks": [{"event_id": str(at), "successors": [str(i) for i in each]} for at, each in drawn.forks],
        "duplicates": [str(each) for each in drawn.duplicates],
        "circles": [str(each) for each in drawn.circles],
        "nodes": [node(each) for each in drawn.nodes],
    }


def node(drawn: Node) -> Document:
    """One event of a picture."""
    return {
        "event_id": str(drawn.event_id),
        "prev_event_id": text(drawn.prev_event_id),
        "event_type": drawn.event_type,
        "name": drawn.name,
        "in_log": drawn.in_log,
        "in_store": drawn.in_store,
        "position": drawn.position,
        "differs": list(drawn.differs),
        "copies": drawn.copies,
        "terminal": drawn.terminal,
    }


def text(event_id: int | None) -> str | None:
    """An id as a decimal string."""
    return None if event_id is None else str(event_id)
