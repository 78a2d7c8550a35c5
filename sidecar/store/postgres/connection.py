"""A connection to the store's server that reads; each hold is one snapshot.

It is opened when it is needed, dropped when anything goes wrong with it, and opened anew by the
next hold.  Everything a transaction needs is said in it (SET LOCAL), so a transaction pooler may
stand in between: no session state, no prepared statements, no session locks.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from sidecar.core import pulse
from sidecar.core.event import is_id
from sidecar.errors import StoreBusy, StoreError, broken
from sidecar.sql import quoted
from sidecar.store.connection import Connection, Row
from sidecar.store.postgres import dialect
from sidecar.store.postgres.dialect import Bulk, compiled
from sidecar.store.postgres.failure import postgres_errors, unreadable_url
from sidecar.store.postgres.leaves import by_leaf, leaf
from sidecar.store.postgres.url import Place

CONNECT_S: Final = 10.0
STATEMENT_S: Final = 60.0
ROWS_AT_ONCE: Final = 2000
"""Rows of one writing statement; with bodies of 4 kB that is 8 MB."""
TEXT_AT_ONCE: Final = 32 * 1024 * 1024
"""Characters of one writing statement.  A server hangs up on a message of 1 GiB, each time again."""

WRITING: Final = "ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Said in each transaction that writes: a default of the role or the database is not asked."""

_CONTROL: Final = ("SAVEPOINT ", "ROLLBACK ", "RELEASE ")


@dataclass(frozen=True, slots=True)
class Layout:
    """What a connection has to know of the store's layout.

    `types`: by table and column, bigint or text.  `partitions`: the modulus.  `servers`: those
    that hold the leaves; empty: the store's own does.
    """

    types: Mapping[str, Mapping[str, str]]
    partitions: int
    servers: tuple[str, ...] = ()


async def connect(place: Place) -> Any:
    """A driver's connection.

    Raises:
        ConfigError: the URL cannot be read.
        StoreError: the server does not let us in, or does not answer.
    """
    with postgres_errors(), pulse.waiting(CONNECT_S):
        try:
            return await asyncpg.connect(
                place.dsn,
                statement_cache_size=0,
                timeout=CONNECT_S,
                command_timeout=STATEMENT_S + CONNECT_S,
                server_settings={"application_name": "noetl-chain store"},
            )
        except ssl.SSLError:  # a certificate that is refused is a ValueError, too
            raise
        except ValueError:  # also the driver's own word for a bad URL
            raise unreadable_url() from None


def begin(place: Place, mode: str, *more: str) -> str:
    """The script that opens a transaction, one round trip."""
    return ";".join(
        (
            f"BEGIN {mode}",
            f"SET LOCAL search_path = {quoted(place.schema)}, pg_temp",
            f"SET LOCAL statement_timeout = {round(STATEMENT_S * 1000)}",
            "SET LOCAL row_security = off",
            "SET LOCAL jit = off",
            *more,
        )
    )


@asynccontextmanager
async def _answering() -> AsyncIterator[None]:
    """A statement is answered in here, or not.

    The driver's own deadline is not enough: behind a statement it closes older ones, and waits for ever.
    """
    with postgres_errors(), pulse.waiting(STATEMENT_S + CONNECT_S):
        async with asyncio.timeout(STATEMENT_S + CONNECT_S):
            yield


