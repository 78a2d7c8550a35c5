"""What one verdict changes in the partition: trust, the verdict itself, what was counted.

A divergence kind is counted once per execution until a match clears it; this is the one
place in the program where that is decided.  Source: spec 2.9, 3.3.
"""

from __future__ import annotations

from dataclasses import replace

from sidecar.core.authority import Partition, revoked
from sidecar.core.exclusion import EXCLUDED
from sidecar.core.judge import REVOKING
from sidecar.core.verdict import RESOLVING, Judgement, Kind, Verdict

COUNTED = frozenset({Verdict.DIVERGENT, Verdict.SECOND_WRITER})


def recorded(partition: Partition, judgement: Judgement, now: int) -> tuple[Partition, tuple[Kind, ...]]:
    """The partition after its verdict, and the kinds that are to be counted now."""
    verdict = judgement.verdict
    if verdict in REVOKING:
        partition = revoked(partition, verdict, now)
    if verdict is Verdict.LOG_PRUNED:
        partition = replace(partition, held=0)
    counted = partition.counted_kinds
    new: tuple[Kind, ...] = ()
    if verdict in RESOLVING:
        counted = frozenset[str]()
    elif verdict in COUNTED:
        new = tuple(kind for kind in judgement.kinds if kind not in counted)
        counted = counted | {kind.value for kind in new}
    return replace(
        partition,
        verdict=verdict.value,
        verdict_at=_since(partition, judgement, now),
        verdict_rows=judgement.log_rows,
        counted_kinds=counted,
    ), new


def set_aside(partition: Partition, judgement: Judgement, now: int) -> Partition:
    """The partition of an execution that is left out: no verdict, nothing counted, no false trust."""
    if judgement.verdict in REVOKING:
        partition = revoked(partition, judgement.verdict, now)
    return replace(
        partition,
        verdict=EXCLUDED,
        verdict_at=now,
        verdict_rows=judgement.log_rows,
        counted_kinds=frozenset[str](),
    )


def _since(partition: Partition, judgement: Judgement, now: int) -> int:
    """When the verdict was reached; a log that is still gone is gone since it was first missed.

    A sweep asks again after every change of the partition tree, and retention counts from here.
    """
    again = partition.verdict == Verdict.LOG_PRUNED == judgement.verdict
    if again and partition.verdict_at is not None:
        return partition.verdict_at
    return now
