"""A proxy on a port of this machine in front of a server that listens on a Unix socket or a port.

It can close connections in the middle of an answer, stand still there, and swallow what passes: sockets stay
open and nobody answers, as after a router has lost its table.  What was connected then stays dead for
ever; what connects after `heal` works.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, quote, urlsplit

PIECE = 65536
KEY_DATA = b"K\0\0\0\x0c"
"""How the message begins in which a server names its process: BackendKeyData, protocol 3.0."""


class Link:
    """One client and its way to the server."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.dead = False
        self.answered = 0

    def close(self) -> None:
        for side in (self.client, self.server):
            if side is not None:
                side.close()


class Proxy:
    """`dsn`: the way in.  `swallowed`: bytes that reached nobody; `accepted`: connections so far.

    Args:
        dsn: Of the server behind it; trust or a password in the URL.
        another_pid: Name another process than the one that serves, as a pooler does.
    """

    def __init__(self, dsn: str, *, another_pid: bool = False) -> None:
        parts = urlsplit(dsn)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.lead_to(dsn)
        self._user = quote(query.get("user") or parts.username or "postgres", safe="")
        self._password = f":{parts.password}" if parts.password else ""
        self._database = parts.path.lstrip("/")
        self._another_pid = another_pid
        self._links: set[Link] = set()
        self._swallowing = False
        self._answered_max: int | None = None
        self._left: int | None = None
        self._by_pieces = False
        self.at = 0
        self.swallowed = 0
        self.accepted = 0
        self._came = asyncio.Event()
        self.cuts = 0
        self.open = asyncio.Event()
        """While it is not set, who connects waits for the server's first word."""
        self.open.set()

    @property
    def dsn(self) -> str:
        return self.dsn_of(self._user)

    def dsn_of(self, user: str) -> str:
        return f"postgresql://{user}{self._password}@127.0.0.1:{self.at}/{self._database}"

    @property
    def links(self) -> int:
        """Connections whose client has not gone."""
        return len(self._links)

    async def accepts(self, more: int) -> None:
        """Wait for so many connections that come after this call."""
        goal = self.accepted + more
        while self.accepted < goal:
            self._came.clear()
            await self._came.wait()

    def lead_to(self, dsn: str) -> None:
        """The server of every connection from now on, as after a failover behind one name."""
        parts = urlsplit(dsn)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self._host = query.get("host") or parts.hostname or "localhost"
        self._port = int(query.get("port") or parts.port or 5432)

    def swallow(self) -> None:
        """From now on nothing passes, and what is connected now never will."""
        self._swallowing = True
        for link in self._links:
            link.dead = True

    def heal(self) -> None:
        """What connects from now on works."""
        self._swallowing = False

    def cut(self) -> None:
        """Close every connection at once."""
        for link in self._links:
            link.close()

    def cut_once_after(self, answered: int) -> None:
        """Close the first connection that has got so many more bytes of answers."""
        self._answered_max = answered
        for link in self._links:
            link.answered = 0

    @property
    def left(self) -> int:
        """How much more of answers passes, where that is bounded."""
        assert self._left is not None
        return self._left

    def pass_all(self) -> None:
        """Answers pass again, on whatever connects from now on."""
        self._left = None

    def stand_still_after(self, answered: int, *, by_pieces: bool = False) -> None:
        """So much more of answers passes, over whatever connection, and then no more.

        Args:
            answered: Bytes; by pieces: as often as the server has sent something.
        """
        self._left, self._by_pieces = answered, by_pieces

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._came.set()
        link = Link(writer)
        link.dead = self._swallowing
        self._links.add(link)
        answering: asyncio.Task[None] | None = None
        try:
            await self.open.wait()
            if not link.dead:
                server, link.server = await self._server()
                answering = asyncio.create_task(self._pass(link, server, writer, answer=True))
            await self._pass(link, reader, link.server)
        finally:
            link.close()
            self._links.discard(link)
            if answering is not None:
                answering.cancel()
                await asyncio.wait({answering})

    async def _server(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._host, self._port)

    async def _pass(
        self,
        link: Link,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter | None,
        *,
        answer: bool = False,
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(PIECE):
                if link.dead or target is None:
                    self.swallowed += len(piece)
                    continue
                if answer and not self._lets(len(piece)):
                    await asyncio.Event().wait()
                target.write(self._renamed(piece) if answer and self._another_pid else piece)
                await target.drain()
                if answer and self._is_enough(link, len(piece)):
                    break
        if not answer:
            return
        link.close()

    def _lets(self, size: int) -> bool:
        if self._left is not None:
            self._left -= 1 if self._by_pieces else size
        return self._left is None or self._left >= 0

    def _is_enough(self, link: Link, size: int) -> bool:
        link.answered += size
        if self._answered_max is None or link.answered <= self._answered_max:
            return False
        self._answered_max = None
        self.cuts += 1
        return True

    def _renamed(self, piece: bytes) -> bytes:
        before, found, after = piece.partition(KEY_DATA)
        if not found or len(after) < 8:
            return piece
        return before + found + bytes(byte ^ 0x55 for byte in after[:4]) + after[4:]


@asynccontextmanager
async def proxy(dsn: str, *, another_pid: bool = False) -> AsyncIterator[Proxy]:
    """A running proxy; every connection is closed at the end."""
    made = Proxy(dsn, another_pid=another_pid)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(made.connected(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made.at = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(set(tasks))
