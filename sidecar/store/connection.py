"""A connection to a chain store, one hold at a time, each a whole transaction or nothing.

A hold runs in a task of its own that a cancelled caller waits for, so the lock is never given
back while the transaction still runs.  A statement that fails spoils its hold: nothing more
is run in it and it cannot commit, because the engine may already have rolled back and would
commit each later statement by itself.

The statements of this package are written in SQLite's words; an engine that speaks others
translates them.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, TypeVar

from sidecar.errors import Forked, Invalid, NotHead, StoreError, broken

T = TypeVar("T")
Row = tuple[Any, ...]
Synchronous = Literal["normal", "full"]

REFUSALS: Final = (Invalid, NotHead, Forked)
"""What a savepoint goes back from: the event was refused, the engine is well."""


async def finished(task: asyncio.Task[T]) -> T:
    """The result of `task`, which is waited for even if the caller is cancelled meanwhile.

    Raises:
        CancelledError: the caller was cancelled; the task has ended by then, and its own
            failure, if any, is the cause.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])  # unlike awaiting the task, this never cancels it
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()


class Connection(ABC):
    """A connection and its lock; an engine says how a transaction begins, ends and runs a statement."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None
        self._closed = False

    async def hold(self, work: Callable[[], Awaitable[T]], then: Callable[[], None] = lambda: None) -> T:
        """Run `work` in one transaction, alone; commit, then call `then` in the same hold.

        Raises:
            StoreError: rolled back.  Whatever `work` raised: rolled back.
            CancelledError: the caller was cancelled; the transaction ran to its end first.
        """
        if asyncio.current_task() is self._holder is not None:
            broken("a transaction was opened inside another one of the same connection")
        async with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            self._holder = asyncio.create_task(self._transaction(work, then))
            try:
                return await finished(self._holder)
            finally:
                self._holder = None

    async def alone(self, sql: str, parameters: Iterable[Any] = ()) -> list[Row]:
        """All rows of one reading statement, which is a snapshot by itself.

        Raises:
            StoreError: the statement failed.
            CancelledError: the caller was cancelled; the statement ran to its end first.
        """
        return await self.hold(lambda: self.rows(sql, parameters))

    async def _transaction(self, work: Callable[[], Awaitable[T]], then: Callable[[], None]) -> T:
        try:
            await self._begin()
            result = await work()
            await self._commit()
        except BaseException:
            # Also a cancellation, at the end of the loop.
            await self._roll_back()
            raise
        finally:
            self._failure = None
        then()
        return result

    async def rows(self, sql: str, parameters: Iterable[Any] = ()) -> list[Row]:
        """Run one statement and return all its rows."""
        self._check()
        try:
            return await self._fetch(sql, parameters)
        except BaseException as error:
            self._failure = error
            raise

    async def many(self, sql: str, parameters: Iterable[Row]) -> None:
        """Run one writing statement for each of `parameters`, in one call of the driver.

        An iterator is consumed while nothing else of the hold runs.
        """
        self._check()
        try:
            await self._execute_many(sql, parameters)
        except BaseException as error:
            self._failure = error
            raise

    async def among(self, sql: str, execution_ids: Collection[int]) -> list[Row]:
        """All rows of a statement whose one parameter is a list of executions, in any order of these."""
        return await self.rows(sql, (json.dumps(list(execution_ids)),)) if execution_ids else []

    async def paired(self, sql: str, keys: Mapping[int, Sequence[int]]) -> list[Row]:
        """The same for a statement whose one parameter holds, for each execution, a list of numbers."""
        return await self.rows(sql, (json.dumps(keys),)) if keys else []

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A part of the hold that may be refused; a refusal takes back this part alone.

        Raises:
            Invalid, NotHead, Forked: this part was taken back, the hold goes on.
            StoreError: the engine failed; the hold is spoilt, as it may have rolled back.
        """
        await self.rows("SAVEPOINT part")
        try:
            yield
        except REFUSALS as refusal:
            # A broken constraint undoes its own statement and leaves the transaction whole.
            if self._failure is refusal:
                self._failure = None
            await self.rows("ROLLBACK TO part")
            await self.rows("RELEASE part")
            raise
        await self.rows("RELEASE part")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Close behind the hold that still runs; a second call does nothing."""
        async with self._lock:
            if not self._closed:
                self._closed = True
                await self._end()

    # The engine's

    @abstractmethod
    async def _begin(self) -> None: ...

    @abstractmethod
    async def _commit(self) -> None: ...

    @abstractmethod
    async def _roll_back(self) -> None:
        """Runs behind the statement that is still under way; does nothing when none is open."""

    @abstractmethod
    async def _fetch(self, sql: str, parameters: Iterable[Any]) -> list[Row]: ...

    @abstractmethod
    async def _execute_many(self, sql: str, parameters: Iterable[Row]) -> None: ...

    @abstractmethod
    async def _end(self) -> None: ...
