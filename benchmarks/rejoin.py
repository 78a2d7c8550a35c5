"""What the evidence for joins costs an event: the gate off beside on, turn by turn, in CPU time.

Nothing is joined here: each execution has one root, as almost all have, and what is measured is what
each event pays for the few that have several.  CPU time, since a difference of some per cent drowns
in the waits of a shared machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil

from benchmarks.data import Table
from benchmarks.live import ID_STEP, LIVE_BASE, running, written
from benchmarks.result import Result, median, versus
from sidecar.commands.backfill import backfilled
from sidecar.readings import Reading
from sidecar.settings import Settings

GOAL: Final = 0.97
"""At most 3 % of a catch-up."""


async def caught_up(table: Table, *, turns: int) -> Result:
    """Events a CPU second of `backfill`."""
    rates: dict[Reading, list[float]] = {Reading.ON: [], Reading.OFF: []}
    for turn in range(turns + 1):
        for gate in (Reading.ON, Reading.OFF)[:: 1 if turn % 2 else -1]:
            with TemporaryDirectory(prefix="noetl-chain-bench-") as folder:
                settings = Settings.given(dsn=table.dsn, store=str(Path(folder) / "chain.db"), rejoin=gate)
                began = time.process_time()
                _, rows = await backfilled(settings)
                if turn:  # the first warms up
                    rates[gate].append(rows / (time.process_time() - began))
    return _result("rejoin, catch-up", rates, f"{table.rows:,} rows of {table.body_bytes} bytes")


async def followed(dsn: str, *, turns: int, seconds: float, rate: int) -> Result:
    """Events a CPU second of the process that follows them."""
    rates: dict[Reading, list[float]] = {Reading.ON: [], Reading.OFF: []}
    for turn in range(turns):
        for number, gate in enumerate((Reading.ON, Reading.OFF)[:: 1 if turn % 2 else -1]):
            base = LIVE_BASE + ID_STEP * 1000 * (2 * turn + number + 1)
            rates[gate].append(await _live(dsn, gate, seconds=seconds, rate=rate, base=base))
    return _result("rejoin, live", rates, f"{rate} events/s asked for, polls included")


async def _live(dsn: str, gate: Reading, *, seconds: float, rate: int, base: int) -> float:
    more: Mapping[str, str] = {"NOETL_CHAIN_REJOIN": gate.value}
    with (
        TemporaryDirectory(prefix="noetl-chain-bench-") as folder,
        running(dsn, Path(folder) / "chain.db", more) as process,
    ):
        await written(dsn, 1, rate, base=base)  # warms up
        began = _cpu_s(process)
        events = len(await written(dsn, seconds, rate, base=base + ID_STEP * 500))
        return events / (_cpu_s(process) - began)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _result(name: str, rates: Mapping[Reading, list[float]], note: str) -> Result:
    on, off = rates[Reading.ON], rates[Reading.OFF]
    return Result(
        name,
        median(on),
        "events/CPU s",
        limit=median(off),
        ratio=versus(on, off),
        goal=GOAL,
        turns={"on": on, "off": off},
        note=f"{note}; limit: the gate off",
    )
