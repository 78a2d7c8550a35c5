"""Compare one execution now, because somebody asked; nothing is written and nothing is due for it.

The log is read, then the store's side is taken from one snapshot that began after it, compared,
and judged as the comparator would judge it.  What the store lacks is `behind`: a probe does not
populate.  Rows that only the store has are asked for once more, as everywhere.  The answer
carries `probe: true`, so that nobody takes it for a recorded verdict.  Source: spec 3.3, "pending publishes
nothing", rule 2; 3.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sidecar.comparator.findings import side
from sidecar.comparator.hold import UNTOLD
from sidecar.core.authority import GuardedRead, Partition, StoredEvent, guarded_read, is_contiguous
from sidecar.core.compare import compare
from sidecar.core.due import Windows
from sidecar.core.judge import Hold, judge, judge_absent, judge_read_only
from sidecar.core.populate import InSync, plan
from sidecar.core.ports import ExecutionLog, LogReader, Populated, Snapshot
from sidecar.core.rejoin import InOrder, Joined, chain_order, is_withdrawn, parted, predecessors
from sidecar.core.resolve import Explained, resolve
from sidecar.core.verdict import Judgement, Verdict
from sidecar.errors import SourceError


class Snapshots(Protocol):
    """A store, as far as a probe needs it: it only reads."""

    async def snapshot(self, execution_id: int) -> Snapshot:
        """What it holds of one execution at one instant."""
        ...


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe came to.  `guarded`: what a consumer would be answered now.

    `read_began_at`: of the log read it rests on, microseconds; None when it failed.
    """

    judgement: Judgement
    guarded: GuardedRead
    stored_verdict: str | None
    read_began_at: int | None

    def document(self) -> dict[str, Any]:
        """JSON values; ids as decimal strings, no payload."""
        judgement, guarded = self.judgement, self.guarded
        return {
            "probe": True,
            "execution_id": str(judgement.execution_id),
            "verdict": judgement.verdict.value,
            "kinds": [kind.value for kind in judgement.kinds],
            "position": judgement.position,
            "log": side(judgement.log_rows, judgement.log_event_id),
            "store": side(judgement.stored_rows, judgement.stored_event_id),
            "detail": judgement.detail,
            "servable": guarded.events is not None,
            "reason": None if guarded.reason is None else guarded.reason.value,
            "recorded_verdict": self.stored_verdict,
            "read_began_at": self.read_began_at,
        }


async def probe(
    execution_id: int,
    store: Snapshots,
    reader: LogReader,
    windows: Windows,
    count: Callable[[Verdict], None],
) -> Probed:
    """Compare one execution now.

    Args:
        count: Called once with the verdict; the one thing outside that a probe moves.

    Raises:
        StoreError: the store cannot be read; nothing was counted.
    """
    probed = await _probed(execution_id, store, reader, windows)
    count(probed.judgement.verdict)
    return probed


async def _probed(execution_id: int, store: Snapshots, reader: LogReader, windows: Windows) -> Probed:
    try:
        (log,) = await reader.read([execution_id])
        held = await store.snapshot(execution_id)
        absent = log.absent(held.rows)
        if absent:
            (log,) = await reader.read([execution_id])
    except SourceError as error:
        held = await store.snapshot(execution_id)
        failed = Judgement(
            execution_id, Verdict.LOG_READ_FAILED, stored_rows=len(held.rows), detail=str(error)
        )
        return Probed(failed, held.guarded, _verdict(held.partition), None)
    judgement = judged(held, log, absent, windows)
    return Probed(judgement, held.guarded, _verdict(held.partition), log.read.began_at)


def judged(held: Snapshot, log: ExecutionLog, absent: Sequence[StoredEvent], windows: Windows) -> Judgement:
    """The verdict of a snapshot and a log read, by the rules of a hold and without one.

    Args:
        absent: The stored rows that the log read before this one lacked (spec 3.4); `log` is
            then the one re-read.
    """
    execution_id, rows = held.execution_id, len(held.rows)
    if log.events is None:
        return Judgement(execution_id, Verdict.LOG_TRUNCATED, stored_rows=rows)
    if log.untold(held.rows):
        return Judgement(execution_id, Verdict.LOG_READ_FAILED, stored_rows=rows, detail=UNTOLD)
    fresh = {event.event_id for event in log.events}
    if absent:
        root = held.rows[0].event.event_id
        answer = resolve(absent, fresh, root=root, epochs=held.epochs, read_epoch=log.read.epoch)
        if not isinstance(answer, Explained):
            return judge_absent(execution_id, answer, log_rows=len(fresh), stored_rows=rows)
    partition = held.partition or Partition(execution_id)
    chain = tuple(row.event for row in held.rows)
    order = chain_order(log.events, held.usable)
    kept = parted(held.usable, {event.event_id for event in chain})
    withdrawn = is_withdrawn(log.events, order, kept)
    gap = not is_contiguous(held.rows)
    outcome = plan(chain, order, delivered=partition.first_seen_at is not None, gap=gap)
    comparison = compare(chain, order.events[: len(chain)]) if isinstance(order, InOrder) else None
    if isinstance(outcome, InSync) and (outcome.appended or not outcome.total):
        # Newer rows are on their way: the common part is all that can be compared; or there is nothing.
        return judge_read_only(
            execution_id,
            outcome,
            comparison,
            log_rows=len(log.events),
            stored_rows=rows,
            rejoined=isinstance(order, Joined),
        ).judgement
    own = guarded_read(partition, held.rows, held_back=False, joined=predecessors(held.usable))
    final = partition.verdict == Verdict.REFUSED_DANGLING_PREV or partition.verdict == Verdict.REFUSED_NO_ROOT
    hold = Hold(
        populated=Populated(
            outcome, order, partition, (), written=True, cleared_bar=False, withdrawn=withdrawn
        ),
        guarded=own,
        comparison=comparison,
        log_rows=len(log.events),
        read_began_at=log.read.began_at,
        now=log.read.began_at,
        resolution=Explained() if absent else None,
        due=held.due,
        first_saw=held.due.first_seen_at if held.due is not None else None,
        gap=gap,
    )
    # A question that was given up stays given up: the window does not open again for a probe.
    return judge(hold, replace(windows, dangling=0) if final else windows).judgement


def _verdict(partition: Partition | None) -> str | None:
    return None if partition is None else partition.verdict
