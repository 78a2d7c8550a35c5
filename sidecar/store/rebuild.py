"""One partition anew from the log, with what stood there kept as evidence.

The way back from a second writer, a lost log and a damaged record.  One complete log read is
judged first; only one that populates an empty partition empties this one, and everything is one
transaction.  What stood there becomes a finding: the record as it was, each row by its hash,
and the bodies that the log does not hold, as far as they fit.  A label or a revocation ends,
and the partition becomes due.  Source: spec 3.4 step 3.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sidecar.core.authority import Partition, StoredEvent
from sidecar.core.due import Due
from sidecar.core.event import Event
from sidecar.core.evidence import REBUILT, Finding, Rows, side
from sidecar.core.populate import InSync, LogRead, Outcome, plan
from sidecar.core.ports import ExecutionLog
from sidecar.core.rejoin import Joined, chain_order
from sidecar.errors import Invalid
from sidecar.store import departure
from sidecar.store.findings import record as columns
from sidecar.store.rows import PARTITION_COLUMNS
from sidecar.store.unit import StoreUnit

_RECORD: Final = f"SELECT {PARTITION_COLUMNS} FROM partition WHERE execution_id = ?"
_EMPTY: Final = ("DELETE FROM event WHERE execution_id = ?",)
_FORGET: Final = ("DELETE FROM rejoin WHERE execution_id = ?",)
_BARS: Final = ("labelled_at", "revoked_at")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild came to.  `outcome`: InSync, or why nothing was changed.

    `kept`: rows that stood there and are evidence now.  `rows`: rows that stand there now.
    """

    outcome: Outcome
    kept: int
    rows: int


async def rebuild(unit: StoreUnit, log: ExecutionLog, events: Sequence[Event], now: int) -> Rebuilt:
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
    # What was proven of the log holds whatever the store has come to.
    order = chain_order(events, (await unit.joins((e,))).get(e, ()))
    outcome = plan((), order, delivered=bool(stored) or first_seen_at is not None)
    if not isinstance(outcome, InSync):
        return Rebuilt(outcome, 0, len(stored))
    await _keep(unit, log, record, stored, events, now)
    for statement in _EMPTY if isinstance(order, Joined) else (*_EMPTY, *_FORGET):
        await unit.rows(statement, (e,))
    await departure.note(unit, e, rebuilt=True, now=now)
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


async def _record(unit: StoreUnit, execution_id: int) -> dict[str, Any]:
    """The record by column, empty without one: a malformed watermark is what a rebuild is for."""
    found = await unit.rows(_RECORD, (execution_id,))
    return dict(zip(PARTITION_COLUMNS.split(", "), found[0], strict=True)) if found else {}


def _due(before: Due | None, execution_id: int, read: LogRead, now: int) -> Due:
    came = before is not None and before.last_row_at is not None and before.last_row_at > read.began_at
    return Due(execution_id, due_at=now, first_seen_at=now, reread=now if came else None)


async def _keep(
    unit: StoreUnit,
    log: ExecutionLog,
    record: Mapping[str, Any],
    stored: Sequence[StoredEvent],
    events: Sequence[Event],
    now: int,
) -> None:
    """Every row by place and hash; the bodies that the log does not hold while there is room."""
    known, rows = set(events), Rows()
    shown = (rows.stored(row, bodies=row.event not in known) for row in stored)
    evidence: dict[str, Any] = {
        "kinds": [],
        "epoch": log.read.epoch,
        "log": side(len(events), log.read.began_at, ()),
        "store": side(len(stored), now, shown),
        "partition": columns(dict(record)),
    }
    detail = f"verdict before: {record.get('verdict') or 'unjudged'}"
    await unit.note_findings((Finding(log.execution_id, REBUILT, evidence, detail=detail, settled=True),), ())
