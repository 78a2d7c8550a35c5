"""Waiting for what tells nobody: another process, another session of Postgres, the end of a socket.

Whatever has an event is awaited by it; a test of this process has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

PATIENCE_S: Final = 20.0


async def until(
    holds: Callable[[], bool | Awaitable[bool]],
    *,
    within_s: float = PATIENCE_S,
    every_s: float = 0.01,
    showing: Callable[[], Any] = lambda: "",
) -> None:
    """Look again until it holds.

    Args:
        showing: What stands there, for the message.

    Raises:
        AssertionError: it does not hold in time.
    """
    try:
        async with asyncio.timeout(within_s):
            while not await _answer(holds()):  # noqa: ASYNC110 - see above: there is no event
                await asyncio.sleep(every_s)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s; {showing()}") from None


async def _answer(given: bool | Awaitable[bool]) -> bool:
    return given if isinstance(given, bool) else await given
