"""Behind the connections of a store on SQLite: the driver's own objects."""

from __future__ import annotations

import aiosqlite

from sidecar.store import StoreReader
from sidecar.store.connection import Connection
from sidecar.store.quick import Quick
from sidecar.store.sqlite import SqliteConnection


def sqlite_of(connection: Connection) -> SqliteConnection:
    assert isinstance(connection, SqliteConnection)
    return connection


def raw(connection: Connection) -> aiosqlite.Connection:
    """The driver's connection."""
    return sqlite_of(connection)._raw


def quick(store: StoreReader) -> Quick:
    assert store._quick is not None
    return store._quick
