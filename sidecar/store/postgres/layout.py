"""Decide whether a schema is a chain store of this layout, and make it one where there is none.

The same gate as for a file: the marker is read before anything else and never overwritten; a
failed read is a failure, never "new".  Source: spec 2.2.
"""

# ruff: noqa: S608 - the statements are put together from constants and validated, quoted names

from __future__ import annotations

from typing import Any, Final

from sidecar.errors import StoreCorrupt, StoreError, StoreFormatError
from sidecar.sql import quoted, rendered, scripts
from sidecar.store.format import FORMAT_VERSION, Marker, judged
from sidecar.store.postgres.connection import Layout
from sidecar.store.postgres.failure import postgres_errors
from sidecar.store.postgres.url import Place

OLDEST: Final = 16
GROUP: Final = "store_postgres"
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
_TABLES: Final = (
    "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = to_regnamespace($1)"
    " AND c.relkind IN ('r', 'p')"
)
_COLUMNS: Final = (
    "SELECT c.relname, a.attname, format_type(a.atttypid, NULL) FROM pg_class AS c"
    " JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
    " WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
)
_FOREIGN: Final = (
    "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = to_regnamespace($1) AND c.relkind = 'f'"
    " AND c.relname LIKE 'identity\\_%' ORDER BY 1"
)
_IDENTITY: Final = "SELECT system_identifier::text FROM pg_control_system()"


async def gate(raw: Any, place: Place) -> Marker:
    """What the marker of the schema says.

    Raises:
        StoreFormatError: another layout, or tables that are no chain store.
        StoreError: it cannot be read.
    """
    with postgres_errors():
        async with raw.transaction(readonly=True):
            tables = {row[0] for row in await raw.fetch(_TABLES, place.schema)}
            if not tables:
                return Marker.ABSENT
            if not {"meta", "partition", "event", "writer"} <= tables:
                raise StoreFormatError(
                    f"the schema {place.schema} holds tables, but no chain store", hint="name another schema"
                )
            found = await raw.fetchrow(f"SELECT value FROM {_meta(place)} WHERE key = 'FORMAT_VERSION'")
    return judged(None if found is None else found[0])


def _meta(place: Place) -> str:
    return f"{quoted(place.schema)}.meta"


async def initialise(raw: Any, place: Place) -> None:
    """Write layout and marker where there are none, in one transaction.

    A schema that has the tables and lost only the marker gets the marker.

    Raises:
        StoreError: nothing was written.
    """
    with postgres_errors():
        async with raw.transaction():
            await raw.fetch(_LOCK, f"noetl-chain {place.schema}")
            tables = {row[0] for row in await raw.fetch(_TABLES, place.schema)}
            if not tables:
                await create(raw, place)
                await raw.execute(f"SELECT spread({place.partitions}, ARRAY[]::text[], '')")
            await raw.execute(
                f"INSERT INTO {_meta(place)} (key, value) VALUES ('FORMAT_VERSION', '{FORMAT_VERSION}')"
                " ON CONFLICT (key) DO NOTHING"
            )


async def create(raw: Any, place: Place) -> None:
    """The schema, if it is not there, and its tables and functions; no leaves, no marker."""
    if await raw.fetchval("SELECT to_regnamespace($1)", place.schema) is None:
        await raw.execute(f"CREATE SCHEMA {quoted(place.schema)}")
    names = {"schema": place.schema}
    for script in scripts(GROUP):
        await raw.execute(rendered(script.text, names))


async def read(raw: Any, place: Place) -> Layout:
    """The layout that stands there; the gate has let it through.

    Raises:
        StoreError: the database does not keep Unicode.
        StoreCorrupt: it does not say how it is divided.
    """
    with postgres_errors():
        async with raw.transaction(readonly=True):
            encoding = await raw.fetchval("SHOW server_encoding")
            told = dict(await raw.fetch(f"SELECT key, value FROM {_meta(place)}"))
            columns = await raw.fetch(_COLUMNS, place.schema)
    if raw.get_server_version().major < OLDEST:
        raise StoreError(
            f"the store's server is older than PostgreSQL {OLDEST}", hint="use a newer server for the store"
        )
    if encoding != "UTF8":
        raise StoreError("the store's database does not keep Unicode", hint="create it with ENCODING 'UTF8'")
    partitions = told.get("partitions", "")
    if not partitions.isascii() or not partitions.isdigit() or int(partitions) < 1:
        raise StoreCorrupt("the store does not say how it is divided", hint="name another schema")
    types: dict[str, dict[str, str]] = {}
    for table, column, kind in columns:
        types.setdefault(table, {})[column] = kind
    servers = tuple(filter(None, told.get("servers", "").split(",")))
    return Layout(types, int(partitions), servers)


async def identities(raw: Any, place: Place) -> set[str]:
    """The system identifiers of the store's server and of those behind it.

    Raises:
        StoreError: one of them cannot be asked.
    """
    with postgres_errors():
        async with raw.transaction(readonly=True):
            known = {str(await raw.fetchval(_IDENTITY))}
            for (table,) in await raw.fetch(_FOREIGN, place.schema):
                known.add(
                    str(
                        await raw.fetchval(
                            f"SELECT system_identifier FROM {quoted(place.schema)}.{quoted(table)}"
                        )
                    )
                )
    return known
