"""How a task ends that nobody waits for any more."""

from __future__ import annotations

import asyncio
from typing import Any


async def abandoned(task: asyncio.Future[Any]) -> None:
    """End it; how it ended is nobody's business either, so that no loop complains of it later."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
