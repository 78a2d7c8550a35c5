"""The API fuzzed from its own contract: no 5xx, nothing that the contract does not say, no hang."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from sidecar.web import login, routes
from tests.support.api import BEARER, TOKEN, contract, shown
from tests.support.databases import Database
from tests.web.planted import FOREIGN, HELD, MATCHED, NEVER, REFUSED, planted

FUZZER = Path(sys.executable).with_name("schemathesis")
SEED = 7
ENDLESS = "/api/v1/events"

pytestmark = pytest.mark.skipif(not FUZZER.exists(), reason="schemathesis is not installed")


def known(folder: Path) -> Path:
    """The contract with the planted ids among those that are tried, and without the endless route."""
    told = msgspec.json.decode(msgspec.json.encode(contract()))
    del told["paths"][ENDLESS]
    ids = told["components"]["schemas"]["Id"]
    planted_ids = [str(each) for each in (MATCHED, REFUSED, HELD, FOREIGN, NEVER, 1, 2)]
    told["components"]["parameters"]["ExecutionId"]["schema"] = {"anyOf": [{"enum": planted_ids}, ids]}
    file = folder / "contract.json"
    file.write_text(json.dumps(told))
    return file


async def fuzz(url: str, folder: Path, *options: str, headers: Sequence[str] = ()) -> None:
    """Run the fuzzer in a folder of its own; what it finds fails the test, in its words."""
    command = [str(FUZZER), "run", str(known(folder)), "--url", url, "--seed", str(SEED), "--no-color"]
    command += ["--request-timeout", "10", "--warnings", "off", *options]
    for header in headers:
        command += ["--header", header]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        shutil.rmtree(folder / ".hypothesis", ignore_errors=True)
    if process.returncode != 0:
        pytest.fail(out.decode(), pytrace=False)


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or nearly every probe and login would be answered by the limit."""
    monkeypatch.setattr(routes, "PROBES", 10**6)
    monkeypatch.setattr(login, "TRIES", 10**6)


WITH_TOKEN = [f"{name}: {value}" for name, value in BEARER.items()]
# A header that is given by hand stays where the fuzzer leaves the token out; without one it looks.
GIVEN = ("--exclude-checks", "ignored_auth")


async def test_a_short_run_finds_nothing(pg: Database, tmp_path: Path) -> None:
    async with planted(pg, tmp_path / "chain.db") as sidecar, shown(sidecar) as client:
        options = ("--phases", "fuzzing", "--max-examples", "1", *GIVEN)
        await fuzz(str(client.base_url), tmp_path, *options, headers=WITH_TOKEN)


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("token", [None, TOKEN])
async def test_a_long_run_finds_nothing(pg: Database, tmp_path: Path, token: str | None) -> None:
    """Also every limit and every wrong value that the contract knows, and chains of requests."""
    async with planted(pg, tmp_path / "chain.db") as sidecar, shown(sidecar) as client:
        options = ["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "150"]
        if token:
            options += GIVEN
        headers = WITH_TOKEN if token else []
        await fuzz(str(client.base_url), tmp_path, *options, headers=headers)
        sidecar.board.hub.close()
