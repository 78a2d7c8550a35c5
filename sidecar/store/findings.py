"""Keeping findings, as part of the unit of work that reached them, and reading them back.

One finding for an execution, verdict and kind until a match resolves it; judged again, it is
brought up to date.  Evidence is bounded in bytes, findings in number.  What goes first: what is
resolved, then what is refused, then the alarms and what a rebuild replaced; among those the
oldest.  Of an open alarm only the evidence goes, never the finding: what is open may not get
less because there is no room.  Source: spec 3.8; design 4 (`ack`).
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sidecar.core.authority import Partition
from sidecar.core.evidence import REBUILT, Finding, Standing, same_finding
from sidecar.core.verdict import ALARMING
from sidecar.store.connection import Row
from sidecar.store.rows import PARTITION_COLUMNS, partition_row

EVIDENCE_MAX_BYTES: Final = 64 * 1024 * 1024
FINDINGS_MAX: Final = 10_000
KEPT_OF: Final = (7, 8)
"""Room is made for an eighth at once: looking for the oldest reads them all."""
LANES_MAX: Final = 16

_BYTES_KEY: Final = "evidence_bytes"
_SIZE: Final = "length(CAST(evidence AS BLOB))"
_LATE: Final = ", ".join(f"'{verdict}'" for verdict in sorted((*ALARMING, REBUILT)))
_RANK: Final = (
    f"CASE WHEN resolved_at IS NOT NULL AND verdict != '{REBUILT}' THEN 0"
    f" WHEN verdict IN ({_LATE}) THEN 2 ELSE 1 END"
)

INDEX: Final = (
    "CREATE INDEX IF NOT EXISTS finding_open ON finding (verdict, resolved_at, acknowledged_at)"
    " WHERE resolved_at IS NULL AND acknowledged_at IS NULL"
)
"""With all that OPEN asks, so that no evidence is read for a count."""
OPEN: Final = (
    "SELECT verdict, count(*) FROM finding"
    " WHERE resolved_at IS NULL AND acknowledged_at IS NULL GROUP BY verdict"
)
STANDING: Final = (
    "SELECT finding_id, position, log_event, store_event, acknowledged_at IS NOT NULL, detail FROM finding"
    " WHERE execution_id = ? AND verdict = ? AND kind IS ? AND resolved_at IS NULL ORDER BY finding_id"
)
RESOLVE: Final = (
    "UPDATE finding SET resolved_at = ?1"
    " WHERE execution_id IN (SELECT value FROM json_each(?2)) AND resolved_at IS NULL"
)
_INSERT: Final = (
    "INSERT INTO finding (execution_id, verdict, kind, position, detail, log_event, store_event, evidence,"
    " found_at, resolved_at) VALUES (?,?,?,?,?,?,?,?,?,?)"
)
_UPDATE: Final = (
    "UPDATE finding SET position = ?2, detail = ?3, log_event = ?4, store_event = ?5, evidence = ?6"
    " WHERE finding_id = ?1"
)
_SIZE_OF: Final = f"SELECT coalesce({_SIZE}, 0) FROM finding WHERE finding_id = ?"
_LANES: Final = "SELECT lane, horizon, epoch, polled_at FROM tail_cursor ORDER BY lane LIMIT ?"
_BYTES: Final = "SELECT value FROM meta WHERE key = ?"
_SUM: Final = f"SELECT coalesce(sum({_SIZE}), 0) FROM finding"
_PUT_BYTES: Final = "REPLACE INTO meta (key, value) VALUES (?, ?)"
_COUNT: Final = "SELECT count(*) FROM finding"
_BY_AGE: Final = (
    f"SELECT finding_id, {_SIZE} FROM finding WHERE evidence IS NOT NULL"
    f" ORDER BY {_RANK}, found_at, finding_id"
)
_BARE: Final = "UPDATE finding SET evidence = NULL WHERE finding_id IN (SELECT value FROM json_each(?))"
_TO_GO: Final = (
    f"SELECT finding_id, coalesce({_SIZE}, 0) FROM finding"
    f" WHERE resolved_at IS NOT NULL OR verdict NOT IN ({_LATE})"
    f" ORDER BY {_RANK}, found_at, finding_id LIMIT ?"
)
_DELETE: Final = "DELETE FROM finding WHERE finding_id IN (SELECT value FROM json_each(?))"

COLUMNS: Final = (
    "finding_id, execution_id, verdict, kind, position, detail, log_event, store_event, evidence, found_at,"
    " resolved_at, acknowledged_at, acknowledged_why"
)
_EVIDENCE: Final = COLUMNS.split(", ").index("evidence")
OF_EXECUTION: Final = f"SELECT {COLUMNS} FROM finding WHERE execution_id = ? ORDER BY finding_id"

Statement = Callable[[str, Sequence[object]], Awaitable[list[Row]]]


@dataclass(frozen=True, slots=True)
class Kept:
    """A finding as it stands in the store; times in microseconds of the store's clock.

    `evidence` is None when it had to go.
    """

    finding_id: int
    execution_id: int
    verdict: str
    kind: str | None
    position: int | None
    detail: str
    log_event: str | None
    store_event: str | None
    evidence: dict[str, Any] | None
    found_at: int
    resolved_at: int | None
    acknowledged_at: int | None
    acknowledged_why: str | None

    @property
    def is_open(self) -> bool:
        """Whether it counts in alerts and acceptance."""
        return self.resolved_at is None and self.acknowledged_at is None


async def note(
    rows: Statement, found: Sequence[Finding], matched: Collection[int], now: int, max_bytes: int
) -> int:
    """Keep `found` and resolve what stands of the executions in `matched`.

    Returns:
        How many pieces of evidence had to go.

    Raises:
        StoreError: nothing of the unit is written.
    """
    if matched:
        await rows(RESOLVE, (now, json.dumps(list(matched))))
    if not found:
        return 0
    await rows(INDEX, ())
    lanes = [_lane(row) for row in await rows(_LANES, (LANES_MAX,))]
    size = await _bytes(rows)
    for each in found:
        size += await _keep(rows, each, lanes, now)
    size, dropped = await _make_room(rows, size, max_bytes)
    await rows(_PUT_BYTES, (_BYTES_KEY, str(size)))
    return dropped


async def _bytes(rows: Statement) -> int:
    """Bytes of all evidence, as counted; counted anew where nobody has yet."""
    counted = await rows(_BYTES, (_BYTES_KEY,))
    return int(counted[0][0] if counted else (await rows(_SUM, ()))[0][0])


async def _keep(rows: Statement, found: Finding, lanes: Sequence[dict[str, Any]], now: int) -> int:
    """Write one finding; by how many bytes the evidence grew."""
    key = (found.execution_id, found.verdict, found.kind)
    standing = [_standing(row) for row in await rows(STANDING, key)]
    again = same_finding(found, standing)
    text = _evidence(found, lanes)
    grown = len(text.encode()) if text is not None else 0
    place = (found.position, found.detail, _text(found.log_event_id), _text(found.store_event_id))
    if again is None:
        position, *rest = place
        resolved = now if found.settled else None
        await rows(_INSERT, (*key, position, *rest, text, now, resolved))
        return grown
    ((before,),) = await rows(_SIZE_OF, (again.finding_id,))
    await rows(_UPDATE, (again.finding_id, *place, text))
    return grown - int(before)


def _evidence(found: Finding, lanes: Sequence[dict[str, Any]]) -> str | None:
    if found.evidence is None:
        return None
    told = dict(found.evidence)
    if found.partition is not None:
        told["partition"] = record(_named(found.partition))
    told["lanes"] = list(lanes)
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def _named(partition: Partition) -> dict[str, Any]:
    return dict(zip(PARTITION_COLUMNS.split(", "), partition_row(partition), strict=True))


def record(columns: dict[str, Any]) -> dict[str, Any]:
    """A partition's columns as JSON: ids as decimal texts, a number may lose their last digits."""
    return {
        name: str(value) if value is not None and (name.endswith("_id") or name == "cov_root") else value
        for name, value in columns.items()
    }


