"""The metrics listener: three routes, reasons in the body, an end within a second of being asked."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from starlette.testclient import TestClient

from sidecar.errors import ConfigError
from sidecar.settings import Bind
from sidecar.telemetry.health import Health, NotReady
from sidecar.telemetry.metrics import Metrics
from sidecar.web.listener import Listener, application

LOCAL = Bind("127.0.0.1", 0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(clock=clock)


@pytest.fixture
def client(health: Health) -> TestClient:
    return TestClient(application(Metrics().registry, health))


def test_livez_names_the_silent_loops(client: TestClient, health: Health, clock: Clock) -> None:
    health.watch("feed", tick_seconds=1)
    assert (client.get("/livez").status_code, client.get("/livez").text) == (200, "alive\n")
    clock.now += 31
    answer = client.get("/livez")
    assert (answer.status_code, answer.text) == (503, "silent: feed\n")


def test_readyz_says_why_not(client: TestClient, health: Health) -> None:
    assert client.get("/readyz").text == "not ready: starting\n"
    health.clear(NotReady.STARTING)
    assert (client.get("/readyz").status_code, client.get("/readyz").text) == (200, "ready\n")
    health.mark(NotReady.PAUSED)
    health.mark(NotReady.SOURCE_UNAVAILABLE)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "not ready: store paused, source unavailable\n")
    assert client.get("/livez").status_code == 200


def test_metrics_is_prometheus_text(client: TestClient) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'noetl_chain_shadow_verdict_total{verdict="match"} 0.0' in answer.text


def test_nothing_writes_and_nothing_else_is_there(client: TestClient) -> None:
    assert client.post("/metrics").status_code == 405
    assert client.get("/").status_code == 404


@asynccontextmanager
async def serving(listener: Listener) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Task[None]]]:
    stop = asyncio.Event()
    task = asyncio.create_task(listener.run(stop))
    try:
        yield f"http://127.0.0.1:{listener.port}", stop, task
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 5)


async def test_it_serves_on_a_real_socket_and_ends_when_asked(health: Health) -> None:
    listener = Listener(application(Metrics().registry, health), LOCAL)
    async with serving(listener) as (url, stop, task):
        async with httpx2.AsyncClient() as client:
            assert (await client.get(f"{url}/livez")).status_code == 200
        stop.set()
        await asyncio.wait_for(task, 3)
    _is_free(url)


async def test_a_kept_connection_does_not_hold_up_the_end(health: Health) -> None:
    listener = Listener(application(Metrics().registry, health), LOCAL)
    async with serving(listener) as (_, stop, task):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /metr")
        stop.set()
        await asyncio.wait_for(task, 3)
        writer.close()


async def test_cancelled_it_ends_and_gives_the_address_back(health: Health) -> None:
    listener = Listener(application(Metrics().registry, health), LOCAL)
    async with serving(listener) as (url, _, task):
        async with httpx2.AsyncClient() as client:
            await client.get(f"{url}/livez")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 3)
    _is_free(url)


def _is_free(url: str) -> None:
    port = int(url.rpartition(":")[2])
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


async def test_signals_stay_the_application_s(health: Health) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with serving(Listener(application(Metrics().registry, health), LOCAL)) as (url, _, _task):
        async with httpx2.AsyncClient() as client:
            await client.get(f"{url}/livez")
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_taken_port_is_a_config_error_that_names_the_variable(health: Health) -> None:
    app = application(Metrics().registry, health)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of NOETL_CHAIN_METRICS_BIND") as refused:
            Listener(app, Bind("127.0.0.1", port))
    assert refused.value.hint


def test_a_name_that_resolves_to_nothing_is_a_config_error(health: Health) -> None:
    with pytest.raises(ConfigError, match="cannot be bound"):
        Listener(application(Metrics().registry, health), Bind("no-such-host.invalid", 1))
