"""Server-sent events: verdicts and findings as they come, no payload.

Whoever listens gets what happens from now on; nothing is repeated.  A slow listener loses the
oldest events and is told how many; it never holds up the line.  Streams end when the listener
that serves them ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sidecar.web.problem import Problem, Refusal

LISTENERS_MAX: Final = 32
QUEUE_MAX: Final = 256
HEARTBEAT_S: Final = 15.0
RETRY_MS: Final = 5000
MEDIA_TYPE: Final = "text/event-stream"


class _Queue:
    """What one listener has not been sent yet."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._dropped = 0
        self.moved = asyncio.Event()

    def put(self, text: bytes) -> None:
        if len(self._waiting) >= QUEUE_MAX:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(text)
        self.moved.set()

    def take(self) -> list[bytes]:
        found = list(self._waiting)
        if self._dropped:
            found.insert(0, _event("dropped", {"events": self._dropped}))
        self._waiting.clear()
        self._dropped = 0
        self.moved.clear()
        return found


class _Streaming(StreamingResponse):
    """Calls `left` when it is over, begun or not."""

    def __init__(self, content: AsyncIterator[bytes], left: Callable[[], None]) -> None:
        super().__init__(content, media_type=MEDIA_TYPE)
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._left()


class Hub:
    """Hands each event to everybody who listens."""

    def __init__(self, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._queues: set[_Queue] = set()
        self._closed = False
        self._heartbeat_s = heartbeat_s

    @property
    def listeners(self) -> int:
        return len(self._queues)

    def publish(self, name: str, document: Mapping[str, Any]) -> None:
        """Send one event; costs nothing while nobody listens."""
        if self._queues:
            text = _event(name, document)
            for queue in self._queues:
                queue.put(text)

    def close(self) -> None:
        """End every stream; later ones end at once."""
        self._closed = True
        for queue in self._queues:
            queue.moved.set()

    async def answer(self, request: Request) -> Response:
        """The route `/api/v1/events`.

        Raises:
            Problem: as many listen as may.
        """
        if len(self._queues) >= LISTENERS_MAX:
            again = {"retry-after": "5"}
            raise Problem(429, Refusal.BUSY, f"at most {LISTENERS_MAX} listen at a time", headers=again)
        if request.method == "HEAD":
            return Response(media_type=MEDIA_TYPE)
        # Counted at once, not when the stream begins: many may ask at the same moment.
        queue = _Queue()
        self._queues.add(queue)
        return _Streaming(self._stream(queue), lambda: self._queues.discard(queue))

    async def _stream(self, queue: _Queue) -> AsyncIterator[bytes]:
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            while not self._closed:
                try:
                    async with asyncio.timeout(self._heartbeat_s):
                        await queue.moved.wait()
                except TimeoutError:
                    yield b": heartbeat\n\n"
                for text in queue.take():
                    yield text
        finally:
            self._queues.discard(queue)


def _event(name: str, document: Mapping[str, Any]) -> bytes:
    # JSON has no line end outside its strings and none inside them: one data line.
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(document))
