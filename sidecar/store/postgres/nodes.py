"""Put the leaves of a new store on several PostgreSQL servers, by postgres_fdw.

One server is the coordinator: the store's URL names it, and what belongs to the store as a whole
stands there.  Each node lends its share of the leaves; an execution stands on one node with
everything that belongs to it.  Nothing here is done to a store that exists.

The coordinator has to reach every node, as the user the nodes' URLs name; the passwords stand in
its user mappings, which only it and its superusers read.  Source: design 6.
"""

# ruff: noqa: S608 - the statements are put together from constants and validated, quoted names

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from sidecar.errors import ConfigError, StoreError, StoreFormatError
from sidecar.sql import quoted
from sidecar.store.format import FORMAT_VERSION, Marker
from sidecar.store.postgres import layout as layouts
from sidecar.store.postgres.connection import connect
from sidecar.store.postgres.failure import postgres_errors
from sidecar.store.postgres.url import Place, place_of

NODES_MAX: Final = 64
LENT: Final = "lent"
"""What a node's FORMAT_VERSION says: its schema is part of a store and cannot be opened as one."""

_OPTIONS: Final = {"host", "port", "dbname", "sslmode", "sslrootcert"}
_WAY: Final = (
    # Many rows in one round trip; a scan of a whole leaf, too.
    "fetch_size '1000'",
    "batch_size '1000'",
    # A connection that stays open after a node went away fails the next transaction for nothing.
    "keep_connections 'on'",
    # Seconds that a node which does not answer may hold up a transaction.
    "connect_timeout '5'",
)


async def spread(url: str, nodes: Sequence[str]) -> None:
    """Make a new store whose leaves stand on `nodes`.

    Args:
        url: The coordinator's, as for ChainStore.open.
        nodes: `postgresql://` URLs; the schema is the coordinator's.

    Raises:
        ConfigError: a URL cannot be read, or there are no nodes or too many.
        StoreFormatError: something stands in the schema, there or on a node.
        StoreError: a server cannot be used; a node's schema that was made may be left: drop it.
    """
    if not 1 <= len(nodes) <= NODES_MAX:
        raise ConfigError(f"a store is spread over 1 to {NODES_MAX} servers", hint="name each by --node URL")
    place = place_of(url)
    partitions = max(place.partitions, len(nodes))
    coordinator = await connect(place)
    try:
        if await layouts.gate(coordinator, place) is not Marker.ABSENT:
            raise StoreFormatError(
                f"the schema {place.schema} holds a store already", hint="name another schema"
            )
        for at, node in enumerate(nodes):
            await _lend(Place(place_of(node).dsn, place.schema), partitions, at, len(nodes))
        await _attach(coordinator, place, partitions, nodes)
    finally:
        coordinator.terminate()


async def _lend(place: Place, partitions: int, at: int, nodes: int) -> None:
    raw = await connect(place)
    try:
        if await layouts.gate(raw, place) is not Marker.ABSENT:
            raise StoreFormatError(
                f"the schema {place.schema} of node {at} is in use", hint="name another schema"
            )
        with postgres_errors():
            async with raw.transaction():
                await layouts.create(raw, place)
                await raw.execute(f"SELECT lend({partitions}, {at}, {nodes})")
                await raw.execute(f"INSERT INTO meta (key, value) VALUES ('FORMAT_VERSION', '{LENT}')")
    finally:
        raw.terminate()


async def _attach(raw: Any, place: Place, partitions: int, nodes: Sequence[str]) -> None:
    names = [f"{place.schema}_{at}" for at in range(len(nodes))]
    with postgres_errors():
        async with raw.transaction():
            await raw.execute("CREATE EXTENSION IF NOT EXISTS postgres_fdw")
            await layouts.create(raw, place)
            for name, node in zip(names, nodes, strict=True):
                options, user = _options(place_of(node).dsn)
                await raw.execute(
                    f"CREATE SERVER {quoted(name)} FOREIGN DATA WRAPPER postgres_fdw"
                    f" OPTIONS ({', '.join((*_pairs(options), *_WAY))})"
                )
                mapping = f"CREATE USER MAPPING FOR CURRENT_USER SERVER {quoted(name)}"
                await raw.execute(f"{mapping} OPTIONS ({', '.join(_pairs(user))})" if user else mapping)
            await raw.fetch("SELECT spread($1, $2::text[], $3)", partitions, names, place.schema)
            # Asks each of them once: what cannot be reached now makes no store.
            for name in names:
                known = await raw.fetchval(f"SELECT system_identifier FROM {quoted('identity_' + name)}")
                if not known:
                    raise StoreError(f"node {name} does not say who it is")
            await raw.execute(f"INSERT INTO meta (key, value) VALUES ('FORMAT_VERSION', '{FORMAT_VERSION}')")


def _options(dsn: str) -> tuple[dict[str, str], dict[str, str]]:
    """A URL as options of a server and of a user mapping."""
    parts = urlsplit(dsn)
    given = dict(parse_qsl(parts.query))
    server = {name: given[name] for name in _OPTIONS & given.keys()}
    server.setdefault("dbname", unquote(parts.path.lstrip("/")) or "postgres")
    if parts.hostname is not None:
        server.setdefault("host", parts.hostname)
    if parts.port is not None:
        server.setdefault("port", str(parts.port))
    user = {
        name: unquote(value)
        for name, value in (("user", parts.username), ("password", parts.password))
        if value is not None
    }
    return server, user | {name: given[name] for name in ("user", "password") if name in given}


def _pairs(options: dict[str, str]) -> list[str]:
    """Names of ours with values as SQL literals."""
    return [f"{name} {_literal(value)}" for name, value in sorted(options.items())]


def _literal(text: str) -> str:
    if "\0" in text:
        raise ConfigError("a node's URL holds a NUL", hint="postgresql://user@host:port/database")
    escaped = text.replace("'", "''").replace("\\", "\\\\")
    return f" E'{escaped}'" if "\\" in text else f"'{escaped}'"
