"""Servers that keep chain stores: one for the process, started when it is first asked for.

It is never the server whose log a test compares.  `NOETL_TEST_STORE_PG_URL` names another one.
"""

from __future__ import annotations

import atexit
import itertools
import os
from functools import lru_cache
from typing import Any, Final

import asyncpg

from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.store.postgres.url import place_of
from tests.support.databases import run_apart

URL_VARIABLE: Final = "NOETL_TEST_STORE_PG_URL"
PARTITIONS: Final = 3
"""Few leaves: a test makes its own store, and a leaf is three relations."""

_numbers = itertools.count(1)


@lru_cache(maxsize=1)
def store_dsn() -> str:
    """The way into a database for stores."""
    given = os.environ.get(URL_VARIABLE)
    if given:
        return given
    server = EmbeddedPostgres.start({"max_connections": "200", "max_locks_per_transaction": "512"})
    atexit.register(server.stop)
    return server.dsn()


def fresh_url(partitions: int = PARTITIONS, dsn: str | None = None) -> str:
    """A place where no store stands yet."""
    schema = f"chain_{os.getpid()}_{next(_numbers)}"
    base = store_dsn() if dsn is None else dsn
    return f"{base}{'&' if '?' in base else '?'}schema={schema}&partitions={partitions}"


_idle: list[str] = []


def empty_url() -> str:
    """A place where a store stands that holds nothing, or none yet: making one takes a while."""
    return _idle.pop() if _idle else fresh_url()


async def give_back(url: str, idle: list[str] | None = None) -> None:
    """Empty the store at `url` for the next one; `idle` keeps it, or what `empty_url` gives."""
    place = place_of(url)
    conn = await asyncpg.connect(place.dsn, timeout=10)
    try:
        tables = await conn.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relkind IN ('r', 'f')"
            " AND relname NOT IN ('meta', 'writer') AND relname NOT LIKE 'identity%'",
            place.schema,
        )
        if not tables:
            return
        names = ", ".join(f'"{place.schema}"."{row[0]}"' for row in tables)
        await conn.execute(
            f'TRUNCATE {names} RESTART IDENTITY; DELETE FROM "{place.schema}".meta'
            " WHERE key NOT IN ('FORMAT_VERSION', 'partitions', 'servers')"
        )
    finally:
        await conn.close()
    (_idle if idle is None else idle).append(url)


async def said(dsn: str, sql: str, *arguments: Any) -> list[Any]:
    """The rows of one statement, from a connection of its own; several statements without arguments."""
    conn = await asyncpg.connect(dsn, timeout=10)
    try:
        if not arguments and ";" in sql:
            await conn.execute(sql)
            return []
        return [tuple(row) for row in await conn.fetch(sql, *arguments)]
    finally:
        await conn.close()


def drop(dsn: str, schema: str) -> None:
    """Drop a store with all that is in it."""
    run_apart(said(dsn, f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))
