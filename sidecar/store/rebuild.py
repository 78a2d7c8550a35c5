"""One partition anew from the log, with what stood there kept as evidence.

The way back from a second writer, a lost log and a damaged record.  One complete log read is
judged first; only one that populates an empty partition empties this one, and everything is one
transaction.  What stood there becomes a finding: the record as it was, each row by its hash,
and the bodies that the log does not hold, as far as they fit.  A label or a revocation ends,
and the partition becomes due.  Source: spec 3.4 step 3.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from sidecar.core.authority import Partition, StoredEvent
from sidecar.core.due import Due
from sidecar.core.event import Event
from sidecar.core.links import order_by_links
from sidecar.core.populate import InSync, LogRead, Outcome, plan
from sidecar.core.ports import ExecutionLog
from sidecar.errors import Invalid
from sidecar.store.rows import PARTITION_COLUMNS
from sidecar.store.unit import SqliteUnit

BODIES_MAX_BYTES: Final = 1024 * 1024
"""Of bodies in one finding; what is longer stands there by hash and length."""

_RECORD: Final = f"SELECT {PARTITION_COLUMNS} FROM partition WHERE execution_id = ?"
_EMPTY: Final = ("DELETE FROM event WHERE execution_id = ?", "DELETE FROM rejoin WHERE execution_id = ?")
_KEEP: Final = (
    "INSERT INTO finding (execution_id, verdict, detail, evidence, found_at, resolved_at)"
    " VALUES (?1, 'rebuilt', ?2, ?3, ?4, ?4)"
)
_BARS: Final = ("labelled_at", "revoked_at")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild came to.  `outcome`: InSync, or why nothing was changed.

    `kept`: rows that stood there and are evidence now.  `rows`: rows that stand there now.
    """

    outcome: Outcome
    kept: int
    rows: int


async def rebuild(unit: SqliteUnit, log: ExecutionLog, events: Sequence[Event], now: int) -> Rebuilt:
    """Populate the partition of `log` anew; refused, it stays as it is.

    Args:
        events: The events of `log`, known to be complete.

    Raises:
        Invalid: the store holds nothing of the execution, or the read is too old to end a bar.
    """
    e = log.execution_id
    record = await _record(unit, e)
    stored = await unit.chain(e)
    if not record and not stored:
        raise Invalid(f"the store holds nothing of execution {e}")
    if any(bar is not None and log.read.began_at <= bar for bar in map(record.get, _BARS)):
        raise Invalid(f"the log of execution {e} was read before the partition was barred: read it again")
    first_seen_at = record.get("first_seen_at")
    outcome = plan((), order_by_links(events), delivered=bool(stored) or first_seen_at is not None)
    if not isinstance(outcome, InSync):
        return Rebuilt(outcome, 0, len(stored))
    await _keep(unit, e, record, stored, events, now)
    for statement in _EMPTY:
        await unit.rows(statement, (e,))
    kinds = str(record.get("counted_kinds") or "")
    fresh = Partition(
        e,
        rows_seen=len(events),
        counted_kinds=frozenset(kinds.split(",")) if kinds else frozenset(),
        first_seen_at=first_seen_at,
    )
    unit.put_partition(fresh)
    done = (await unit.populate((log,)))[e]
    unit.put_due(_due((await unit.due((e,))).get(e), e, log.read, now))
    if log.read.epoch is not None:  # `seen_at` of a row says something only beside it
        await unit.see_epoch(log.read.epoch, log.read.began_at)
    return Rebuilt(done.outcome, len(stored), len(events))


async def _record(unit: SqliteUnit, execution_id: int) -> dict[str, Any]:
    """The record by column, empty without one: a malformed watermark is what a rebuild is for."""
    found = await unit.rows(_RECORD, (execution_id,))
    return dict(zip(PARTITION_COLUMNS.split(", "), found[0], strict=True)) if found else {}


def _due(before: Due | None, execution_id: int, read: LogRead, now: int) -> Due:
    came = before is not None and before.last_row_at is not None and before.last_row_at > read.began_at
    return Due(execution_id, due_at=now, first_seen_at=now, reread=now if came else None)


async def _keep(
    unit: SqliteUnit,
    execution_id: int,
    record: Mapping[str, Any],
    stored: Sequence[StoredEvent],
    events: Sequence[Event],
    now: int,
) -> None:
    evidence = {"partition": _texts(record), "rows": list(_rows(stored, events))}
    before = record.get("verdict") or "unjudged"
    text = json.dumps(evidence, ensure_ascii=False, separators=(",", ":"))
    await unit.rows(_KEEP, (execution_id, f"verdict before: {before}", text, now))


def _rows(stored: Sequence[StoredEvent], events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    """Every row by place and hash; the bodies that the log does not hold while there is room."""
    log = set(events)
    room = BODIES_MAX_BYTES
    for row in stored:
        event, body = row.event, row.event.body.encode()
        told = {
            "exec_seq": row.exec_seq,
            "event_id": str(event.event_id),
            "prev_event_id": None if event.prev_event_id is None else str(event.prev_event_id),
            "event_type": event.event_type,
            "origin": row.origin,
            "seen_at": row.seen_at,
            "bytes": len(body),
            "sha256": sha256(body).hexdigest(),
        }
        if event not in log and len(body) <= room:
            room -= len(body)
            told["body"] = event.body
        yield told


def _texts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Ids as decimal texts: a JSON number may lose their last digits."""
    return {
        name: str(value) if value is not None and (name.endswith("_id") or name == "cov_root") else value
        for name, value in record.items()
    }
