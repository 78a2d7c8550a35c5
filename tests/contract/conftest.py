"""`backend`: one place for a store, by each implementation; `store`: a store opened there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.backends import Backend, Contract, SqliteBackend
from tests.contract.memory import MemoryBackend
from tests.contract.postgres import PostgresBackend, three_lenders
from tests.simulation.store import SimulatedBackend

BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "sqlite": SqliteBackend,
    "memory": MemoryBackend,
    "simulated": SimulatedBackend,
    "postgres": PostgresBackend,
    "spread": lambda folder: three_lenders(),
}
"""A further implementation joins here, and is held against the same suite and the model."""


SHORT = {"test_unit.py", "test_findings.py", "test_overview.py"}
"""What of the suite runs on PostgreSQL every time; a test there takes ten times as long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        engine = callspec and callspec.params.get("backend")
        if engine == "spread" or (engine == "postgres" and item.path.name not in SHORT):
            item.add_marker(pytest.mark.torture)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made = BACKENDS[request.param](tmp_path)
    yield made
    if isinstance(made, PostgresBackend):
        made.remove()


@pytest.fixture
async def store(backend: Backend) -> AsyncIterator[Contract]:
    async with backend.open() as opened:
        yield opened


@pytest.fixture
def sqlite(tmp_path: Path) -> SqliteBackend:
    """For what only SQLite has: files, plans, the shell's view."""
    return SqliteBackend(tmp_path)
