"""A statement that is given up leaves nothing behind that anybody complains of later."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from sidecar.source.silence import Silence


async def test_how_a_statement_that_was_given_up_ended_is_nobodys_business() -> None:
    """The driver may answer a cancellation with an error of its own."""

    async def answer() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionResetError

    async def connect() -> Any:
        raise TimeoutError

    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    with pytest.raises(TimeoutError):
        await Silence(connect, 1, 0.01).broken_by(answer())
    gc.collect()
    assert complaints == []
