"""Something that is opened by `await` or by `async with`, and closed once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from sidecar.store.connection import finished


class _Closable(Protocol):
    async def close(self) -> None: ...


S = TypeVar("S", bound=_Closable)


class Opening(Generic[S]):
    """`store = await opening`, or `async with opening as store`.  Nothing happens before."""

    def __init__(self, start: Callable[[], Awaitable[S]]) -> None:
        self._start = start
        self._opened: S | None = None

    def __await__(self) -> Generator[object, None, S]:
        return self._open().__await__()

    async def _open(self) -> S:
        async def started() -> S:
            return await self._start()

        task = asyncio.create_task(started())
        try:
            return await finished(task)
        except asyncio.CancelledError:
            # Opened, but nobody is there to close it.
            if not task.cancelled() and task.exception() is None:
                await task.result().close()
            raise

    async def __aenter__(self) -> S:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()
