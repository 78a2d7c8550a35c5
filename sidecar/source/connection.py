"""Connections to the log's Postgres, and what its failures mean.

A session is one connection.  It is opened when it is needed, dropped when anything goes wrong
in it, and opened anew by the next use; waiting between tries is the caller's.  Every statement
runs in a transaction of its own making whose settings are SET LOCAL, so that it works through a
transaction pooler: no prepared statements, no session state, no `options`.

Driver exceptions end here.  They are told apart by SQLSTATE or class, never by text, and what
leaves this module names neither host nor user nor database.
Source: spec 1.7, 1.8, 4.2.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

import asyncpg

from sidecar.core import pulse
from sidecar.errors import (
    ConfigError,
    InvariantError,
    SidecarError,
    SourceContractError,
    SourceError,
    SourceUnavailable,
)
from sidecar.source.silence import Silence

_SERVER_SHARE: Final = 0.9
"""The server's own statement_timeout comes first: it ends the work and says why.

A server that cannot be heard any more is given up at the whole deadline.
"""

_SETTINGS: Final = (
    "BEGIN READ ONLY;"
    "SET LOCAL TimeZone = 'UTC';"
    "SET LOCAL extra_float_digits = 1;"
    "SET LOCAL row_security = off;"
    "SET LOCAL jit = off;"
    "SET LOCAL statement_timeout = {timeout_ms}"
)


async def connect(dsn: str, timeout_s: float) -> Any:
    """A driver's connection; what it raises else is for `translated`.

    Args:
        timeout_s: Deadline of the connecting, and of statements that have none of their own.

    Raises:
        ConfigError: the DSN cannot be read; nothing of it is repeated.
    """
    try:
        return await asyncpg.connect(
            dsn,
            statement_cache_size=0,
            timeout=timeout_s,
            command_timeout=timeout_s,
            server_settings={"application_name": "noetl-chain"},
        )
    except ssl.SSLError:
        raise  # a certificate that is refused is a ValueError, too
    except ValueError:
        # Also asyncpg's ClientConfigurationError, and a port that is no number.
        raise ConfigError("the DSN cannot be read", hint="postgresql://user@host:port/database") from None


class Transaction:
    """A read-only transaction; every statement sees its own snapshot (READ COMMITTED)."""

    def __init__(self, connection: Any, timeout_s: float, silence: Silence | None) -> None:
        self._connection = connection
        self._timeout = timeout_s
        self._silence = silence

    @property
    def announced_pid(self) -> int:
        """The server process that the handshake named; behind a pooler another one works."""
        pid: int = self._connection.get_server_pid()
        return pid

    async def fetch(self, sql: str, *args: object) -> list[Any]:
        """All rows of one statement."""
        with pulse.waiting(self._timeout):
            answer = self._connection.fetch(sql, *args, timeout=self._timeout)
            rows: list[Any] = await _heard(answer, self._timeout, self._silence)
        return rows

    async def cursor(self, sql: str, *args: object) -> Portal:
        """One statement whose rows are fetched piece by piece, all from one snapshot."""
        with pulse.waiting(self._timeout):
            opened = await _heard(self._declared(sql, args), self._timeout, self._silence)
        return Portal(opened, self._timeout, self._silence)

    async def _declared(self, sql: str, args: Sequence[object]) -> Any:
        return await self._connection.cursor(sql, *args, timeout=self._timeout)


class Portal:
    """An open cursor; it ends with its transaction."""

    def __init__(self, cursor: Any, timeout_s: float, silence: Silence | None) -> None:
        self._cursor = cursor
        self._timeout = timeout_s
        self._silence = silence

    async def fetch(self, rows: int) -> list[Any]:
        """The next `rows` rows, fewer only at the end."""
        with pulse.waiting(self._timeout):
            answer = self._cursor.fetch(rows, timeout=self._timeout)
            fetched: list[Any] = await _heard(answer, self._timeout, self._silence)
        return fetched


async def _heard(answer: Coroutine[Any, Any, Any], timeout_s: float, silence: Silence | None = None) -> Any:
    # The driver's own deadline is not enough: behind a statement it closes older ones, and waits for ever.
    async with asyncio.timeout(timeout_s):
        return await (answer if silence is None else silence.broken_by(answer))


class Session:
    """One connection to the primary, used by one task at a time.

    Args:
        dsn: As asyncpg takes it (a URL).  Never logged.
        query_timeout_s: Deadline of every statement, on the server and here.
    """

    def __init__(self, dsn: str, *, query_timeout_s: float) -> None:
        self._dsn = dsn
        self._query_timeout_s = query_timeout_s
        self._connection: Any = None

    @asynccontextmanager
    async def transaction(self, timeout_s: float | None = None) -> AsyncIterator[Transaction]:
        """Run statements in one transaction; commit at the end, drop the connection on any failure.

        Args:
            timeout_s: A later deadline for statements that read much, None for the session's.
                A server that is not at work on them is given up as early as in any other.

        Raises:
            SourceError: translated; the next transaction opens a new connection.
        """
        timeout = timeout_s or self._query_timeout_s
        with translated():
            try:
                with pulse.waiting(3 * self._query_timeout_s):
                    connection = await self._opened()
                    begin = _SETTINGS.format(timeout_ms=max(1, int(timeout * _SERVER_SHARE * 1000)))
                    await connection.execute(begin, timeout=self._query_timeout_s)
                    silence = await self._silence(connection) if timeout > self._query_timeout_s else None
                yield Transaction(connection, timeout, silence)
                with pulse.waiting(self._query_timeout_s):
                    await connection.execute("COMMIT", timeout=self._query_timeout_s)
            except BaseException:
                # Also when the consumer of an open cursor goes away: Postgres ends the
                # transaction when the socket closes, so nothing of ours pins its xmin.
                self.drop()
                raise

    async def _silence(self, connection: Any) -> Silence:
        # Asked for: behind a pooler the handshake names another process.
        every_s = self._query_timeout_s
        pid: int = await _heard(connection.fetchval("SELECT pg_backend_pid()"), every_s)
        return Silence(partial(connect, self._dsn, every_s), pid, every_s)

    async def _opened(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._dsn, self._query_timeout_s)
        return self._connection

    def drop(self) -> None:
        """Close the connection at once."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Take leave of the server."""
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed():
            return
        try:
            await connection.close(timeout=1)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()


