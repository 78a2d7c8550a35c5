"""What one hold found -> one verdict.

Every finding becomes a candidate verdict; the first in the precedence of spec 3.3 stands.  A
label that was set after the log read began is a candidate too, below the read's own refusal
and below everything that stands above refusals.

Two questions may stay open for a while.  A dangling predecessor or a missing root is
`pending_visibility` until it is older than the window and was read twice unchanged; a stale
read that does not clear is `pending_stale` until it was judged so `stale_max_ticks` times in
a row.  What must be remembered for that is the ruling's `pending_key` and `pending_since`.
Divergence kinds appear under `divergent` and `second_writer` and nowhere else.

A torn record is a failure of the step that has to read it, and with it nothing else is asked.
Failed reads are no findings of a hold: the caller names those verdicts itself.
Source: spec 3.3, 3.4 step 4, 3.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, assert_never

from sidecar.core.authority import GuardedRead, Partition
from sidecar.core.compare import Comparison
from sidecar.core.due import Due, Windows
from sidecar.core.links import DanglingPrev, NoRoot
from sidecar.core.populate import Diverged, InSync, Outcome, Refused, StaleLog, Unreadable
from sidecar.core.ports import Populated
from sidecar.core.rejoin import ChainOrder, Joined
from sidecar.core.resolve import Explained, LogLost, LogPruned, Resolution, SecondWriter
from sidecar.core.verdict import Judgement, Kind, Verdict
from sidecar.errors import broken, invariant

PRECEDENCE: Final = (
    Verdict.LOG_LOST,
    Verdict.LOG_PRUNED,
    Verdict.SECOND_WRITER,
    Verdict.REFUSED_STORE_GAP,
    Verdict.DIVERGENT,
    Verdict.REJOIN_WITHDRAWN,
    Verdict.REFUSED_MULTIPLE_ROOTS,
    Verdict.REFUSED_FORK,
    Verdict.REFUSED_UNREACHABLE,
    Verdict.REFUSED_DUPLICATE_EVENT,
    Verdict.REFUSED_DANGLING_PREV,
    Verdict.REFUSED_NO_ROOT,
    Verdict.PENDING_VISIBILITY,
    Verdict.PENDING_STALE,
    Verdict.STALE_LOG_UNRESOLVED,
    Verdict.ERROR,
    Verdict.POPULATE_FAILED,
    Verdict.GUARDED_READ_FAILED,
    Verdict.UNSERVABLE,
    Verdict.PENDING_SETTLE,
    Verdict.BEHIND,
    Verdict.EMPTY,
    Verdict.MATCH,
    Verdict.MATCH_REJOINED,
)
"""Which verdict stands when several fit, first one first.  Source: spec 3.3."""

_ABSORBING: Final = frozenset(
    {
        Verdict.REFUSED_MULTIPLE_ROOTS,
        Verdict.REFUSED_FORK,
        Verdict.REFUSED_UNREACHABLE,
        Verdict.REFUSED_DUPLICATE_EVENT,
    }
)
_INVISIBLE: Final = frozenset({Kind.COUNT, Kind.MISSING_EVENT, Kind.EXTRA_EVENT})
"""Axes that a row in flight can explain."""

_UNREADABLE: Final = {
    "coverage": Verdict.POPULATE_FAILED,
    "watermark": Verdict.GUARDED_READ_FAILED,
    "label": Verdict.ERROR,
}
"""Who meets the damage first: populate reads the coverage, the guarded read the watermark."""

REVOKING: Final = frozenset(
    {
        Verdict.DIVERGENT,
        Verdict.SECOND_WRITER,
        Verdict.LOG_LOST,
        Verdict.REJOIN_WITHDRAWN,
        Verdict.REFUSED_MULTIPLE_ROOTS,
        Verdict.REFUSED_NO_ROOT,
        Verdict.REFUSED_FORK,
        Verdict.REFUSED_DANGLING_PREV,
        Verdict.REFUSED_UNREACHABLE,
        Verdict.REFUSED_DUPLICATE_EVENT,
        Verdict.REFUSED_STORE_GAP,
    }
)
"""Verdicts that revoke in the hold that reached them.  Source: spec 2.9."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict, and for a pending one what `due.judged` has to remember."""

    judgement: Judgement
    pending_key: str | None = None
    pending_since: int | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """What one hold of the store found out about one execution.

    `populated`: the last attempt; its `absent` must have been resolved.  `guarded`: the
    comparator's own read, None when it was not taken.  `comparison`: None when nothing was
    served.  `log_rows`, `read_began_at`: of the log read behind `populated`.  `resolution`:
    what 3.4 came to, None when no stored row was absent.  `due`: the entry as it stands.
    `first_saw`: when the tail first saw the row whose predecessor is missing (for no_root any
    row), None when unknown.  `now`: the store's clock.  `gap`: the stored sequences have holes; asked
    where the log's links were refused, for then the outcome does not say it.
    """

    populated: Populated
    guarded: GuardedRead | None
    comparison: Comparison | None
    log_rows: int
    read_began_at: int
    now: int
    resolution: Resolution | None = None
    due: Due | None = None
    first_saw: int | None = None
    gap: bool = False


