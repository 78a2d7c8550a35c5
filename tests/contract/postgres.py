"""The chain store on PostgreSQL as a backend of the contract suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from sidecar.core.event import Event
from sidecar.store import ChainStore, StoreReader
from sidecar.store.opening import Opening
from sidecar.store.postgres.connection import PostgresConnection
from sidecar.store.postgres.url import place_of
from tests.contract.backends import Contract
from tests.support.databases import beside
from tests.support.lenders import Lenders, three_databases, three_servers
from tests.support.storeserver import empty_url, give_back, said


def three_lenders() -> PostgresBackend:
    """The same store with its leaves on three other servers, by postgres_fdw."""
    return lent_by(three_servers())


def near_lenders() -> PostgresBackend:
    """The same with its leaves in three databases beside it: ready sooner, to postgres_fdw as far away."""
    return lent_by(three_databases())


def lent_by(lenders: Lenders) -> PostgresBackend:
    return PostgresBackend(url=lenders.empty_url(), lenders=lenders)


class PostgresBackend:
    """One schema on the server for stores; `lenders` hold its leaves."""

    def __init__(
        self, folder: Path | None = None, url: str | None = None, lenders: Lenders | None = None
    ) -> None:
        self.lenders = lenders
        self.url = url or empty_url()
        self.place = place_of(self.url)
        self._broken = False

    def photograph(self) -> None:
        """What is not committed at this instant goes with its connection; there is nothing to keep."""

    async def abandon(self, store: Contract) -> None:
        assert isinstance(store, ChainStore)
        for connection in (store._writer, store._points, store._scans):
            assert isinstance(connection, PostgresConnection)
            connection._drop()  # as the kernel would close the sockets
        await store.close()

    def open(self) -> Opening[ChainStore]:
        return ChainStore.open(self.url)

    def open_readonly(self) -> Opening[StoreReader]:
        return ChainStore.open_readonly(self.url)

    def remove(self) -> None:
        """Empty it for the next one."""
        if self._broken:
            self.run("ALTER TABLE partition RENAME COLUMN head_sequence TO head_seq")
        beside(give_back(self.url, self.lenders.idle if self.lenders else None))

    def plant_watermark(self, execution_id: int, first: int | None, through: int | None) -> None:
        self._record(execution_id)
        self.run(
            "UPDATE partition SET wm_first = $1, wm_through = $2 WHERE execution_id = $3",
            first, through, execution_id,
        )  # fmt: skip

    def plant_coverage(self, execution_id: int, root: int | None, total: int | None) -> None:
        self._record(execution_id)
        self.run(
            "UPDATE partition SET cov_root = $1, cov_total = $2 WHERE execution_id = $3",
            root, total, execution_id,
        )  # fmt: skip

    def plant_event(self, exec_seq: int, event: Event) -> None:
        self.run(
            "INSERT INTO event (execution_id, exec_seq, event_id, prev_event_id, parent_execution_id,"
            " event_type, body) VALUES ($1, $2, $3, $4, $5, $6, $7)",
            event.execution_id, exec_seq, event.event_id, event.prev_event_id, event.parent_execution_id,
            event.event_type, event.body,
        )  # fmt: skip

    def drop_event(self, execution_id: int, exec_seq: int) -> None:
        self.run("DELETE FROM event WHERE execution_id = $1 AND exec_seq = $2", execution_id, exec_seq)

    def break_head(self) -> None:
        self._broken = True
        self.run("ALTER TABLE partition RENAME COLUMN head_seq TO head_sequence")

    def _record(self, execution_id: int) -> None:
        self.run(
            "INSERT INTO partition (execution_id) SELECT $1::bigint WHERE NOT EXISTS"
            " (SELECT 1 FROM partition WHERE execution_id = $1)",
            execution_id,
        )

    def run(self, sql: str, *parameters: Any) -> list[Any]:
        """One statement from outside, as psql would run it; tables need no schema."""
        path = f"&options=-csearch_path%3D{self.place.schema}"
        return beside(said(self.place.dsn + path, sql, *parameters))


ON_ONE: Final = pytest.param(PostgresBackend, id="one")
ONE_AND_THREE: Final = [
    ON_ONE,
    pytest.param(three_lenders, id="three", marks=pytest.mark.torture),
]
"""Makers of backends, as parameters of a fixture: what is run over three servers is run long."""

alone: Final = pytest.mark.parametrize("postgres", [ON_ONE], indirect=True)
"""A test of what one server does: over several, a commit without an answer ends the process (ADR 0022)."""
