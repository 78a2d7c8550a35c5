"""Print or apply the SQL files: the store's layout, the reader role, the event table of a demo.

NoETL's tables are not touched: applying `postgres` makes a role and gives it rights to read,
`wal` a publication and the right to use slots; applying `noetl` creates an event table only where
there is none and only when asked by name.
What is applied is applied in one transaction, or not at all.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import asyncpg

from sidecar import sql
from sidecar.commands.arguments import Group
from sidecar.errors import ConfigError, SourceContractError
from sidecar.settings import Settings
from sidecar.source.connection import connect, translated
from sidecar.store.chain import ChainStore
from sidecar.store.postgres.nodes import spread
from sidecar.store.postgres.opening import prepared
from sidecar.store.postgres.url import is_postgres, place_of

READER: Final = "noetl_chain_reader"
PUBLICATION: Final = "noetl_chain"
_EXISTS: Final = frozenset({"42710", "42P07", "23505"})
_NO_SUCH_OBJECT: Final = "42704"
"""Duplicate object, duplicate table, and the unique violation of two that race."""


def main_print(settings: Settings, groups: tuple[Group, ...], *, reader: str | None, as_json: bool) -> int:
    """`noetl-chain schema print`: the SQL of `groups` on stdout.

    Raises:
        ConfigError: a name is no identifier.
    """
    names = _names(settings, reader or READER)
    if as_json:
        scripts = [
            {"group": group.value, "file": name, "sql": text}
            for group in groups
            for name, text in _scripts(group, names)
        ]
        print(json.dumps({"scripts": scripts}))  # noqa: T201 - machine output
    else:
        print(_text(groups, names))  # noqa: T201 - what was asked for
    return 0


def main_apply(
    settings: Settings,
    group: Group,
    *,
    reader: str | None,
    event_table: bool,
    as_json: bool,
    nodes: Sequence[str] = (),
) -> int:
    """`noetl-chain schema apply`: apply one group; see `apply`."""
    done = apply(settings, group, reader=reader or READER, event_table=event_table, nodes=nodes)
    if as_json:
        print(json.dumps({"group": group.value, "done": done}))  # noqa: T201 - machine output
    else:
        print(done, file=sys.stderr)  # noqa: T201 - said to people
    return 0


def printed(
    groups: tuple[Group, ...], *, schema: str, reader: str = READER, publication: str = PUBLICATION
) -> str:
    """The SQL of `groups` with its names in place, ready for any client.

    Raises:
        ConfigError: a name is no identifier.
    """
    return _text(groups, {"schema": schema, "reader": reader, "publication": publication})


def _text(groups: tuple[Group, ...], names: Mapping[str, str]) -> str:
    return "\n".join(
        f"-- {group}/{name}\n{text}" for group in groups for name, text in _scripts(group, names)
    )


def _scripts(group: Group, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for file in sql.scripts(group):
        yield file.name, sql.rendered(file.text, names)


def _names(settings: Settings, reader: str) -> dict[str, str]:
    return {
        "schema": settings.noetl_schema,
        "reader": reader,
        "publication": settings.wal_publication,
    }


def apply(
    settings: Settings,
    group: Group,
    *,
    reader: str = READER,
    event_table: bool = False,
    nodes: Sequence[str] = (),
) -> str:
    """Apply one group; returns what was done, in one line.

    Args:
        event_table: Needed for `noetl`: the caller knows that this is no NoETL database.
        nodes: With `store`: the servers on which the leaves of a new store stand.

    Raises:
        ConfigError: refused, nothing was sent.
        SourceError, StoreError: nothing was changed.
    """
    text = _text((group,), _names(settings, reader))
    if nodes and (group is not Group.STORE or not is_postgres(settings.store)):
        raise ConfigError(
            "servers lend leaves to a store in PostgreSQL", hint="schema apply store --store postgresql://…"
        )
    match group:
        case Group.STORE:
            asyncio.run(spread(settings.store, nodes) if nodes else _open_store(settings))
            return "the store stands, in this version's layout"
        case Group.POSTGRES:
            asyncio.run(_execute(settings, text))
            return f"role {reader} made; give it a password before it is used"
        case Group.WAL:
            asyncio.run(_execute(settings, text))
            return f"publication {settings.wal_publication} made; role {reader} may use replication slots"
        case Group.NOETL:
            if not event_table:
                raise ConfigError(
                    "the event table belongs to NoETL; this creates one for demos and tests",
                    hint="in a database of your own, say --event-table",
                )
            asyncio.run(_execute(settings, text))
            return "an empty event table was created"


async def _open_store(settings: Settings) -> None:
    if is_postgres(settings.store):  # without taking it over from a sidecar that runs
        await prepared(place_of(settings.store), writing=True, not_on=None)
        return
    async with ChainStore.open(settings.store):
        pass


async def _execute(settings: Settings, text: str) -> None:
    """Run a script as one simple query, which Postgres itself makes one transaction."""
    with translated():
        connection = await connect(settings.source_dsn(), settings.query_timeout_s)
        try:
            await connection.execute(text, timeout=settings.query_timeout_s)
        except asyncpg.PostgresError as error:
            if error.sqlstate in _EXISTS:
                raise SourceContractError(
                    "it stands there already; nothing was changed",
                    hint="`schema print` shows what would be made",
                ) from None
            if error.sqlstate == _NO_SUCH_OBJECT:  # to a lane it is a slot or a publication
                raise SourceContractError(
                    "a role that it names does not exist; nothing was changed",
                    hint="`schema apply postgres` makes the reader, or --reader names the one that is there",
                ) from None
            raise
        finally:
            connection.terminate()