@dataclass(frozen=True, slots=True)
class _Finding:
    verdict: Verdict
    kinds: tuple[Kind, ...] = ()
    position: int | None = None
    detail: str = ""
    pending_key: str | None = None
    pending_since: int | None = None
    of_axes: bool = False
    log_event_id: int | None = None
    stored_event_id: int | None = None


def judge(hold: Hold, windows: Windows) -> Ruling:
    """Name the verdict of one execution.

    Raises:
        InvariantError: stored rows were absent from the log and nobody asked why.

    Source: spec 3.3.
    """
    populated = hold.populated
    invariant(hold.resolution is not None or not populated.absent, "absent rows were not resolved")
    partition = populated.partition
    findings = [
        *_of_resolution(hold.resolution),
        *_of_outcome(hold, windows),
        *_of_label(partition, hold.read_began_at),
    ]
    return _ruling(findings, partition.execution_id, hold.log_rows, partition.head_seq)


def judge_read_only(
    execution_id: int,
    outcome: Outcome,
    comparison: Comparison | None,
    *,
    log_rows: int,
    stored_rows: int,
    resolution: Resolution | None = None,
    rejoined: bool = False,
    withdrawn: bool = False,
    gap: bool = False,
) -> Ruling:
    """Name the verdict where nothing may be written and nothing waits (`verify --store`).

    Args:
        outcome: What `plan` says of the stored chain and the log; it was not carried out.
        comparison: Of the stored chain with the log's first `stored_rows` events, looked at
            only when `outcome` is InSync.
        rejoined: The log's order is one over joins.
        withdrawn: A join of the execution was contradicted.
        gap: The stored sequences have holes.

    Raises:
        InvariantError: InSync and not compared.

    Source: spec 3.3, last paragraph.
    """
    findings = [*_of_resolution(resolution), *_of_gap(gap), *_of_plan(outcome)]
    if isinstance(outcome, Refused) and withdrawn:
        findings.append(_Finding(Verdict.REJOIN_WITHDRAWN, detail=outcome.label))
    if isinstance(outcome, InSync):
        findings += _of_common_part(outcome, comparison, rejoined=rejoined)
    return _ruling(findings, execution_id, log_rows, stored_rows)


def _of_common_part(outcome: InSync, comparison: Comparison | None, *, rejoined: bool) -> Iterator[_Finding]:
    if comparison is None:
        broken("an untaken comparison is no agreement")
    yield from _of_axes(comparison)
    yield _Finding(_healthy(outcome.total, behind=outcome.appended > 0, rejoined=rejoined))


def judge_absent(execution_id: int, resolution: Resolution, *, log_rows: int, stored_rows: int) -> Judgement:
    """Name the verdict of spec 3.4 step 3, reached before anything was populated.

    Raises:
        InvariantError: every row was explained; then the log is populated and judged.
    """
    findings = list(_of_resolution(resolution))
    invariant(findings, "explained rows have no verdict of their own")
    return _ruling(findings, execution_id, log_rows, stored_rows).judgement


