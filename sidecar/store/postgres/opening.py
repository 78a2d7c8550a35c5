"""Open a store on PostgreSQL: which layout first, then who writes, then everything else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from sidecar.errors import StoreError, StoreFormatError, StoreLocked
from sidecar.store.connection import Connection
from sidecar.store.engine import Engine
from sidecar.store.format import Marker
from sidecar.store.postgres import layout as layouts
from sidecar.store.postgres.connection import Layout, PostgresConnection, connect
from sidecar.store.postgres.sums import PostgresSums
from sidecar.store.postgres.url import Place
from sidecar.store.postgres.writer import FencedWriter, unwritten
from sidecar.store.sizes import Sizes

SAME_SERVER: Final = (
    "the store stands on the server whose log it is compared with",
    "a store that shares disk and memory with the log proves nothing: use another server",
)
"""What is said of it, and the remedy."""

_WRITER: Final = "SELECT epoch, unit, holder FROM writer"
_BYTES: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c"
    " WHERE c.relnamespace = to_regnamespace($1) AND c.relkind = 'r'"
)


async def prepared(place: Place, *, writing: bool, not_on: str | None) -> Layout:
    """Pass the gate, and make the layout where there is none and somebody is going to write.

    Args:
        not_on: The system identifier of the server that is compared; None: not known.

    Raises:
        StoreFormatError: another layout, or none and nobody writes; nothing was changed.
        StoreError: the store stands on the server that is compared, or cannot be used.
    """
    raw = await connect(place)
    try:
        marker = await layouts.gate(raw, place)
        if marker is Marker.ABSENT and not writing:
            raise StoreFormatError(
                f"the schema {place.schema} holds no chain store", hint="name the one that the sidecar writes"
            )
        if not_on is not None and not_on in await layouts.identities(raw, place):
            raise StoreError(SAME_SERVER[0], hint=SAME_SERVER[1])
        if marker is Marker.ABSENT:
            await layouts.initialise(raw, place)
        return await layouts.read(raw, place)
    finally:
        raw.terminate()


async def taken(place: Place, layout: Layout, opened: AsyncExitStack, look_s: float) -> FencedWriter:
    """The writer, in whose epoch everything is written from here on; `opened` closes it."""
    writer = FencedWriter(place, layout)
    opened.push_async_callback(writer.close)
    if look_s > 0:
        await _check_nobody_writes(place, layout, look_s)
    await writer.take()
    return writer


async def _check_nobody_writes(place: Place, layout: Layout, look_s: float) -> None:
    """Look twice; a sidecar that follows a log stores its polls meanwhile.

    Raises:
        StoreLocked: somebody wrote.
    """
    looking = PostgresConnection(place, layout)
    try:
        before = await looking.hold(lambda: looking.rows(_WRITER))
        if not before:
            raise unwritten()
        if before[0][0] == 0:
            return  # nobody ever was the writer
        await asyncio.sleep(look_s)
        after = await looking.hold(lambda: looking.rows(_WRITER))
    finally:
        await looking.close()
    if not after:
        raise unwritten()
    if after != before:
        raise StoreLocked(
            f"the store is in use by {after[0][2]}",
            hint="stop the other sidecar, or give this one a schema of its own",
        )


async def postgres_engine(place: Place, layout: Layout, opened: AsyncExitStack, *, rejoining: bool) -> Engine:
    """The reading side; `opened` closes it."""
    connections = [PostgresConnection(place, layout) for _ in range(3)]
    for connection in connections:
        opened.push_async_callback(connection.close)
    points, scans, summing = connections
    summer = PostgresSums(summing, rejoining=rejoining)
    return Engine(points, scans, summer, partial(_sizes, scans, place.schema), rejoining=rejoining)


async def _sizes(connection: Connection, schema: str) -> Sizes:
    found = await connection.hold(lambda: connection.rows(_BYTES, (schema,)))
    return Sizes(used=int(found[0][0]), free=None, wal=0)
