"""From a planted fault to its verdict: every kind is found within its documented windows."""

from __future__ import annotations

import pytest

from benchmarks import detection
from tests.support.databases import Database

ROOM: float = 3.0
"""A busy machine may take so many times as long; a window that is not kept takes for ever."""


@pytest.mark.torture
async def test_every_kind_of_fault_is_found_within_its_windows(pg: Database) -> None:
    results = await detection.measure(pg.dsn, plants=1)
    assert len(results) == len(detection.FAULTS)
    for result in results:
        assert result.limit is not None
        assert result.value < ROOM * result.limit, result
