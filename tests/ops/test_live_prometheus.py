"""Every expression, asked of a real Prometheus that scraped the real sidecar."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from config.panels import DASHBOARDS
from tests.ops.test_prometheus import ALERTS, CONFIG, rules
from tests.support.databases import Database
from tests.support.rows import chain_rows
from tests.support.running import Running

PATIENCE_S: Final = 60.0
DEMO_S: Final = 120.0
QUERIES: Final = {
    f"{uid}: {panel.title}": query.replace("$of", 'job=~".*", instance=~".*"')
    for uid, _, rows in DASHBOARDS
    for row in rows
    for panel in row.panels
    for _, query in panel.queries
}
QUIET: Final = (
    "Replicas",  # none is configured
    "Populate by outcome",  # rates that are left out while they are 0
    "Verdicts",
    "Share of folds removed",  # a ratio without a denominator is absent
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Prometheus:
    def __init__(self, port: int) -> None:
        self._port = port

    def _ask(self, query: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    async def ask(self, query: str) -> list[dict[str, Any]]:
        """The answer's samples; an expression that is refused fails the test."""
        found = await asyncio.to_thread(self._ask, query)
        assert found["status"] == "success", query
        samples: list[dict[str, Any]] = found["data"]["result"]
        return samples

    async def until_scraped(self, query: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    if await self.ask(query):
                        return
                except OSError:  # it is still starting
                    pass
                await asyncio.sleep(0.1)


@asynccontextmanager
async def prometheus(folder: Path, target: int) -> AsyncIterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    text = (CONFIG / "prometheus.yml").read_text()
    text = text.replace("sidecar:9109", f"127.0.0.1:{target}").replace("15s", "1s")
    text = text.replace("rules/*.yml", f"{CONFIG}/rules/*.yml")
    config = folder / "prometheus.yml"
    config.write_text(text)
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield Prometheus(port)
    finally:
        process.kill()
        await process.wait()


async def test_every_expression_is_answered_by_a_real_prometheus(pg: Database, tmp_path: Path) -> None:
    await pg.insert([*chain_rows(1, range(11, 14)), *chain_rows(2, range(21, 24))])
    async with Running.start(pg.dsn, tmp_path / "chain.db", NOETL_CHAIN_CERT="on") as sidecar:
        port = (await sidecar.says("listening"))["port"]
        async with prometheus(tmp_path, port) as server:
            await server.until_scraped('noetl_chain_shadow_covered_executions{window="start"} == 2')
            await server.until_scraped("rate(noetl_chain_shadow_tick_seconds_count[5m]) > 0")
            await server.until_scraped("instance_window:noetl_chain_shadow_covered_executions:ratio == 1")
            for rule in (*ALERTS, *rules("recording.yml")):
                await server.ask(rule["expr"])
            unanswered = [
                title
                for title, query in QUERIES.items()
                if not await server.ask(query) and not title.endswith(QUIET)
            ]
            assert unanswered == []
            firing = await server.ask('ALERTS{alertstate="firing"}')
            assert [alert["metric"]["alertname"] for alert in firing] == []


EMPTY_IN_THE_DEMO: Final = (
    "Replicas",  # it has none
    "Share of folds removed",  # nobody asks it for a state
)


@asynccontextmanager
async def demo() -> AsyncIterator[tuple[int, Callable[[], Awaitable[str]]]]:
    """A demo that stays up: the port of its metrics, and what waits for its last word."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", "demo", "--keep"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    lines = process.stdout

    async def until(pattern: str) -> re.Match[str]:
        async with asyncio.timeout(DEMO_S):
            while line := (await lines.readline()).decode():
                if found := re.search(pattern, line):
                    return found
        pytest.fail(f"the demo ended without {pattern!r}")

    async def ended() -> str:
        return (await until(r"^(agreed|contradicted|not settled)"))[1]

    try:
        yield int((await until(r"metrics http://[^:]+:(\d+)/metrics"))[1]), ended
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.torture
@pytest.mark.timeout(240)
async def test_after_a_demo_every_panel_shows_something_and_the_planted_divergences_fire(
    tmp_path: Path,
) -> None:
    async with demo() as (port, ended), prometheus(tmp_path, port) as server:
        await server.until_scraped("noetl_chain_build_info")
        assert await ended() == "agreed"
        # Of what was counted during the run; the first scrape was before it.
        await server.until_scraped("sum(noetl_chain_shadow_divergence_total) == 2")
        await server.until_scraped('ALERTS{alertname="NoetlChainDivergence",alertstate="firing"}')
        await server.until_scraped("instance_window:noetl_chain_shadow_covered_executions:ratio > 0.5")
        unanswered = [title for title, query in QUERIES.items() if not await server.ask(query)]
        assert [title for title in unanswered if not title.endswith(EMPTY_IN_THE_DEMO)] == []