def _ruling(findings: list[_Finding], execution_id: int, log_rows: int, stored_rows: int) -> Ruling:
    first = min(findings, key=_rank)
    judgement = Judgement(
        execution_id,
        first.verdict,
        first.kinds,
        first.position,
        log_rows,
        stored_rows,
        first.detail,
        first.log_event_id,
        first.stored_event_id,
    )
    return Ruling(judgement, first.pending_key, first.pending_since)


def _rank(finding: _Finding) -> int:
    # The absorbing refusals share a rank: the read's own comes first in the list and stands.
    if finding.verdict in _ABSORBING:
        return PRECEDENCE.index(Verdict.REFUSED_MULTIPLE_ROOTS)
    # Divergent by row 4 of 2.8 stands above the refusals, divergent by an axis far below them.
    if finding.of_axes:
        return PRECEDENCE.index(Verdict.PENDING_SETTLE)
    return PRECEDENCE.index(finding.verdict)


def _of_resolution(resolution: Resolution | None) -> Iterator[_Finding]:
    match resolution:
        case None | Explained():
            return
        case LogLost(event_ids):
            yield _Finding(Verdict.LOG_LOST, detail=f"rows lost: {len(event_ids)}")
        case LogPruned():
            yield _Finding(Verdict.LOG_PRUNED)
        case SecondWriter():
            yield _Finding(
                Verdict.SECOND_WRITER,
                (Kind.SECOND_WRITER,),
                detail=_named_rows(resolution),
                stored_event_id=resolution.event_ids[0],
            )


def _named_rows(found: SecondWriter) -> str:
    rows = ", ".join(
        f"{event_id} (origin {origin or 'unknown'})"
        for event_id, origin in zip(found.event_ids, found.origins, strict=True)
    )
    more = f" and {found.absent - len(found.event_ids)} more" if found.truncated else ""
    return f"not in the log: {rows}{more}"


def _of_outcome(hold: Hold, windows: Windows) -> Iterator[_Finding]:
    outcome = hold.populated.outcome
    match outcome:
        case Refused():
            yield from _of_gap(hold.gap)
            yield from _of_withdrawn(hold.populated)
            yield _of_refusal(hold, outcome, windows)
        case StaleLog():
            yield _stale(hold, windows)
        case Diverged() | Unreadable():
            yield from _of_plan(outcome)
        case InSync():
            yield from _of_service(hold, outcome, windows)
        case _:
            assert_never(outcome)


def _of_gap(gap: bool) -> Iterator[_Finding]:
    if gap:
        yield _Finding(Verdict.REFUSED_STORE_GAP, detail="store_gap")


def _of_plan(outcome: Outcome) -> Iterator[_Finding]:
    """Outcomes that need no window; InSync is no finding by itself."""
    match outcome:
        case Refused(label):
            yield _Finding(_refused(label), detail=label)
        case Diverged():
            yield _Finding(
                Verdict.DIVERGENT,
                (Kind(outcome.kind),),
                outcome.position,
                f"event {outcome.stored.event_id}",
                log_event_id=outcome.log.event_id,
                stored_event_id=outcome.stored.event_id,
            )
        case StaleLog():
            yield _Finding(Verdict.STALE_LOG_UNRESOLVED)
        case Unreadable(what):
            yield _Finding(_UNREADABLE[what], detail=f"its {what} is malformed")
        case InSync():
            return
        case _:
            assert_never(outcome)


def _refused(label: str) -> Verdict:
    return Verdict.LOG_PRUNED if label == "log_pruned" else Verdict(f"refused_{label}")


