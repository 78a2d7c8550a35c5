"""One execution, arranged for a page: its verdict in words, its chain, its findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from sidecar.core.links import order_by_links
from sidecar.core.picture import AtGap, Node, Picture
from sidecar.inspection.documents import Document
from sidecar.inspection.drawn import visible
from sidecar.inspection.joins import in_pieces
from sidecar.web.beside import Pair, beside
from sidecar.web.data import Execution
from sidecar.web.drawing import irregular, svg
from sidecar.web.values import moment, when

TABLE_MAX: Final = 2_000
TEXT_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Line:
    """One event in the table that says what the drawing shows."""

    position: int | None
    event_id: int
    previous: int | None
    type: str
    name: str
    log: bool | None
    store: bool | None
    said: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """One finding, with its evidence in pairs; `gone`: the evidence had to go."""

    finding: Document
    detail: str
    state: str
    pairs: tuple[Pair, ...]
    gone: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """What the page of an execution shows.  `older`: findings that are not listed."""

    execution_id: int
    label: str | None
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    chain: Markup
    folded: bool
    irregular: tuple[str, ...]
    lines: tuple[Line, ...]
    events: int
    findings: tuple[Told, ...]
    older: int


def shown(found: Execution, kept: Sequence[Document], *, payload: bool, everything: bool) -> Shown:
    """Arrange what was found of one execution.

    Args:
        kept: Its newest findings with their evidence.
        payload: Show bodies.
        everything: Fold no linear runs in the drawing.
    """
    held, drawing = found.held, found.drawn
    events = 0 if drawing is None else sum(len(run.nodes) for run in drawing.runs)
    title = f"Chain of execution {held.execution_id}: {events:,} events. The table below it says the same."
    chain = Markup("") if drawing is None else svg(drawing, title, everything=everything)
    return Shown(
        execution_id=held.execution_id,
        label=None if held.partition is None else held.partition.verdict,
        facts=tuple(_facts(found)),
        notes=tuple(visible(why, most=TEXT_MAX) for why in found.not_read),
        chain=chain,
        folded='<g class="fold">' in chain,
        irregular=() if drawing is None else tuple(irregular(drawing)),
        lines=() if drawing is None else tuple(lines(drawing)),
        events=events,
        findings=tuple(_told(each, payload=payload) for each in kept),
        older=len(found.findings) - len(kept),
    )


def lines(drawing: Picture) -> Iterator[Line]:
    """The table beside the drawing: one line an event, at most TABLE_MAX."""
    forks = {at: len(each) for at, each in drawing.forks}
    count = 0
    for run in drawing.runs:
        for place, node in enumerate(run.nodes):
            if count == TABLE_MAX:
                return
            count += 1
            behind = place == 0 and isinstance(run.entry, AtGap)
            yield _line(node, forks.get(node.event_id, 0), behind_gap=behind)


def _line(node: Node, successors: int, *, behind_gap: bool) -> Line:
    said = (
        *(("root",) if node.prev_event_id is None else ()),
        *((f"fork: {successors} successors",) if successors else ()),
        *(("its predecessor is missing",) if behind_gap else ()),
        *node.marks,
    )
    return Line(
        node.position,
        node.event_id,
        node.prev_event_id,
        visible(node.event_type),
        visible(node.name),
        node.in_log,
        node.in_store,
        said,
    )


def _facts(found: Execution) -> Iterator[tuple[str, str]]:
    held, record = found.held, found.held.partition
    if found.log is None:
        yield "Log", "not read"
    elif found.log.events is None:
        yield "Log", "as many rows as the read limit or more"
    else:
        pieces = in_pieces(found.log.events, held.usable)
        yield "Log", f"{len(found.log.events):,} rows, {order_by_links(found.log.events).label}{pieces}"
    yield "Store", f"{len(held.rows):,} rows"
    reason = held.guarded.reason
    yield "Would be served", "yes" if reason is None else f"no: {reason.value}"
    if record is None:
        return
    mark, cover = record.watermark, record.coverage
    yield "Watermark", "none" if mark is None else f"{mark.first} to {mark.through}"
    yield (
        "Built from the log",
        "no" if cover is None else f"{cover.total:,} events from root {cover.root_event_id}",
    )
    if record.parent_execution_id is not None:
        yield "Parent execution", str(record.parent_execution_id)
    if record.held:
        yield "Held back", f"{record.held:,} rows"
    if record.label is not None:
        yield "Refused", f"{visible(record.label)} since {when(record.labelled_at)}"
    if record.revoked_reason is not None:
        yield "Revoked", f"{visible(record.revoked_reason)} since {when(record.revoked_at)}"
    for name, at in (
        ("Judged", record.verdict_at),
        ("First seen", record.first_seen_at),
        ("Last change", record.last_change_at),
    ):
        if at is not None:
            yield name, when(at)
    if held.due is not None:
        yield "Due again", when(held.due.due_at)


def _told(finding: Document, *, payload: bool) -> Told:
    if finding["resolved_at"] is not None:
        state = f"resolved {moment(finding['resolved_at'])}"
    elif finding["acknowledged_at"] is not None:
        why = visible(finding["acknowledged_why"] or "", most=TEXT_MAX)
        state = f"acknowledged {moment(finding['acknowledged_at'])}: {why}"
    else:
        state = "open"
    evidence: dict[str, Any] | None = finding["evidence"]
    pairs = beside(evidence, payload=payload)
    return Told(finding, visible(finding["detail"], most=TEXT_MAX), state, pairs, evidence is None)