@contextmanager
def translated() -> Iterator[None]:
    """Turn what the driver raises into errors of this program."""
    try:
        yield
    except SidecarError:
        raise
    except asyncpg.PostgresError as error:
        raise from_sqlstate(getattr(error, "sqlstate", None) or "") from None
    except TimeoutError:
        raise SourceUnavailable(
            "Postgres did not answer in time",
            hint="look at the server's load, or raise NOETL_CHAIN_QUERY_TIMEOUT_S",
        ) from None
    except OSError as error:
        raise SourceUnavailable(
            f"Postgres cannot be reached ({_errno_name(error)})",
            hint="check the DSN's host and port, and that the server runs",
        ) from None
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        if isinstance(error, ValueError):
            # How asyncpg says that an argument does not fit its parameter.
            raise InvariantError("a statement and its arguments do not fit") from error
        raise SourceUnavailable(
            f"the connection to Postgres broke ({type(error).__name__})", hint="it is opened again"
        ) from None


def _errno_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


_BY_STATE: Final[dict[str, tuple[type[SourceError], str, str]]] = {
    "28P01": (SourceError, "Postgres refused the password", "check POSTGRES_PASSWORD or the DSN"),
    "28000": (SourceError, "Postgres refused the login", "check the user, pg_hba.conf and sslmode"),
    "3D000": (SourceContractError, "the database does not exist", "check the DSN's database"),
    "3F000": (SourceContractError, "the schema does not exist", "check NOETL_SCHEMA"),
    "42P01": (SourceContractError, "the event table does not exist", "check NOETL_SCHEMA and the database"),
    "42703": (
        SourceContractError,
        "a column of the event table is gone",
        "restart: the columns are read at start-up",
    ),
    "42501": (
        SourceContractError,
        "a right is missing, or row security hides rows",
        "grant SELECT on the event table and USAGE on its schema to a role that bypasses row security",
    ),
    "42704": (
        SourceUnavailable,
        "the replication slot or the publication is gone",
        "it is looked at again; noetl-chain schema print wal makes the publication",
    ),
    "53400": (
        SourceUnavailable,
        "a limit of the server is reached",
        "max_replication_slots or temp_file_limit: the server's log says which",
    ),
    "55006": (
        SourceUnavailable,
        "somebody else is using the replication slot",
        "one sidecar a slot: NOETL_CHAIN_WAL_SLOT names another one",
    ),
    "57014": (
        SourceUnavailable,
        "a statement took longer than its deadline",
        "look at the server's load, or raise NOETL_CHAIN_QUERY_TIMEOUT_S",
    ),
}
"""What an operator can act on, by SQLSTATE."""

_RETRYABLE_CLASSES: Final = frozenset({"08", "40", "53", "55", "57", "58", "XX"})
"""Connection, rollback, resources, not in this state, operator intervention, system, internal."""


def from_sqlstate(state: str) -> SourceError:
    """The error for a SQLSTATE; its text is ours, never the server's."""
    if state in _BY_STATE:
        kind, message, hint = _BY_STATE[state]
        return kind(f"{message} (SQLSTATE {state})", hint=hint)
    if state[:2] in _RETRYABLE_CLASSES:
        return SourceUnavailable(
            f"Postgres cannot serve us now (SQLSTATE {state})",
            hint="look at the server's log; it is tried again",
        )
    return SourceError(f"Postgres refused a statement (SQLSTATE {state})", hint="look at the server's log")


async def fetch_alone(session: Session, sql: str, args: Sequence[object] = ()) -> list[Any]:
    """One statement in a transaction of its own."""
    async with session.transaction() as transaction:
        return await transaction.fetch(sql, *args)
