"""NOETL_TEST_PG_URL: the suite uses that server, and fails when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.databases import URL_VARIABLE, Database

ROOT = Path(__file__).resolve().parents[2]


def run_suite(url: str, test: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=ROOT,
        env=os.environ | {URL_VARIABLE: url},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_i56_a_given_server_that_is_unreachable_fails_the_suite_and_skips_nothing() -> None:
    secret = "hunter2"
    done = run_suite(
        f"postgresql://someone:{secret}@127.0.0.1:1/postgres",
        "tests/integration/test_fixture_log.py::test_the_fixture_is_the_one_of_the_spec",
    )
    assert done.returncode == 1
    assert "1 error" in done.stdout
    assert "skipped" not in done.stdout
    assert f"{URL_VARIABLE} is set, but the server did not answer" in done.stdout
    assert secret not in done.stdout + done.stderr


async def test_a_given_server_is_used_and_left_as_it_was(pg: Database) -> None:
    before = await pg.fetch("SELECT datname FROM pg_database ORDER BY 1")
    calls = "SELECT coalesce(sum(sessions), 0) FROM pg_stat_database"
    first = (await pg.fetch(calls))[0][0]
    done = run_suite(pg.dsn, "tests/integration/test_fixture_log.py")
    assert done.returncode == 0, done.stdout
    assert await pg.fetch("SELECT datname FROM pg_database ORDER BY 1") == before
    assert (await pg.fetch(calls))[0][0] > first + 2
