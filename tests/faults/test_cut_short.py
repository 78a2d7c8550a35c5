"""A one-shot command that is cut short: its exit code, no stack trace, and a backfill goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.databases import Database
from tests.support.proxy import proxy
from tests.support.running import intact, stored_rows
from tests.support.waiting import until

STEP = 4_194_304
ROWS = 20_000
BODY_BYTES = 900


async def _fill(pg: Database, rows: int = ROWS) -> None:
    await pg.execute(
        "INSERT INTO noetl.event (execution_id, catalog_id, event_id, prev_event_id, event_type, context)"
        f" SELECT e * {STEP}, 1, e * {STEP} + n, CASE WHEN n > 1 THEN e * {STEP} + n - 1 END, 'step.exit',"
        f" jsonb_build_object('pad', repeat('x', {BODY_BYTES}))"
        f" FROM generate_series(1, {rows // 50}::bigint) e, generate_series(1, 50) n"
    )


async def _started(command: str, dsn: str, *arguments: str) -> asyncio.subprocess.Process:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NOETL_CHAIN_", "POSTGRES_"))}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sidecar",
        command,
        "--dsn",
        dsn,
        *arguments,
        env=clean,
        stderr=asyncio.subprocess.PIPE,
    )


async def _ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    async with asyncio.timeout(30):
        _, err = await process.communicate()
    return process.returncode, err.decode()


@pytest.mark.torture
async def test_a_backfill_that_was_cut_short_goes_on(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    await _fill(pg)
    process = await _started("backfill", pg.dsn, "--store", str(store))
    await until(lambda: stored_rows(store) > 0, within_s=30)
    process.send_signal(signal.SIGTERM)
    assert await _ended(process) == (143, "")
    before = stored_rows(store)
    assert 0 < before < ROWS
    assert intact(store)
    code_again, text = await _ended(await _started("backfill", pg.dsn, "--store", str(store)))
    assert code_again == 0
    assert f"{ROWS - before:,} rows stored" in text, "what was stored before was not read again"
    assert stored_rows(store) == ROWS


def _files(folder: Path) -> list[Path]:
    return list(folder.glob("*/chain.db"))


async def test_a_verification_that_was_cut_short_leaves_no_file(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rows = 3_000
    await _fill(pg, rows)
    async with proxy(pg.dsn) as way:
        way.stand_still_after(rows * BODY_BYTES * 9 // 10)  # so that it cannot come to its end
        process = await _started("verify", way.dsn)
        await until(lambda: any(map(stored_rows, _files(tmp_path))), within_s=30)
        process.send_signal(signal.SIGINT)
        assert await _ended(process) == (130, "")
    assert _files(tmp_path) == []