async def _make_room(rows: Statement, size: int, max_bytes: int) -> tuple[int, int]:
    """Bring findings and evidence under their bounds: the bytes left, and how much evidence went."""
    dropped = 0
    ((count,),) = await rows(_COUNT, ())
    if count > FINDINGS_MAX:
        gone = await rows(_TO_GO, (count - _kept(FINDINGS_MAX),))
        await rows(_DELETE, (json.dumps([row[0] for row in gone]),))
        size -= sum(row[1] for row in gone)
        dropped = sum(row[1] > 0 for row in gone)
    if size > max_bytes:
        bare = []
        for finding_id, each in await rows(_BY_AGE, ()):
            bare.append(finding_id)
            size -= each
            if size <= _kept(max_bytes):
                break
        await rows(_BARE, (json.dumps(bare),))
        dropped += len(bare)
    return size, dropped


def _kept(most: int) -> int:
    return most * KEPT_OF[0] // KEPT_OF[1]


def _standing(row: Row) -> Standing:
    finding_id, position, log_event, store_event, acknowledged, detail = row
    return Standing(
        finding_id, (position, _id(log_event), _id(store_event)), bool(acknowledged), detail or ""
    )


def _lane(row: Row) -> dict[str, Any]:
    lane, horizon, epoch, polled_at = row
    return {"lane": lane, "horizon": _text(horizon), "epoch": epoch, "polled_at": polled_at}


def kept(row: Row) -> Kept:
    """From the columns of OF_EXECUTION."""
    values = list(row)
    if values[_EVIDENCE] is not None:
        values[_EVIDENCE] = json.loads(values[_EVIDENCE])
    return Kept(*values)


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _id(text: str | None) -> int | None:
    return None if text is None else int(text)
