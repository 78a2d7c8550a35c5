"""Between the layout's rows and the core's records, column by column.

A half-written watermark or coverage and a label that nobody sets are damage: the record is then
torn, never read as one that claims nothing, and saved with the damage as it stands.
Source: design 5, spec 2.6 rows 2 and 5.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

from typing import Final

from sidecar.core.authority import Claim, Coverage, Partition, StoredEvent, Torn, Watermark
from sidecar.core.due import Due
from sidecar.core.event import Event
from sidecar.core.horizon import Cursor
from sidecar.core.links import ABSORBING_LABELS
from sidecar.core.lsn import lsn_of, lsn_text
from sidecar.store.connection import Row

PARTITION_COLUMNS: Final = (
    "execution_id, parent_execution_id, head_seq, head_event_id, wm_first, wm_through, cov_root, cov_total,"
    " held, rows_seen, head_anchor, head_epoch, label, labelled_at, revoked_reason, revoked_at, terminal,"
    " verdict, verdict_at, counted_kinds, first_seen_at, last_change_at, verdict_rows, head_commit_lsn"
)
EVENT_COLUMNS: Final = (
    "execution_id, exec_seq, event_id, prev_event_id, parent_execution_id, event_type, body, origin, seen_at"
)
DUE_COLUMNS: Final = (
    "execution_id, due_at, reread, changed, labelled, first_seen_at, last_row_at, terminal_seen,"
    " pending_key, pending_since, tries"
)
CURSOR_COLUMNS: Final = "lane, horizon, epoch, scope, tree, polled_at"

Claims = tuple[int | None, int | None, int | None, int | None]
"""wm_first, wm_through, cov_root, cov_total as they stand."""

PUT_PARTITION: Final = f"REPLACE INTO partition ({PARTITION_COLUMNS}) VALUES ({'?,' * 23}?)"
PUT_DUE: Final = f"REPLACE INTO due ({DUE_COLUMNS}) VALUES ({'?,' * 10}?)"
PUT_CURSOR: Final = f"REPLACE INTO tail_cursor ({CURSOR_COLUMNS}) VALUES ({'?,' * 5}?)"
INSERT_EVENT: Final = (
    "INSERT INTO event (execution_id, exec_seq, event_id, prev_event_id, parent_execution_id,"
    " event_type, body, gseq, origin, seen_at) VALUES (?,?,?,?,?,?,?,?,?,?)"
)

PUT_COMMIT: Final = (
    "UPDATE event SET commit_lsn = ? WHERE execution_id = ? AND event_id = ? AND commit_lsn IS NULL"
)
COMMITS: Final = "SELECT event_id, commit_lsn FROM event WHERE execution_id = ? AND commit_lsn IS NOT NULL"


def stored_event(row: Row) -> StoredEvent:
    """From EVENT_COLUMNS."""
    execution_id, exec_seq, event_id, prev, parent, event_type, body, origin, seen_at = row
    return StoredEvent(
        exec_seq, Event(execution_id, event_id, prev, parent, event_type, body), origin, seen_at
    )


def event_row(exec_seq: int, event: Event, gseq: int, origin: str | None, seen_at: int | None) -> Row:
    """For INSERT_EVENT."""
    return (
        event.execution_id,
        exec_seq,
        event.event_id,
        event.prev_event_id,
        event.parent_execution_id,
        event.event_type,
        event.body,
        gseq,
        origin,
        seen_at,
    )


def partition_record(row: Row) -> Partition:
    """From PARTITION_COLUMNS."""
    claims: Claims = (row[4], row[5], row[6], row[7])
    torn = _torn(claims, row[12])
    watermark, coverage = _claimed(claims) if torn is None or torn.what == "label" else (None, None)
    return Partition(
        execution_id=row[0],
        parent_execution_id=row[1],
        head_seq=row[2],
        head_event_id=row[3],
        watermark=watermark,
        coverage=coverage,
        held=row[8],
        rows_seen=row[9],
        head_anchor=row[10],
        head_epoch=row[11],
        label=row[12],
        labelled_at=row[13],
        revoked_reason=row[14],
        revoked_at=row[15],
        terminal=bool(row[16]),
        verdict=row[17],
        verdict_at=row[18],
        counted_kinds=frozenset(row[19].split(",")) if row[19] else frozenset(),
        first_seen_at=row[20],
        last_change_at=row[21],
        verdict_rows=row[22],
        head_commit_lsn=position(row[23]),
        torn=torn,
    )


def position(text: str | None) -> int | None:
    """A position as it is stored; None also for what is none, which then proves nothing."""
    try:
        return None if text is None else lsn_of(text)
    except ValueError:
        return None


def position_text(lsn: int | None) -> str | None:
    """What `position` reads."""
    return None if lsn is None else lsn_text(lsn)


def claimed(execution_id: int, head_seq: int, claims: Claims) -> Claim:
    """The record as far as the guarded read asks: its head and what it claims."""
    torn = _torn(claims, None)
    watermark, coverage = _claimed(claims) if torn is None else (None, None)
    return Claim(execution_id, head_seq, watermark, coverage, torn)


def _claimed(claims: Claims) -> tuple[Watermark | None, Coverage | None]:
    """What claims that are not torn come to."""
    wm_first, wm_through, cov_root, cov_total = claims
    watermark = None if wm_first is None or wm_through is None else Watermark(wm_first, wm_through)
    return watermark, None if cov_total is None else Coverage(cov_root, cov_total)


def _torn(claims: Claims, label: str | None) -> Torn | None:
    wm_first, wm_through, cov_root, cov_total = claims
    if (cov_total is None and cov_root is not None) or (cov_total or 0) < 0:
        return Torn("coverage", claims)
    if (wm_first is None) != (wm_through is None) or min(wm_first or 0, wm_through or 0) < 0:
        return Torn("watermark", claims)
    if label is not None and label not in ABSORBING_LABELS:
        return Torn("label", claims)
    return None


def partition_row(partition: Partition) -> Row:
    """For PUT_PARTITION."""
    watermark, coverage = partition.watermark, partition.coverage
    claims = (
        watermark and watermark.first,
        watermark and watermark.through,
        coverage and coverage.root_event_id,
        coverage and coverage.total,
    )
    return (
        partition.execution_id,
        partition.parent_execution_id,
        partition.head_seq,
        partition.head_event_id,
        *(claims if partition.torn is None else partition.torn.raw),
        partition.held,
        partition.rows_seen,
        partition.head_anchor,
        partition.head_epoch,
        partition.label,
        partition.labelled_at,
        partition.revoked_reason,
        partition.revoked_at,
        int(partition.terminal),
        partition.verdict,
        partition.verdict_at,
        ",".join(sorted(partition.counted_kinds)),
        partition.first_seen_at,
        partition.last_change_at,
        partition.verdict_rows,
        position_text(partition.head_commit_lsn),
    )


def partition_times(partition: Partition) -> tuple[int | None, ...]:
    return (
        partition.labelled_at,
        partition.revoked_at,
        partition.verdict_at,
        partition.first_seen_at,
        partition.last_change_at,
    )


def due_record(row: Row) -> Due:
    """From DUE_COLUMNS."""
    return Due(*row)


def due_row(due: Due) -> Row:
    """For PUT_DUE."""
    return (
        due.execution_id,
        due.due_at,
        due.reread,
        due.changed,
        due.labelled,
        due.first_seen_at,
        due.last_row_at,
        due.terminal_seen,
        due.pending_key,
        due.pending_since,
        due.tries,
    )


def due_times(due: Due) -> tuple[int | None, ...]:
    """`due_at` lies in the future on purpose and is left out."""
    return (due.reread, due.changed, due.labelled, due.first_seen_at, due.last_row_at, due.terminal_seen)


def cursor_record(row: Row) -> Cursor:
    """From CURSOR_COLUMNS."""
    return Cursor(*row)


def cursor_row(cursor: Cursor) -> Row:
    """For PUT_CURSOR."""
    return (cursor.lane, cursor.horizon, cursor.epoch, cursor.scope, cursor.tree, cursor.polled_at)
