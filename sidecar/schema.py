"""Print or apply the SQL files: the store's layout, the reader role, the event table of a demo.

NoETL's tables are not touched: applying `postgres` makes a role and gives it rights to read,
applying `noetl` creates an event table only where there is none and only when asked by name.
What is applied is applied in one transaction, or not at all.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Final

import asyncpg

from sidecar import sql
from sidecar.errors import ConfigError, SourceContractError
from sidecar.settings import Settings
from sidecar.source.connection import translated
from sidecar.store.chain import ChainStore

READER: Final = "noetl_chain_reader"
_EXISTS: Final = frozenset({"42710", "42P07", "23505"})
"""Duplicate object, duplicate table, and the unique violation of two that race."""


class Group(StrEnum):
    """The folders under `migrations/`."""

    STORE = "store"
    NOETL = "noetl"
    POSTGRES = "postgres"


def printed(groups: tuple[Group, ...], *, schema: str, reader: str = READER) -> str:
    """The SQL of `groups` with its names in place, ready for any client.

    Raises:
        ConfigError: a name is no identifier.
    """
    return "\n".join(_text(group, schema, reader) for group in groups)


def _text(group: Group, schema: str, reader: str) -> str:
    names = {"schema": schema, "reader": reader}
    parts = (f"-- {group}/{file.name}\n{sql.rendered(file.text, names)}" for file in sql.scripts(group))
    return "\n".join(parts)


def apply(settings: Settings, group: Group, *, reader: str = READER, event_table: bool = False) -> str:
    """Apply one group; returns what was done, in one line.

    Args:
        event_table: Needed for `noetl`: the caller knows that this is no NoETL database.

    Raises:
        ConfigError: refused, nothing was sent.
        SourceError, StoreError: nothing was changed.
    """
    match group:
        case Group.STORE:
            asyncio.run(_open_store(settings))
            return "the store stands, in this version's layout"
        case Group.POSTGRES:
            asyncio.run(_execute(settings, _text(group, settings.noetl_schema, reader)))
            return f"role {reader} made; give it a password before it is used"
        case Group.NOETL:
            if not event_table:
                raise ConfigError(
                    "the event table belongs to NoETL; this creates one for demos and tests",
                    hint="in a database of your own, say --event-table",
                )
            asyncio.run(_execute(settings, _text(group, settings.noetl_schema, reader)))
            return "an empty event table was created"


async def _open_store(settings: Settings) -> None:
    async with ChainStore.open(settings.store):
        pass


async def _execute(settings: Settings, text: str) -> None:
    """Run a script as one simple query, which Postgres itself makes one transaction."""
    with translated():
        connection = await asyncpg.connect(
            settings.source_dsn(), statement_cache_size=0, timeout=settings.query_timeout_s
        )
        try:
            await connection.execute(text, timeout=settings.query_timeout_s)
        except asyncpg.PostgresError as error:
            if error.sqlstate in _EXISTS:
                raise SourceContractError(
                    "it stands there already; nothing was changed",
                    hint="`schema print` shows what would be made",
                ) from None
            raise
        finally:
            connection.terminate()
