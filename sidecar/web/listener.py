"""The metrics listener: is it alive, is it ready, what does it count; and how any listener runs.

Three GET routes, no payload, nothing that writes.  A server runs as a task of ours: it takes
no signal handlers and ends within a second of being asked, requests in flight included.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sidecar.errors import ConfigError
from sidecar.settings import Bind
from sidecar.telemetry.health import Health

OK, UNAVAILABLE = 200, 503
_BACKLOG = 128


def application(registry: CollectorRegistry, health: Health) -> Starlette:
    """`/livez`, `/readyz`, `/metrics`; the first two say why in the body."""

    async def livez(request: Request) -> Response:
        silent = health.silent()
        return _answer("alive" if not silent else "silent: " + ", ".join(silent), good=not silent)

    async def readyz(request: Request) -> Response:
        reasons = health.reasons()
        return _answer("ready" if not reasons else "not ready: " + ", ".join(reasons), good=not reasons)

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])


def _answer(text: str, *, good: bool) -> Response:
    return PlainTextResponse(text + "\n", status_code=OK if good else UNAVAILABLE)


class Listener:
    """A bound socket and the server on it.

    Bound at once, so that a taken port stops the start; `run` serves until asked to end.
    """

    def __init__(
        self,
        app: ASGIApp,
        place: Bind,
        *,
        variable: str = "NOETL_CHAIN_METRICS_BIND",
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        """Bind.

        Args:
            ending: Called when it begins to end, before open requests are waited for.

        Raises:
            ConfigError: the address cannot be bound; nothing is left open.
        """
        self._ending = ending
        self._socket = _bound(place, variable)
        self._server = _Server(
            uvicorn.Config(
                app,
                access_log=False,
                lifespan="off",
                log_config=None,
                # Who asks is who is connected: a client that names another one is not believed.
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                ws="none",
            )
        )

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set or the task is cancelled; the socket is closed then."""
        server = asyncio.create_task(self._server.serve([self._socket]), name="http")
        stopped = asyncio.create_task(stop.wait(), name="http-stop")
        try:
            await asyncio.wait({server, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            self._ending()
            self._server.should_exit = True
            # Shielded: a cancelled server would leave its transports open.
            await asyncio.shield(server)
            self.close()

    def close(self) -> None:
        """Give the address back; for a listener that never ran, too."""
        self._socket.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the application."""
        yield


def _bound(place: Bind, variable: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((place.host, place.port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"port {place.port} of {variable} cannot be bound: {error.strerror or 'unknown name'}",
            hint=f"end the program that listens there, or set {variable} to a free host:port",
        ) from None
    listening.setblocking(False)
    return listening