class PostgresConnection(Connection):
    """One that reads."""

    def __init__(self, place: Place, layout: Layout) -> None:
        super().__init__()
        self._place = place
        self._layout = layout
        self._raw: Any = None
        self._begun = False

    @property
    def spread(self) -> bool:
        """Whether the leaves stand on other servers."""
        return bool(self._layout.servers)

    # Transactions

    async def _begin(self) -> None:
        used = self._raw is not None
        try:
            await self._try_to_begin()
        except StoreBusy:
            if not used:
                raise
            # It stood idle and the server went away meanwhile: nothing was begun on the new one yet.
            self._drop()
            await self._try_to_begin()

    async def _try_to_begin(self) -> None:
        if self._raw is None or self._raw.is_closed():
            self._raw = await connect(self._place)
        await self._say(self._beginning())
        self._begun = True

    def _beginning(self) -> str:
        return begin(self._place, "ISOLATION LEVEL REPEATABLE READ READ ONLY")

    async def _commit(self) -> None:
        self._check()
        await self._say("COMMIT")
        self._begun = False

    async def _roll_back(self) -> None:
        if self._raw is None:
            return
        if not self._begun or isinstance(self._failure, StoreBusy):
            self._drop()  # what state it is in is not known
            return
        try:
            await self._say("ROLLBACK")
            self._begun = False
        except StoreError:
            self._drop()

    def _drop(self) -> None:
        """Close it at once; the server ends the transaction when the socket closes."""
        if self._raw is not None:
            self._raw.terminate()
        self._raw, self._begun = None, False

    async def _say(self, script: str) -> str:
        with postgres_errors(), pulse.waiting(STATEMENT_S + CONNECT_S):
            said: str = await self._raw.execute(script, timeout=STATEMENT_S + CONNECT_S)
        return said

    async def _end(self) -> None:
        self._drop()

    # Statements

    async def _fetch(self, sql: str, parameters: Iterable[Any]) -> list[Row]:
        if sql.startswith(_CONTROL):
            await self._say(sql)
            return []
        statement = compiled(sql)
        if statement.bulk is not None and statement.bulk.replace:
            await self._write(statement.bulk, [tuple(parameters)])
            return []
        if not statement.text:
            return []
        return await self._ask(statement.text, statement.bound(parameters))

    async def _ask(self, text: str, arguments: Sequence[Any]) -> list[Row]:
        async with _answering():
            found = await self._raw.fetch(text, *arguments, timeout=STATEMENT_S + CONNECT_S)
        return [tuple(row) for row in found]

    async def pieces(self, text: str, arguments: Sequence[Any], rows: int) -> AsyncIterator[list[Any]]:
        """The rows of one statement in PostgreSQL's words, some at a time; within a hold."""
        self._check()
        async with _answering():
            cursor = await self._raw.cursor(text, *arguments, timeout=STATEMENT_S + CONNECT_S)
        while True:
            async with _answering():
                piece = await cursor.fetch(rows, timeout=STATEMENT_S + CONNECT_S)
            if not piece:
                return
            yield [tuple(row) for row in piece]

    async def _execute_many(self, sql: str, parameters: Iterable[Row]) -> None:
        statement = compiled(sql)
        if statement.bulk is not None:
            for piece in _pieces(parameters):
                await self._write(statement.bulk, piece)
            return
        async with _answering():
            await self._raw.executemany(
                statement.text, [statement.bound(row) for row in parameters], timeout=STATEMENT_S + CONNECT_S
            )

    async def _write(self, bulk: Bulk, rows: Sequence[Row]) -> None:
        """Write rows, in one statement for each leaf they fall to."""
        known = self._layout.types.get(bulk.table)
        if known is None:
            broken(f"the layout has no table {bulk.table}")
        types = [known[name] for name in bulk.columns]
        for group in self._by_leaf(bulk, rows):
            columns = list(zip(*group, strict=True))
            if bulk.replace:
                await self._ask(dialect.deleting(bulk, types), [list(columns[at]) for at in bulk.key])
            await self._ask(dialect.inserting(bulk, types), [list(column) for column in columns])

    def _by_leaf(self, bulk: Bulk, rows: Sequence[Row]) -> Iterable[Sequence[Row]]:
        at = bulk.execution
        if at is None:
            return (rows,)
        groups: dict[int, list[Row]] = {}
        for row in rows:
            groups.setdefault(leaf(row[at], self._layout.partitions), []).append(row)
        return groups.values()

    async def among(self, sql: str, execution_ids: Collection[int]) -> list[Row]:
        found: list[Row] = []
        # An id beyond 64 bits is in no store.
        known = [each for each in execution_ids if is_id(each)]
        for ids in by_leaf(known, self._layout.partitions).values():
            found += await self.rows(sql, (ids,))
        return found

    async def paired(self, sql: str, keys: Mapping[int, Sequence[int]]) -> list[Row]:
        found: list[Row] = []
        for ids in by_leaf(keys, self._layout.partitions).values():
            pairs = [(execution_id, number) for execution_id in ids for number in keys[execution_id]]
            found += await self.rows(sql, (ids, [p[0] for p in pairs], [p[1] for p in pairs]))
        return found


def _pieces(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows in their order, so many together as one statement may hold."""
    piece: list[Row] = []
    size = 0
    for row in rows:
        text = sum(len(value) for value in row if isinstance(value, str))
        if piece and (len(piece) == ROWS_AT_ONCE or size + text > TEXT_AT_ONCE):
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += text
    if piece:
        yield piece
