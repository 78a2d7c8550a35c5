"""The bench runs and says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.torture
def test_the_bench_runs_and_writes_its_results(tmp_path: Path) -> None:
    place = tmp_path / "bench.json"
    small = ["--rows", "1200", "--rows-large", "300", "--turns", "1", "--seconds", "2", "--rate", "100"]
    small += ["--sizes", "1000", "2000"]
    for row in ("catch-up", "verify", "live", "read", "growth", "storm"):
        small += ["--only", row]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *small, "--json", str(place)],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    results = {result["name"]: result for result in json.loads(place.read_text())["results"]}
    assert {"catch-up, rows of 0.6 kB", "catch-up, rows of 4 kB", "live freshness, p99"} <= results.keys()
    assert results["catch-up, rows of 0.6 kB"]["ratio"] > 0
    assert "catch-up, rows of 4 kB" in done.stdout
