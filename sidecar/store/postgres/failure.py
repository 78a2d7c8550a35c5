"""Decide whose fault a failure of the store's PostgreSQL is; by SQLSTATE or class, never by text.

No driver exception leaves this package, and no message names host, user or database.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from sidecar.errors import (
    ConfigError,
    Invalid,
    InvariantError,
    SidecarError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFenced,
    StoreFull,
)

FENCED: Final = "NC001"
"""Raised by the layout's own function."""

_FULL: Final = frozenset({"53100"})
_DAMAGED: Final = frozenset({"XX001", "XX002"})
_AWAY: Final = ("08", "53", "57P", "58", "HV")
"""No connection, no resources, a server that stops, its disk, a server behind it."""
_LATER: Final = frozenset(
    {"0A000", "25006", "25P03", "25P04", "40001", "40002", "40003", "40P01", "55P03", "57014"}
)
"""Read-only for now, a transaction that stood too long, a conflict, a lock, a deadline.

0A000 is what a standby answers to BEGIN READ WRITE, and nothing else that is said here.
"""
_LAYOUT: Final = frozenset({"3F000", "42P01", "42703", "42883"})
_RIGHTS: Final = ("28", "42501", "3D000")


def translated(error: BaseException) -> SidecarError:
    """The exception of ours for the driver's, or for the network's."""
    if isinstance(error, asyncpg.PostgresError):
        return _by_state(error)
    if isinstance(error, asyncpg.InternalClientError):
        return _away()
    if isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError):
        return _away()  # closed, or closing
    if isinstance(error, ssl.SSLError):
        return StoreBusy(
            "the store's server and this program find no way to speak TLS",
            hint="look at sslmode, sslrootcert and the client's key in NOETL_CHAIN_STORE, and at the server's"
            " certificate",
        )
    if isinstance(error, OSError | TimeoutError):
        return _away()
    if isinstance(error, OverflowError | UnicodeError | ValueError):
        return Invalid("a value is no 64-bit integer or no Unicode text")
    return InvariantError(f"the PostgreSQL driver was misused: {type(error).__name__}")


def _by_state(error: asyncpg.PostgresError) -> SidecarError:
    state: str = getattr(error, "sqlstate", None) or ""
    if state == FENCED:
        return StoreFenced(
            f"the store was taken over by {error.message or 'another process'}",
            hint="one sidecar a store: stop the other one, or give this one a schema of its own",
        )
    if state in _FULL:
        return StoreFull(
            "the disk of the store's server is full",
            hint="free space; nothing was lost, it is tried again",
        )
    if state in _DAMAGED:
        return StoreCorrupt("the store's server says that its data is damaged", hint="restore the server")
    if state.startswith(_RIGHTS):
        return StoreError(
            f"the store's server refuses us (SQLSTATE {state})",
            hint="check user, password and database, and that the role owns the store's schema",
        )
    if state in _LAYOUT:
        return StoreCorrupt(
            f"the store's schema lacks something of its layout (SQLSTATE {state})",
            hint="name another schema: a new store fills itself from the log",
        )
    if state.startswith(_AWAY) or state in _LATER:
        return StoreBusy(
            f"the store's server cannot be used now (SQLSTATE {state})", hint="it is tried again"
        )
    return _refused(state)


def _refused(state: str) -> SidecarError:
    if state == "23505":
        return Invalid("the key is taken: events are write-once")
    if state.startswith("22"):
        return Invalid("a value is no 64-bit integer or no text that PostgreSQL keeps")
    if state.startswith("23"):
        return Invalid(f"a value breaks a rule of its table (SQLSTATE {state})")
    return StoreError(f"PostgreSQL failed with SQLSTATE {state}")


def _away() -> StoreBusy:
    return StoreBusy(
        "the store's server does not answer",
        hint="look at it and at its address in NOETL_CHAIN_STORE; a sidecar that runs tries again",
    )


@contextmanager
def postgres_errors() -> Iterator[None]:
    """Turn every driver exception of the block into ours.

    Raises:
        StoreError, InvariantError: see `translated`.
    """
    try:
        yield
    except (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        OSError,
        TimeoutError,
        ValueError,
        OverflowError,
    ) as error:
        # A message of the driver may repeat a value, which may be payload, or the address.
        raise translated(error) from None


def unreadable_url() -> ConfigError:
    return ConfigError("the store's URL cannot be read", hint="postgresql://user@host:port/database")
