"""Before a store is followed as another shard: what falls to others leaves it, and nothing is lost.

A partition may go when the log holds every row of it: by equal sums, or row by row where the log
has grown.  Whoever it falls to now finds it in the log, by the first reads without a horizon.
What the log does not hold, or cannot be asked for, is set aside before it goes, and so is what
people and comparators remarked.  Source: design 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.ports import BoundedReader, LogSummer, StoredSummer
from sidecar.core.sums import NOTHING, StoredSums, agree
from sidecar.errors import PartitionUnreadable
from sidecar.source.opened import LogSource
from sidecar.source.sums import LogSums
from sidecar.store import ChainStore
from sidecar.store.handover import Handover, filled_as

ROWS_MAX = 4000
"""Rows that one statement sums and one transaction deletes; one execution always."""


@dataclass(slots=True)
class HandedOver:
    """What left the store: executions, event rows, and how many executions were set aside of them."""

    executions: int = 0
    rows: int = 0
    aside: int = 0


async def hand_over(store: ChainStore, source: LogSource, log: FilteringBoundLogger) -> HandedOver | None:
    """Make `store` the store of the shard that `source` follows.

    Returns:
        None when it was that already, or holds nothing.

    Raises:
        SourceError, StoreError: what left is set aside or in the log; begun again, it goes on.
    """
    shard, handover = source.options.shard, Handover(store)
    if not await handover.needed(shard):
        return None
    before = await filled_as(store)
    log.warning("shard_changed", was=None if before is None else str(before), now=str(shard))
    await handover.begin(shard)
    done = HandedOver()
    async with source.lent_reader(store.clock) as reader:
        log_sums, stored_sums = LogSums(reader), store.summer
        low: int = ID_MIN
        while low <= ID_MAX and (known := await handover.known(low)):
            foreign = [execution_id for execution_id in known if not shard.owns(execution_id)]
            rows = await handover.rows(foreign)
            for part in _parts(foreign, rows):
                kept = await handover.remarked(part)
                kept |= await _only_here([i for i in part if i in rows], log_sums, stored_sums, reader, store)
                await handover.set_aside(kept)
                await handover.let_go(part)
                done.executions += len(part)
                done.rows += sum(rows.get(i, 0) for i in part)
                done.aside += len(kept)
            low = known[-1] + 1
    await handover.finish(shard)
    say = log.warning if done.aside else log.info
    say("handed_over", executions=done.executions, rows=done.rows, set_aside=done.aside)
    return done


def _parts(execution_ids: Sequence[int], rows: Mapping[int, int]) -> Iterator[list[int]]:
    part: list[int] = []
    weight = 0
    for execution_id in execution_ids:
        if part and weight + rows.get(execution_id, 0) > ROWS_MAX:
            yield part
            part, weight = [], 0
        part.append(execution_id)
        weight += rows.get(execution_id, 0)
    if part:
        yield part


async def _only_here(
    execution_ids: Sequence[int],
    log: LogSummer,
    stored: StoredSummer,
    reader: BoundedReader,
    store: ChainStore,
) -> set[int]:
    """Those of which the log does not hold every stored row; what cannot be told counts as such."""
    if not execution_ids:
        return set()
    logged, ours = await log.of(execution_ids), await stored.of(execution_ids)
    open_ones = [i for i in execution_ids if not agree(logged.get(i, NOTHING), ours.get(i, StoredSums()))]
    only: set[int] = set()
    while open_ones:
        for read in await reader.read_some(open_ones):
            open_ones.remove(read.execution_id)
            try:
                chain = {row.event for row in await store.stored_chain(read.execution_id)}
            except PartitionUnreadable:
                only.add(read.execution_id)
                continue
            if read.events is None or not chain <= set(read.events):
                only.add(read.execution_id)
    return only
