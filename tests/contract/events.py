"""Events for the tests of the store."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.core.event import Event
from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog, Populated
from tests.contract.backends import Contract
from tests.support.changing import replace

E = 7_000_000_000_000_000_001
"""Beyond 2^53: a float would not hold it."""


def chain(*ids: int, execution_id: int = E, parent: int | None = None) -> tuple[Event, ...]:
    """Events in link order, each naming the one before it."""
    return tuple(
        Event(execution_id, event_id, prev, parent, "step.exit", f'{{"event_id":{event_id}}}')
        for event_id, prev in zip(ids, (None, *ids), strict=False)
    )


def long_chain(length: int, *, execution_id: int = E, body: str = "{}") -> tuple[Event, ...]:
    first = 8_000_000_000_000_000_000 + (execution_id % 100_000) * 10_000
    ids = range(first, first + length)
    return tuple(replace(event, body=body) for event in chain(*ids, execution_id=execution_id))


async def populated(store: Contract, events: Sequence[Event], read: LogRead | None = None) -> Populated:
    """Populate one execution and return all that came of it."""
    execution_id = events[0].execution_id
    log = ExecutionLog(execution_id, tuple(events), read or LogRead(store.clock.now()))
    return (await store.transact(lambda unit: unit.populate((log,))))[execution_id]