def _of_refusal(hold: Hold, outcome: Refused, windows: Windows) -> _Finding:
    final = next(_of_plan(outcome))
    question = _open_question(hold.populated.order)
    if question is None:
        return final
    asked_before = hold.due is not None and hold.due.pending_key == question
    since = hold.due.pending_since if hold.due is not None and asked_before else hold.first_saw
    since = hold.now if since is None else since
    if hold.now - since >= windows.dangling and (asked_before or windows.dangling == 0):
        return replace(final, detail=question)
    return _Finding(Verdict.PENDING_VISIBILITY, detail=question, pending_key=question, pending_since=since)


def _of_withdrawn(populated: Populated) -> Iterator[_Finding]:
    """A join of it was contradicted, by this read or before; the rows stand as they did."""
    if populated.withdrawn:
        yield _Finding(Verdict.REJOIN_WITHDRAWN, detail=populated.order.label)


def _open_question(order: ChainOrder) -> str | None:
    match order:
        case DanglingPrev(event_id, prev_event_id):
            return f"{order.label}:{event_id}:{prev_event_id}"
        case NoRoot():
            return order.label
        case _:
            return None


def _stale(hold: Hold, windows: Windows) -> _Finding:
    before, since = _stale_before(hold.due)
    times = before + 1
    if times >= windows.stale_max_ticks:
        return _Finding(Verdict.STALE_LOG_UNRESOLVED, detail=f"judged stale {times} times in a row")
    return _Finding(
        Verdict.PENDING_STALE,
        pending_key=f"{StaleLog.label}:{times}",
        pending_since=hold.now if since is None else since,
    )


def _stale_before(due: Due | None) -> tuple[int, int | None]:
    """How often in a row the read was stale, and since when; kept in the pending key."""
    if due is None or due.pending_key is None:
        return 0, None
    label, _, times = due.pending_key.partition(":")
    if label != StaleLog.label or not times.isdecimal():
        return 0, None
    return int(times), due.pending_since


def _of_service(hold: Hold, outcome: InSync, windows: Windows) -> Iterator[_Finding]:
    guarded = hold.guarded
    if not hold.populated.written:
        yield _Finding(Verdict.POPULATE_FAILED, detail="the log read began before a revocation")
    elif guarded is None:
        yield _Finding(Verdict.GUARDED_READ_FAILED, detail="not taken")
    elif guarded.events is None:
        yield _Finding(Verdict.UNSERVABLE, detail=guarded.reason.value if guarded.reason else "")
    elif hold.comparison is None:
        yield _Finding(Verdict.GUARDED_READ_FAILED, detail="served and not compared")
    else:
        axes = _of_axes(hold.comparison)
        yield from (_settling(axis, hold, windows) for axis in axes)
        rejoined = isinstance(hold.populated.order, Joined)
        yield _Finding(_healthy(outcome.total, behind=False, rejoined=rejoined))


def _healthy(total: int, *, behind: bool, rejoined: bool) -> Verdict:
    if behind:
        return Verdict.BEHIND
    if rejoined:
        return Verdict.MATCH_REJOINED
    return Verdict.MATCH if total else Verdict.EMPTY


def _of_axes(comparison: Comparison) -> Iterator[_Finding]:
    if not comparison.holds:
        yield _Finding(Verdict.DIVERGENT, comparison.kinds, comparison.position, of_axes=True)


def _settling(axis: _Finding, hold: Hold, windows: Windows) -> _Finding:
    """A young execution in motion may only be short; then nothing is published."""
    partition = hold.populated.partition
    young = partition.first_seen_at is not None and hold.now - partition.first_seen_at < windows.settle
    if young and not partition.terminal and _INVISIBLE.issuperset(axis.kinds):
        return _Finding(Verdict.PENDING_SETTLE)
    return axis


def _of_label(partition: Partition, read_began_at: int) -> Iterator[_Finding]:
    """A label that came after the log read began; an older one the read itself has judged."""
    if partition.label is None or partition.labelled_at is None or partition.torn is not None:
        return
    if partition.labelled_at >= read_began_at:
        if partition.revoked_reason == Verdict.REJOIN_WITHDRAWN:
            yield _Finding(Verdict.REJOIN_WITHDRAWN, detail=partition.label)
        yield _Finding(Verdict(f"refused_{partition.label}"), detail=partition.label)
