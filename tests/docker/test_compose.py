"""`docker-compose up` as a user would run it; and a network that is cut, servers that are killed."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from sidecar.demo.recording import BUNDLED, bundled
from tests.docker.compose import ROOT, Project, engine, project, run, until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

EXPECTED: Final = Counter(
    verdict for name in BUNDLED for verdict in (bundled(name).verdicts or {}).values() if verdict
)


@pytest.fixture(scope="module")
def bases() -> None:
    engine()
    run(str(ROOT / "tests" / "docker" / "bases.sh"), timeout=1200)


@pytest.fixture
def up(bases: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Project]:
    name = "noetl-chain-" + "".join(filter(str.isalnum, request.node.name))[-20:].lower()
    with project(tmp_path, name, REPLAY_SPEED=str(request.param)) as made:
        made.compose("up", "-d")
        until(lambda: made.healthy("sidecar"), "the sidecar is healthy")
        yield made


def all_judged(made: Project) -> bool:
    """Whether the verdicts are those the recordings expect, and nothing waits."""
    found = {
        verdict: made.value("noetl_chain_shadow_verdict_total", verdict=verdict) or 0 for verdict in EXPECTED
    }
    covered = made.value("noetl_chain_shadow_covered_executions", window="start")
    eligible = made.value("noetl_chain_shadow_eligible_executions", window="start")
    refused = sum(count for verdict, count in EXPECTED.items() if verdict != "match")
    return (
        covered == EXPECTED["match"]
        and eligible == EXPECTED["match"] + refused
        and all(found[verdict] >= count for verdict, count in EXPECTED.items())
    )


def nothing_was_accused(made: Project) -> None:
    wrong = {
        key: value
        for key, value in made.metrics().items()
        if key[0] == "noetl_chain_shadow_divergence_total" and value
    }
    assert wrong == {}


@pytest.mark.parametrize("up", [8], indirect=True)
def test_the_compose_file_comes_up_and_its_two_numbers_are_right(up: Project) -> None:
    until(lambda: up.state("replay")["Status"] == "exited", "the log was replayed", 300)
    assert up.state("replay")["ExitCode"] == 0
    until(lambda: all_judged(up), "every execution has its verdict", 180)
    nothing_was_accused(up)
    until(
        lambda: any(
            float(sample["value"][1]) == EXPECTED["match"]
            for sample in up.asked('noetl_chain_shadow_covered_executions{window="start"}')
        ),
        "Prometheus holds the series",
    )
    assert up.asked('ALERTS{alertstate="firing", alertname="NoetlChainDivergence"}') == []
    process = up.container("sidecar")
    assert run("docker", "exec", process, "id", "-u").strip() == "10001"
    assert subprocess.run(["docker", "exec", process, "touch", "/opt/x"], capture_output=True).returncode != 0
    up.compose("stop", "--timeout", "10")
    assert up.state("sidecar")["ExitCode"] == 0


@pytest.mark.parametrize("up", [2], indirect=True)
def test_a_cut_network_a_killed_server_and_a_killed_sidecar_lose_nothing(up: Project) -> None:
    def stored() -> float:
        return up.value("noetl_chain_store_bytes") or 0

    until(lambda: (up.value("noetl_chain_shadow_covered_executions", window="start") or 0) > 3, "some judged")

    sidecar, log = up.container("sidecar"), up.network("log")
    run("docker", "network", "disconnect", log, sidecar)
    until(lambda: (up.get("METRICS_PORT", "/livez") or "") != "", "a cut network is no reason to die")
    run("sleep", "30")
    run("docker", "network", "connect", log, sidecar)
    before = stored()
    until(lambda: stored() > before, "rows come again after the network healed")

    run("docker", "kill", "--signal", "KILL", sidecar)
    until(lambda: up.state("sidecar")["Status"] != "running", "the sidecar is dead", 30)
    run("docker", "start", sidecar)
    until(lambda: up.healthy("sidecar"), "the sidecar is healthy again")

    until(lambda: up.state("replay")["Status"] == "exited", "the log was replayed", 900)
    assert up.state("replay")["ExitCode"] == 0
    postgres = up.container("postgres")
    run("docker", "kill", "--signal", "KILL", postgres)
    run("docker", "start", postgres)
    until(lambda: up.healthy("postgres"), "Postgres is back")
    until(lambda: up.get("METRICS_PORT", "/readyz") is not None, "the sidecar is ready")
    verify = ["docker", "exec", sidecar, "noetl-chain", "verify", "--store", "/data/chain.db", "--json"]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)
    assert found["behind_events"] == 0
    assert {verdict: count for verdict, count in found["verdicts"].items() if count} == EXPECTED
    assert done.returncode == 3, "what is refused is no agreement"
    nothing_was_accused(up)
