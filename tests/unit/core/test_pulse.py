"""Who watches a loop is told of its waits, and that they ended whatever they came to."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.core.pulse import listen, waiting


async def test_a_wait_is_told_with_its_bound_and_its_end() -> None:
    told: list[object] = []

    async def loop() -> None:
        listen(told.append)
        with waiting(2.5):
            told.append("waits")
        with pytest.raises(TimeoutError), waiting(1.0):
            raise TimeoutError

    await asyncio.create_task(loop())
    assert told == [2.5, "waits", 0.0, 1.0, 0.0]
    with waiting(9.0):
        told.append("nobody listens here")
    assert told[5:] == ["nobody listens here"]
