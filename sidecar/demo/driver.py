"""Where the demo meets the Postgres driver: its exceptions end here.

A message names the kind of failure and its SQLSTATE, never a row, a host or a password.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from sidecar.errors import SidecarError, SourceContractError, SourceUnavailable


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn what the driver raises into our errors; a task group's first failure speaks for it.

    Raises:
        SourceUnavailable: the connection failed or broke.
        SourceContractError: the server refused the statement.
    """
    try:
        yield
    except ExceptionGroup as group:
        error = _first(group)
        if (ours := _ours(error, doing)) is None:
            raise
        raise ours from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        ours = _ours(error, doing)
        raise ours or SourceUnavailable(f"{doing}: {type(error).__name__}") from error


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _ours(error: Exception, doing: str) -> SidecarError | None:
    if isinstance(error, SidecarError):
        return error
    if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.PostgresConnectionError):
        return SourceUnavailable(f"{doing}: the connection failed ({type(error).__name__})")
    if isinstance(error, asyncpg.PostgresError):
        return SourceContractError(f"{doing}: the server refused ({type(error).__name__}, {error.sqlstate})")
    return None
