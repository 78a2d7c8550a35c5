"""However large the table is, a catch-up needs no more memory for it.

The peak is the kernel's own (VmHWM), of a process of its own.  A small table says what the
program needs anyway; what a much larger one needs on top of that is bounded, and is far less
than what it holds.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.databases import Database
from tests.support.running import Running, stored_rows

MIB: Final = 2**20
STEP: Final = 4_194_304
LOOK_S: Final = 0.02

_FILL: Final = """
INSERT INTO noetl.event (execution_id, catalog_id, event_id, prev_event_id, created_at, event_type, context)
SELECT e, 1, e + n, CASE WHEN n > 1 THEN e + n - 1 END, now() at time zone 'UTC', 'step.exit',
       jsonb_build_object('n', n, 'pad', repeat(md5(n::text), $4::int / 32))
  FROM generate_series($1::int, $2::int) i, generate_series(1, $3::int) n,
       lateral (SELECT i * 4194304::bigint AS e) z
 ORDER BY i / 200, n, i
"""


async def _fill(pg: Database, first: int, executions: int, *, events: int, pad: int) -> None:
    await pg.execute(_FILL, first, first + executions - 1, events, pad)
    await pg.execute("ANALYZE noetl.event")


def _peak(pid: int) -> int:
    """The most memory the process ever had, in bytes; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line[:6] == "VmHWM:"), 0)


async def _peak_of(arguments: Sequence[str], *, code: int = 0) -> int:
    """Run a command to its end; its peak."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NOETL_CHAIN_", "POSTGRES_"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sidecar", *arguments, env=clean, stderr=asyncio.subprocess.DEVNULL
    )
    ended = asyncio.create_task(process.wait())
    peak = 0
    while not ended.done():
        peak = max(peak, _peak(process.pid))
        await asyncio.wait({ended}, timeout=LOOK_S)
    assert ended.result() == code
    return peak


async def _backfill_peak(pg: Database, store: Path, *, rows: int) -> int:
    peak = await _peak_of(["backfill", "--dsn", pg.dsn, "--store", str(store)])
    assert stored_rows(store) == rows
    store.unlink()  # noqa: ASYNC240 - a moment
    return peak


@pytest.mark.torture
async def test_memory_of_a_backfill_does_not_grow_with_the_table(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    await _fill(pg, 1, 500, events=40, pad=1000)
    small = await _backfill_peak(pg, store, rows=20_000)
    await _fill(pg, 501, 1500, events=40, pad=1000)
    large = await _backfill_peak(pg, store, rows=80_000)
    assert large - small < 20 * MIB, (small // MIB, large // MIB)


@pytest.mark.torture
async def test_memory_of_few_huge_rows(pg: Database, tmp_path: Path) -> None:
    """300 kB rows, 150 MB of them in executions of three: nobody holds them all."""
    await _fill(pg, 1, 170, events=3, pad=300_000)
    assert await _backfill_peak(pg, tmp_path / "chain.db", rows=510) < 190 * MIB


@pytest.mark.torture
async def test_memory_of_a_verification_of_huge_rows(pg: Database) -> None:
    await _fill(pg, 1, 350, events=3, pad=300_000)
    assert await _peak_of(["verify", "--dsn", pg.dsn, "--settle", "0"]) < 220 * MIB


async def _run_peak(pg: Database, store: Path, *, rows: int) -> int:
    """`run` from an empty store until it is ready: every row lies in the late lane's window."""
    async with Running.start(pg.dsn, store) as sidecar:
        await sidecar.stores(rows, patience_s=600)
        await sidecar.until("/readyz", lambda text: text == "ready\n", patience_s=300)
        peak = _peak(sidecar.pid)
        assert await sidecar.stopped() == 0
    store.unlink()  # noqa: ASYNC240 - a moment
    return peak


@pytest.mark.torture
async def test_memory_of_a_run_that_catches_up(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    await _fill(pg, 1, 250, events=40, pad=1000)
    small = await _run_peak(pg, store, rows=10_000)
    await _fill(pg, 251, 1250, events=40, pad=1000)
    large = await _run_peak(pg, store, rows=60_000)
    assert large - small < 40 * MIB, (small // MIB, large // MIB)


@pytest.mark.torture
async def test_memory_of_long_executions_seen_for_the_first_time(pg: Database, tmp_path: Path) -> None:
    """250 executions of 800 rows: a lane meets them all at once, 200 MB in one window."""
    store = tmp_path / "chain.db"
    await _fill(pg, 1, 250, events=2, pad=1000)
    small = await _run_peak(pg, store, rows=500)
    await pg.execute("TRUNCATE noetl.event")
    await _fill(pg, 1, 250, events=800, pad=1000)
    large = await _run_peak(pg, store, rows=200_000)
    # What each lane remembers of rows above its H is most of it, and has a limit of its own.
    assert large - small < 190 * MIB, (small // MIB, large // MIB)


@pytest.mark.torture
async def test_memory_of_600_000_rows(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    await _fill(pg, 1, 500, events=40, pad=1000)
    small = await _backfill_peak(pg, store, rows=20_000)
    await _fill(pg, 501, 14_500, events=40, pad=1000)
    assert await _backfill_peak(pg, store, rows=600_000) - small < 30 * MIB
