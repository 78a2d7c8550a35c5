"""Single events into a partition: append, per-event populate, and the follower's calls.

A partition that claims nothing gets the event first and the marker after; one that claims
something gets the marker first.  When its event is then refused, the marker stays ahead of the
content: newer events exist that are not stored, and the guarded read says so.  An engine
failure takes back both.  No call here writes coverage.  Source: spec 2.3, 2.4.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from sidecar.core.authority import (
    Partition,
    StoredEvent,
    Watermark,
    advanced,
    check_whole,
    placed,
    widened,
)
from sidecar.core.event import Event
from sidecar.core.replicated import Arrival, arrival
from sidecar.errors import Forked, Invalid, NotHead
from sidecar.store.unit import StoreUnit

Refusal = NotHead | Invalid | Forked


@dataclass(frozen=True, slots=True)
class Clash:
    """A replicated event and the stored row that it stands against; nothing was written."""

    came: StoredEvent
    stands: StoredEvent

    @property
    def error(self) -> Forked:
        came = self.came.event
        return Forked(came.execution_id, came.prev_event_id, self.stands.event.event_id, came.event_id)


async def append(unit: StoreUnit, event: Event, now: int) -> int:
    """Put `event` behind the head.

    Raises:
        NotHead: it names another predecessor.
        Invalid: its id or its place is taken; raised when the unit writes its rows.
    """
    partition = await _record(unit, event.execution_id)
    if partition.head_event_id != event.prev_event_id:
        raise NotHead(partition.head_event_id, event.prev_event_id)
    after = placed(partition, event, partition.head_seq + 1, now)
    unit.append((StoredEvent(after.head_seq, event, "append", now),))
    unit.put_partition(after)
    return after.head_seq


async def populate(unit: StoreUnit, event: Event, now: int) -> int | Refusal:
    """Append and mark, in the order of spec 2.4.

    Returns:
        The event's exec_seq; or why it was refused on a partition that claims something, whose
        advanced marker the unit then holds.

    Raises:
        NotHead, Invalid: refused on a partition without a marker; nothing is left.
    """
    head = (await _record(unit, event.execution_id)).head_seq

    async def put() -> int:
        return await append(unit, event, now)

    return await _marked(unit, event.execution_id, head + 1, advanced, put)


async def populate_replicated(unit: StoreUnit, event: Event, exec_seq: int, now: int) -> int | Refusal:
    """Apply and mark; the marker takes `exec_seq` in, in either direction.

    Returns and raises as `populate`, with Forked for NotHead.
    """

    async def put() -> int:
        clashes = await apply(unit, (StoredEvent(exec_seq, event, "replicated", now),), now)
        if clashes:
            raise clashes[0].error
        return exec_seq

    return await _marked(unit, event.execution_id, exec_seq, widened, put)


async def _marked(
    unit: StoreUnit,
    execution_id: int,
    expected: int,
    mark: Callable[[Watermark | None, int], Watermark],
    put: Callable[[], Awaitable[int]],
) -> int | Refusal:
    claimed = (await _record(unit, execution_id)).watermark
    if claimed is None:
        seq = await put()
        await _mark(unit, execution_id, mark(None, seq))
        return seq
    await _mark(unit, execution_id, mark(claimed, expected))
    try:
        async with unit.savepoint():
            seq = await put()
    except (NotHead, Invalid, Forked) as refusal:
        return refusal
    # What the append says counts, not what was expected of it.
    await _mark(unit, execution_id, mark(claimed, seq))
    return seq


async def _mark(unit: StoreUnit, execution_id: int, watermark: Watermark) -> None:
    unit.put_partition(replace(await _record(unit, execution_id), watermark=watermark))


async def apply(unit: StoreUnit, rows: Sequence[StoredEvent], now: int) -> list[Clash]:
    """Put replicated rows where they belong, in whatever order they come.

    Rows that are known are passed over.  The head of a partition moves only forward, and no
    marker and no coverage is touched.

    Returns:
        The rows that stand against another one, in order; the rest is written.
    """
    by_key = await unit.find((row.event.execution_id, row.event.event_id) for row in rows)
    by_place = await unit.places((row.event.execution_id, row.exec_seq) for row in rows)
    records = await unit.partitions({row.event.execution_id for row in rows})
    for record in records.values():
        check_whole(record)
    clashes = []
    for row in rows:
        e, event = row.event.execution_id, row.event
        found = arrival(event, row.exec_seq, by_key.get((e, event.event_id)), by_place.get((e, row.exec_seq)))
        if isinstance(found, StoredEvent):
            clashes.append(Clash(row, found))
        elif found is Arrival.NEW:
            by_key[e, event.event_id] = by_place[e, row.exec_seq] = row
            records[e] = placed(records.get(e) or Partition(e), event, row.exec_seq, now)
            unit.append((row,))
            unit.put_partition(records[e])
    return clashes


async def _record(unit: StoreUnit, execution_id: int) -> Partition:
    """The record, a fresh one when there is none.

    Raises:
        PartitionUnreadable: it is torn; no single event may be put on top of that.
    """
    found = (await unit.partitions((execution_id,))).get(execution_id) or Partition(execution_id)
    check_whole(found)
    return found
