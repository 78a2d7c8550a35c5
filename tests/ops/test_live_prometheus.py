"""Every expression, asked of a real Prometheus that scraped the real sidecar."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from config.dashboards import DASHBOARDS
from tests.ops.test_prometheus import ALERTS, CONFIG, rules
from tests.support.databases import Database
from tests.support.rows import chain_rows
from tests.support.running import Running

PATIENCE_S: Final = 60.0
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
