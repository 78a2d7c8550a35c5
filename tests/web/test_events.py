"""Server-sent events: what comes, what a slow listener loses, and that they end with the process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from sidecar.web.problem import Problem
from sidecar.web.stream import LISTENERS_MAX, QUEUE_MAX, Hub
from tests.support.api import shown
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.running import Running
from tests.support.service import service
from tests.support.waiting import until
from tests.web.planted import COLUMNS, MARKS, MATCHED, REFUSED


def request(method: str = "GET") -> Request:
    return Request({"type": "http", "method": method, "headers": [], "path": "/api/v1/events"})


async def streamed(hub: Hub) -> AsyncGenerator[str, None]:
    answer = await hub.answer(request())
    async for text in answer.body_iterator:  # type: ignore[attr-defined]
        yield text.decode()


def read(text: str) -> tuple[str, Any]:
    name, data = text.removesuffix("\n\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_verdicts_and_findings_come_as_they_are_reached_and_without_payload(
    pg: Database, tmp_path: Path
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db", settle_s=600) as sidecar, shown(sidecar) as client:
        lines: list[str] = []
        wanted = {("verdict", str(MATCHED)), ("verdict", str(REFUSED)), ("finding", str(REFUSED))}
        async with client.stream("GET", "/api/v1/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["cache-control"] == "no-store"
            rows = [*chain_rows(MATCHED, [1, 2], **COLUMNS), event_row(REFUSED, 11, **COLUMNS)]
            await pg.insert([*rows, event_row(REFUSED, 12, **COLUMNS)])
            name = ""
            async with asyncio.timeout(20):
                async for line in answer.aiter_lines():
                    lines.append(line)
                    name = line.removeprefix("event: ") if line.startswith("event: ") else name
                    if line.startswith("data: "):
                        wanted.discard((name, json.loads(line[6:]).get("execution_id", "")))
                    if not wanted:
                        break
        assert lines[0] == "retry: 5000"
        assert not any(mark in line for mark in MARKS for line in lines)
        await until(lambda: not sidecar.board.hub.listeners)


async def test_a_slow_listener_loses_the_oldest_and_is_told_how_many() -> None:
    hub = Hub()
    stream = streamed(hub)
    assert await anext(stream) == "retry: 5000\n\n"
    for number in range(QUEUE_MAX + 3):
        hub.publish("verdict", {"n": number})
    assert read(await anext(stream)) == ("dropped", {"events": 3})
    assert [read(await anext(stream)) for _ in range(QUEUE_MAX)] == [
        ("verdict", {"n": number}) for number in range(3, QUEUE_MAX + 3)
    ]
    hub.close()
    assert [text async for text in stream] == []
    assert hub.listeners == 0


async def test_a_silent_stream_has_a_heartbeat() -> None:
    hub = Hub(heartbeat_s=0.001)
    stream = streamed(hub)
    assert [await anext(stream) for _ in range(3)] == ["retry: 5000\n\n", *[": heartbeat\n\n"] * 2]
    await stream.aclose()


async def test_listeners_are_bounded_and_one_that_leaves_makes_room() -> None:
    hub = Hub()
    streams = [streamed(hub) for _ in range(LISTENERS_MAX)]
    for stream in streams:
        await anext(stream)
    with pytest.raises(Problem) as refused:
        await hub.answer(request())
    assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "5")
    pending = asyncio.ensure_future(anext(streams[0]))
    await asyncio.sleep(0)
    pending.cancel()
    await asyncio.wait({pending})
    assert hub.listeners == LISTENERS_MAX - 1
    assert (await hub.answer(request())).status_code == 200
    hub.close()
    for stream in streams[1:]:
        assert [text async for text in stream] == []


async def test_many_that_ask_at_the_same_moment_are_bounded_too() -> None:
    hub = Hub()
    answers = [await hub.answer(request()) for _ in range(LISTENERS_MAX)]
    with pytest.raises(Problem):
        await hub.answer(request())

    async def gone(message: Message) -> None:
        raise OSError

    async def silent() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    for answer in answers:  # a stream that is never begun leaves nothing behind
        with pytest.raises(ClientDisconnect):
            await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, silent, gone)
    assert hub.listeners == 0


async def test_a_stream_ends_with_the_process_and_does_not_hold_it_up(tmp_path: Path) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    async with Running.start(nowhere, tmp_path / "chain.db", NOETL_CHAIN_POPULATE="off") as running:
        async with (
            httpx2.AsyncClient(timeout=20) as client,
            client.stream("GET", f"{await running.api()}/api/v1/events") as answer,
        ):
            text = answer.aiter_text()
            assert (await anext(text)).startswith("retry: ")
            stopping = asyncio.create_task(running.stopped())
            assert "".join([part async for part in text]) == ""  # the end, not a broken connection
            assert await stopping == 0
        assert not any(line.get("level") == "error" for line in running.lines)
