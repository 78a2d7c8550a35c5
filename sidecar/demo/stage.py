"""What a planted fault works with: connections, rows, the ledger, and what the sidecar shows.

Everything is announced in the ledger before its first row is written.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from sidecar.demo.copies import Mint, Row, copy
from sidecar.demo.ledger import Entry, Ledger
from sidecar.demo.player import insert_statement


class Watch(Protocol):
    """What a fault may wait for."""

    async def until_verdict(self, execution_id: int, verdict: str) -> bool:
        """Until the execution's latest verdict is this one; False after a bounded time."""
        ...


@dataclass(slots=True)
class Stage:
    """One demo's surroundings.

    `written` is told the execution of every committed row.  `played` is set when the
    recordings are played.
    """

    dsn: str
    store: Path
    ledger: Ledger
    watch: Watch
    template: Sequence[Row]
    mint: Mint
    written: Callable[[Iterable[int]], None]
    schema: str = "noetl"
    played: asyncio.Event = field(default_factory=asyncio.Event)
    _statements: dict[frozenset[str], str] = field(default_factory=dict)

    def execution(self, entry: Callable[[int], Entry], execution_id: int | None = None) -> list[Row]:
        """Rows of a new clean execution, announced as `entry` says of its id; not written yet."""
        rows = copy(self.template, self.mint, execution_id)
        self.ledger.announce([entry(rows[0]["execution_id"])])
        return rows

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A connection of its own, in UTC; what is open in it at the end rolls back."""
        connection = await asyncpg.connect(self.dsn, server_settings={"timezone": "UTC"})
        try:
            yield connection
            await connection.close(timeout=5.0)
        finally:
            if not connection.is_closed():
                connection.terminate()

    async def insert(self, connection: Any, rows: Sequence[Row]) -> None:
        """Insert rows of equal columns in whatever transaction stands open."""
        columns = frozenset(rows[0])
        if columns not in self._statements:
            self._statements[columns] = await insert_statement(
                connection, self.schema, columns, shifted=False
            )
        await connection.execute(self._statements[columns], json.dumps(list(rows)))

    async def write(self, connection: Any, rows: Sequence[Row]) -> None:
        """Each row in a transaction of its own, in order."""
        for row in rows:
            await self.insert(connection, [row])
            self.committed([row])

    def committed(self, rows: Sequence[Row]) -> None:
        """Say that these rows are visible now."""
        self.written([row["execution_id"] for row in rows])
