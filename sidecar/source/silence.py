"""Whether a server that has long been silent is still at work, or can no longer be heard.

A statement that reads a whole partition is given longer than the deadline of a query.  Whether it
is at work or its socket is dead cannot be told from the socket.  So once a deadline somebody else
asks the server, over a connection of its own, what that process is doing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import asyncpg

from sidecar.abandoned import abandoned
from sidecar.errors import SourceUnavailable

_MISSED: Final = 2
"""Found idle so often in a row it is given up: once, the answer may be on its way."""

_AT_WORK: Final = (
    "select count(*) from pg_stat_activity"
    " where pid = $1 and coalesce(state, 'disabled') in ('active', 'disabled')"
    " and wait_event is distinct from 'ClientWrite'"
)
"""Without track_activities the server cannot tell; who waits to be rid of an answer is not at work."""

_T = TypeVar("_T")


class Silence:
    """Watches over the statements of one transaction.

    Args:
        connect: Makes a connection of its own; that and its statements end within `every_s`.
        pid: The server process of the transaction.
        every_s: How long it may be silent before somebody asks.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], pid: int, every_s: float) -> None:
        self._connect = connect
        self._pid = pid
        self._every_s = every_s

    async def broken_by(self, answer: Coroutine[Any, Any, _T]) -> _T:
        """What `answer` returns or raises, in the end.

        Raises:
            SourceUnavailable: the server does not work on it any more; `answer` was cancelled.
            OSError, TimeoutError: nor can anybody connect to it.
        """
        waiting, missed = asyncio.create_task(answer), 0
        try:
            while not (await asyncio.wait({waiting}, timeout=self._every_s))[0]:
                missed = 0 if await self._at_work() else missed + 1
                if missed == _MISSED and not waiting.done():
                    raise SourceUnavailable(
                        "Postgres has answered, and the answer did not arrive",
                        hint="look at the network between here and Postgres; it is tried again",
                    )
            return waiting.result()
        finally:
            await abandoned(waiting)

    async def _at_work(self) -> bool:
        """Also where nobody can tell: the server starts or is full, the pooler has no server free."""
        try:
            connection = await self._connect()
        except asyncpg.PostgresError:
            return True
        try:
            await connection.execute("BEGIN READ ONLY")  # through a pooler, both on one server
            return bool(await connection.fetchval(_AT_WORK, self._pid))
        except (asyncpg.PostgresError, TimeoutError):
            return True
        finally:
            connection.terminate()
