"""What a store says of itself as a whole, the same over every engine.  Source: spec 3.6."""

from __future__ import annotations

from sidecar.core.authority import Partition
from sidecar.core.exclusion import EXCLUDED
from sidecar.core.ports import Unit
from sidecar.store import StoreReader
from sidecar.store.overview import coverage
from tests.contract.backends import Backend, Contract

E = 4600


async def test_what_is_left_out_is_in_no_number(backend: Backend, store: Contract) -> None:
    if not isinstance(store, StoreReader):
        return  # the memory has no overview

    async def judged(unit: Unit) -> None:
        for i, verdict in enumerate(("match", EXCLUDED, "log_truncated", None)):
            unit.put_partition(
                Partition(
                    E + i, rows_seen=3, verdict=verdict, verdict_rows=3, first_seen_at=1, last_change_at=9
                )
            )

    await store.transact(judged)
    found = await coverage(store, since=0, unjudged_before=5)
    assert found.verdicts == {"match": 1, "log_truncated": 1, "unjudged": 1}
    assert (found.covered_events, found.eligible_events) == (3, 9)
