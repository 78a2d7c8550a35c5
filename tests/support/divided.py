"""A network on loopback that can be divided: every node is reached through a relay of its own.

A node binds one address and is known by its relay's.  Datagrams are told apart by the address they
come from; a stream cannot be, so while anybody is cut off no stream goes through at all.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

Address = tuple[str, int]


class Network:
    """Made by `network`."""

    def __init__(self) -> None:
        self.cut_off: set[Address] = set()
        """Where those are bound whom nobody reaches and who reach nobody."""
        self.dropped = 0
        """Datagrams that did not go through."""
        self.heard: list[bytes] = []
        """Datagrams that went to a node through its relay."""
        self._relays: list[_Relay] = []

    async def place(self) -> tuple[str, str]:
        """An address to bind, and the one to be known by."""
        relay = _Relay(self, _free())
        await relay.open()
        self._relays.append(relay)
        return _text(relay.behind), _text(relay.front)

    def passes(self, sender: Address, receiver: Address) -> bool:
        good = self.cut_off.isdisjoint({sender, receiver})
        self.dropped += not good
        return good

    def cut(self, bind: str) -> None:
        """Nobody reaches the node that is bound there, and it reaches nobody, from now on."""
        self.cut_off.add(_address(bind))
        for relay in self._relays:
            relay.drop_streams()

    def heal(self) -> None:
        self.cut_off.clear()

    async def close(self) -> None:
        for relay in self._relays:
            await relay.close()


class _Relay(asyncio.DatagramProtocol):
    def __init__(self, network: Network, behind: Address) -> None:
        self.network = network
        self.behind = behind
        self.front: Address = ("", 0)
        self._ways: dict[Address, asyncio.DatagramTransport] = {}
        self._opening: dict[Address, list[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._stream, "127.0.0.1", 0)
        self.front = self._server.sockets[0].getsockname()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=self.front)

    def datagram_received(self, data: bytes, sender: Any) -> None:
        if not self.network.passes(sender, self.behind):
            return
        self.network.heard.append(data)
        if sender in self._ways:
            self._ways[sender].sendto(data)
            return
        self._opening.setdefault(sender, []).append(data)
        if len(self._opening[sender]) == 1:
            task = asyncio.create_task(self._way(sender))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _way(self, sender: Address) -> None:
        loop = asyncio.get_running_loop()
        way, _ = await loop.create_datagram_endpoint(lambda: _Back(self, sender), remote_addr=self.behind)
        self._ways[sender] = way
        for data in self._opening.pop(sender):
            way.sendto(data)

    def back(self, data: bytes, sender: Address) -> None:
        if self.network.passes(self.behind, sender):
            self._transport.sendto(data, sender)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            if not self.network.cut_off:
                there, back = await asyncio.open_connection(*self.behind)
                self._streams |= {writer, back}
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
        self._streams.discard(writer)
        writer.close()

    def drop_streams(self) -> None:
        for writer in self._streams:
            writer.transport.abort()
        self._streams.clear()

    async def close(self) -> None:
        self.drop_streams()
        self._server.close()
        await self._server.wait_closed()
        for transport in (self._transport, *self._ways.values()):
            transport.close()
        await asyncio.gather(*self._tasks)


class _Back(asyncio.DatagramProtocol):
    """Answers to where a datagram came from."""

    def __init__(self, relay: _Relay, sender: Address) -> None:
        self._relay = relay
        self._sender = sender

    def datagram_received(self, data: bytes, sender: object) -> None:
        self._relay.back(data, self._sender)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def _free() -> Address:
    """A port that is free for datagrams and streams."""
    with closing(socket.socket()) as stream:
        stream.bind(("127.0.0.1", 0))
        address: Address = stream.getsockname()
        with closing(socket.socket(type=socket.SOCK_DGRAM)) as datagrams:
            datagrams.bind(address)
    return address


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


@asynccontextmanager
async def network() -> AsyncIterator[Network]:
    made = Network()
    try:
        yield made
    finally:
        await made.close()
