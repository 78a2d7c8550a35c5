"""Which joins a batch needs: those of executions whose rows may prove or contradict one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sidecar.core.authority import Partition, StoredEvent
from sidecar.core.horizon import TailRow
from sidecar.core.ports import Unit
from sidecar.core.proofs import asks
from sidecar.core.rejoin import Kept, parted


async def asked_kept(
    unit: Unit,
    rows: Mapping[int, Sequence[TailRow]],
    partitions: Mapping[int, Partition],
    stored: Mapping[int, Mapping[int, StoredEvent]],
) -> dict[int, Kept]:
    """What is kept of every execution that is concerned; of the others nothing is read.

    Args:
        rows: Of the batch and the pool, by execution.
        partitions: The records that exist.
        stored: By execution and event_id, the stored events among the rows and their predecessors.
    """
    concerned = [
        i for i, group in rows.items() if i in partitions and asks(partitions[i], group, stored.get(i, {}))
    ]
    joins = await unit.joins(concerned) if concerned else {}
    roots = {(i, each.root_event_id) for i, kept in joins.items() for each in kept}
    placed = await unit.find(roots) if roots else {}
    return {i: parted(joins.get(i, ()), {event_id for e, event_id in placed if e == i}) for i in concerned}
