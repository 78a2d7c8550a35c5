"""`backend`: one place for a store, by each implementation; `store`: a store opened there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.contract.backends import Backend, Contract, SqliteBackend
from tests.contract.memory import MemoryBackend
from tests.simulation.store import SimulatedBackend

BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "sqlite": SqliteBackend,
    "memory": MemoryBackend,
    "simulated": SimulatedBackend,
}
"""A further implementation joins here, and is held against the same suite and the model."""


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return BACKENDS[request.param](tmp_path)


@pytest.fixture
async def store(backend: Backend) -> AsyncIterator[Contract]:
    async with backend.open() as opened:
        yield opened


@pytest.fixture
def sqlite(tmp_path: Path) -> SqliteBackend:
    """For what only SQLite has: files, plans, the shell's view."""
    return SqliteBackend(tmp_path)
