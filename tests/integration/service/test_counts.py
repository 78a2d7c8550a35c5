"""How many rows an execution counts with that is too long to be read."""

from __future__ import annotations

from pathlib import Path

from sidecar.core.settle import Limits
from tests.support.certified import steps
from tests.support.scripted import Scripted
from tests.unit.core.build import E


async def test_a_truncated_execution_counts_its_rows_once_and_after_a_restart_at_least_once(
    tmp_path: Path,
) -> None:
    """What found no place is remembered in memory alone: the denominator grows, it never shrinks."""
    here = await Scripted.open(tmp_path, limits=Limits(read=5, pool=2))
    try:
        rows = here.commit(*steps(*range(1, 9)))
        for lane in ("live", "late", "sweep:1:1"):
            await here.deliver(*rows, lane=lane)
            await here.judge(E)
            partition = await here.partition(E)
            assert (partition.rows_seen, partition.verdict) == (8, "log_truncated")
        await here.restart()
        await here.deliver(*rows)
        await here.judge(E)
        assert (await here.partition(E)).rows_seen >= 8
        assert await here.stored(E) == []
    finally:
        await here.store.close()
