"""The compose file brought up for real, on bases made of Debian packages."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT: Final = Path(__file__).resolve().parents[2]
BASES: Final = {
    "PYTHON_IMAGE": "noetl-chain-base/python",
    "POSTGRES_IMAGE": "noetl-chain-base/postgres",
    "PROMETHEUS_IMAGE": "noetl-chain-base/prometheus",
}


def engine() -> None:
    """Skip unless a Docker engine and Compose answer and bases can be made."""
    if shutil.which("docker") is None or shutil.which("docker-compose") is None:
        pytest.skip("docker and docker-compose are not installed")
    if subprocess.run(["docker", "info"], capture_output=True, timeout=60).returncode != 0:
        pytest.skip("no Docker engine answers")
    made = subprocess.run(["docker", "images", "-q", BASES["PYTHON_IMAGE"]], capture_output=True, text=True)
    if not made.stdout and (os.geteuid() != 0 or shutil.which("debootstrap") is None):
        pytest.skip("the bases are made by debootstrap, as root")


def run(*command: str, timeout: float = 600, **options: Any) -> str:
    """Its output; a failure carries both."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def until(holds: Callable[[], bool], what: str, patience_s: float = 120) -> None:
    """Look again until it holds; what a container does cannot be awaited from here."""
    ends = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < ends, f"not within {patience_s:g} s: {what}"
        time.sleep(0.5)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Project:
    """One project of Compose, with ports of its own."""

    name: str
    folder: Path
    environment: dict[str, str]

    def compose(self, *arguments: str, timeout: float = 600) -> str:
        return run(
            "docker-compose",
            "-p",
            self.name,
            "--project-directory",
            str(self.folder),
            "-f",
            str(self.folder / "docker-compose.yml"),
            *arguments,
            timeout=timeout,
            env=os.environ | self.environment,
        )

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service).strip()

    def state(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run("docker", "inspect", self.container(service)))[0]["State"]
        return found

    def healthy(self, service: str) -> bool:
        return bool(self.state(service).get("Health", {}).get("Status") == "healthy")

    def network(self, name: str) -> str:
        return f"{self.name}_{name}"

    def get(self, port: str, path: str) -> str | None:
        """The body of an answer 200; None when nothing answers."""
        url = f"http://127.0.0.1:{self.environment[port]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                body: str = answer.read().decode()
                return body
        except (OSError, urllib.error.HTTPError):
            return None

    def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Every sample of the sidecar; empty while it does not answer."""
        text = self.get("METRICS_PORT", "/metrics") or ""
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics().get((name, tuple(sorted(labels.items()))))

    def asked(self, query: str) -> list[dict[str, Any]]:
        """What Prometheus answers to an instant query."""
        text = self.get("PROMETHEUS_PORT", "/api/v1/query?" + urllib.parse.urlencode({"query": query}))
        if text is None:
            return []
        found: list[dict[str, Any]] = json.loads(text)["data"]["result"]
        return found


@contextmanager
def project(folder: Path, name: str, **environment: str) -> Iterator[Project]:
    """The tree of this checkout with wheels beside it, built and taken down again."""
    tree = folder / "tree"
    tree.mkdir()
    for part in ("sidecar", "migrations", "config"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in (
        "Dockerfile",
        ".dockerignore",
        "docker-compose.yml",
        "pyproject.toml",
        "constraints.txt",
        "README.md",
    ):
        shutil.copy(ROOT / part, tree / part)
    (tree / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "openapi.yaml", tree / "docs")
    run(
        sys.executable,
        *("-m", "pip", "download", "--quiet", "--dest", str(tree / "wheels")),
        *("--constraint", "constraints.txt", ".[gossip]", "hatchling"),
        cwd=tree,
    )
    (tree / "config" / "compose" / "owner_password").chmod(0o644)
    ports = {name: str(_free_port()) for name in ("METRICS_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")}
    it = Project(name, tree, {**BASES, "PIP_NO_INDEX": "1", **ports, **environment})
    try:
        it.compose("build", timeout=900)
        yield it
    finally:
        it.compose("down", "--volumes", "--timeout", "5")
