"""One execution as log and store hold it: told in lines, or as one JSON object.

What comes from other people's workflows is written out where it could steer a terminal.  No
payload is shown unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sidecar.core.due import Due
from sidecar.core.links import LinkOrder, Ordered, order_by_links
from sidecar.core.picture import Picture, picture
from sidecar.core.ports import ExecutionLog, Snapshot
from sidecar.core.verdict import Judgement
from sidecar.inspection.documents import drawing, log_side, without_bodies
from sidecar.inspection.drawn import visible
from sidecar.inspection.joins import document as proof
from sidecar.inspection.joins import in_pieces, sentence
from sidecar.store.findings import Kept

IDS_SHOWN: Final = 8
TEXT_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Inspected:
    """What was found of one execution.

    `log`, `held`: None where that side was not read; `log_why`, `store_why` then say why.
    `now`: what both sides come to, compared once and not recorded; None without both.
    """

    execution_id: int
    log: ExecutionLog | None
    log_why: str
    held: Snapshot | None
    store_why: str
    findings: tuple[Kept, ...]
    now: Judgement | None

    @property
    def stored(self) -> bool:
        """Whether the store has ever heard of it."""
        held = self.held
        return held is not None and bool(held.partition is not None or held.rows or self.findings)

    @property
    def never_seen(self) -> bool:
        """Neither side has ever heard of it; a log that was not read says nothing."""
        return not self.stored and self.log is not None and self.log.events == ()

    @property
    def picture(self) -> Picture:
        log = None if self.log is None else self.log.events
        held = self.held
        return picture(log, None if held is None else held.rows, () if held is None else held.joins)


# Text


def told(found: Inspected, *, payload: bool) -> Iterator[str]:
    """What is known of it, a line each."""
    yield f"execution {found.execution_id}"
    if found.log is None:
        yield "  log       not read"
    elif found.log.events is None:
        yield "  log       as many rows as the read limit or more: not drawn (log_truncated)"
    else:
        order = order_by_links(found.log.events)
        pieces = in_pieces(found.log.events, () if found.held is None else found.held.usable)
        yield f"  log       {len(found.log.events):,} rows, {_order(order)}{pieces}"
    yield from _store(found)
    for join in () if found.held is None else found.held.joins:
        yield f"  join      {sentence(join)}"
    yield from _sides(found.picture)
    if found.now is not None:
        yield f"  now       {_judgement(found.now)}  (compared now, not recorded)"
    for finding in found.findings:
        yield from _finding(finding, payload=payload)


def _order(order: LinkOrder) -> str:
    """The label, and what a refusal names."""
    if isinstance(order, Ordered):
        return order.label
    named = ", ".join(f"{field.name} {getattr(order, field.name)}" for field in fields(order))
    return visible(f"{order.label}: {named}", most=TEXT_MAX)


def _store(found: Inspected) -> Iterator[str]:
    if found.held is None:
        yield "  store     not read"
        return
    held, record = found.held, found.held.partition
    yield f"  store     {len(held.rows):,} rows"
    if record is None:
        yield "  record    none"
        return
    mark, cover = record.watermark, record.coverage
    yield (
        f"  record    watermark {'none' if mark is None else f'{mark.first}:{mark.through}'},"
        f" coverage {'none' if cover is None else f'{cover.total} from {cover.root_event_id}'},"
        f" head {record.head_seq} ({record.head_event_id}), held {record.held}, seen {record.rows_seen}"
    )
    reason = held.guarded.reason
    yield f"  served    {'yes' if reason is None else f'no: {reason.value}'}"
    yield f"  verdict   {record.verdict or 'none yet'}{_since(record.verdict_at)}"
    if record.label is not None:
        yield f"  label     {visible(record.label)}{_since(record.labelled_at)}"
    if record.revoked_reason is not None:
        yield f"  revoked   {visible(record.revoked_reason)}{_since(record.revoked_at)}"
    if held.due is not None:
        yield f"  due       {_due(held.due)}"


def _due(due: Due) -> str:
    flags = [
        name for name in ("reread", "changed", "labelled", "terminal_seen") if getattr(due, name) is not None
    ]
    question = f", open: {visible(due.pending_key)}{_since(due.pending_since)}" if due.pending_key else ""
    return f"{_time(due.due_at)}, {', '.join(flags) or 'rows'}, tries {due.tries}{question}"


def _sides(drawn: Picture) -> Iterator[str]:
    for title, ids in (
        ("only log", [node.event_id for node in drawn.nodes if node.in_store is False]),
        ("only store", [node.event_id for node in drawn.nodes if node.in_log is False]),
        ("differ", [node.event_id for node in drawn.nodes if node.differs]),
    ):
        if ids:
            more = f" and {len(ids) - IDS_SHOWN:,} more" if len(ids) > IDS_SHOWN else ""
            yield f"  {title:<9} {len(ids):,}: {', '.join(map(str, ids[:IDS_SHOWN]))}{more}"


def _judgement(judgement: Judgement) -> str:
    kinds = "".join(f" {kind.value}" for kind in judgement.kinds)
    at = "" if judgement.position is None else f" at position {judgement.position}"
    return f"{judgement.verdict.value}{kinds}{at}  {visible(judgement.detail, most=TEXT_MAX)}".rstrip()


def _finding(finding: Kept, *, payload: bool) -> Iterator[str]:
    state = _state(finding)
    kind = "" if finding.kind is None else f" {visible(finding.kind)}"
    at = "" if finding.position is None else f" at position {finding.position}"
    yield (
        f"  finding   {finding.finding_id}: {visible(finding.verdict)}{kind}{at}"
        f"  found {_time(finding.found_at)}, {state}"
    )
    if finding.evidence is None:
        yield "            its evidence had to go"
        return
    for side in ("log", "store"):
        for row in (finding.evidence.get(side) or {}).get("shown", ()):
            place = "" if row["position"] is None else f" at {row['position']}"
            origin = f", origin {row['origin'] or 'unknown'}" if side == "store" else ""
            yield (
                f"            {side:<5} {row['event_id']}{place} {visible(row['event_type'])},"
                f" {row['bytes']} bytes, sha256 {row['sha256'][:16]}…{origin}"
            )
            if payload and "body" in row:
                yield f"                  {visible(row['body'], most=2**31)}"


def _state(finding: Kept) -> str:
    if finding.resolved_at is not None:
        return f"resolved{_since(finding.resolved_at)}"
    if finding.acknowledged_at is None:
        return "open"
    why = visible(finding.acknowledged_why or "", most=TEXT_MAX)
    return f"acknowledged{_since(finding.acknowledged_at)}: {why}"


def _since(at: int | None) -> str:
    return "" if at is None else f" since {_time(at)}"


def _time(at: int) -> str:
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{at} µs"


# JSON


def document(found: Inspected, *, payload: bool) -> dict[str, Any]:
    """The object of `inspect --format json`: ids as decimal strings, times in microseconds."""
    record = None if found.held is None else found.held.partition
    return {
        "execution_id": str(found.execution_id),
        "log": None if found.log is None else log_side(found.log),
        "store": None if found.held is None else {"rows": len(found.held.rows)},
        "not_read": [why for why in (found.log_why, found.store_why) if why],
        "record": None if record is None else _ids(asdict(record)),
        "served": None
        if found.held is None
        else {"yes": found.held.guarded.events is not None, "reason": found.held.guarded.reason},
        "due": None if found.held is None or found.held.due is None else _ids(asdict(found.held.due)),
        "now": None if found.now is None else _ids(asdict(found.now)),
        "joins": [] if found.held is None else [proof(join) for join in found.held.joins],
        "findings": [_finding_document(finding, payload=payload) for finding in found.findings],
        **drawing(found.picture),
    }


def _finding_document(finding: Kept, *, payload: bool) -> dict[str, Any]:
    told = _ids(asdict(finding))
    return told if payload else {**told, "evidence": without_bodies(told["evidence"])}


def _ids(values: dict[str, Any]) -> dict[str, Any]:
    """Ids as decimal strings, sets as sorted lists; a JSON number may lose their last digits."""
    return {name: _value(name, value) for name, value in values.items()}


def _value(name: str, value: Any) -> Any:
    if isinstance(value, int) and name.endswith(("_id", "_event")):
        return str(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    return _ids(value) if isinstance(value, dict) and name != "evidence" else value
