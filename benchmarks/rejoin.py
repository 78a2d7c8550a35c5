"""What the evidence for joins costs an event, and what the gate does, turn by turn, in CPU time.

Nothing is joined here: each execution has one root, as almost all have, and what is measured is what
each event pays for the few that have several.  CPU time, since a difference of some per cent drowns
in the waits of a shared machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from unittest.mock import patch

import psutil

from benchmarks.data import Table
from benchmarks.live import ID_STEP, LIVE_BASE, running, written
from benchmarks.result import Result, median, versus
from sidecar.commands.backfill import backfilled
from sidecar.core.horizon import Facts
from sidecar.readings import Reading
from sidecar.settings import Settings
from sidecar.source import log, poll
from sidecar.source.connection import Session

GOAL: Final = 0.97
"""At most 3 % of a catch-up."""


async def caught_up(table: Table, *, turns: int) -> Result:
    """Events a CPU second of `backfill`: with all evidence, beside the gate off and no anchor read."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(turns + 1):
        for evidence in (True, False)[:: 1 if turn % 2 else -1]:
            gate = Reading.ON if evidence else Reading.OFF
            with TemporaryDirectory(prefix="noetl-chain-bench-") as folder, _anchors(evidence):
                settings = Settings.given(dsn=table.dsn, store=str(Path(folder) / "chain.db"), rejoin=gate)
                began = time.process_time()
                _, rows = await backfilled(settings)
                if turn:  # the first warms up
                    rates[evidence].append(rows / (time.process_time() - began))
    return _result(
        "evidence for joins, catch-up",
        rates[True],
        rates[False],
        f"{table.rows:,} rows of {table.body_bytes} bytes; limit: no anchor read, the gate off",
    )


@contextmanager
def _anchors(read: bool) -> Iterator[None]:
    """Anchors are read whatever the gate says: without evidence nobody reads them."""

    async def nothing(_session: Session, facts: Facts) -> int:
        return facts.xmax

    with ExitStack() as replaced:
        if not read:
            for module in (log, poll):
                replaced.enter_context(patch.object(module, "read_anchor", nothing))
        yield


async def followed(dsn: str, *, turns: int, seconds: float, rate: int) -> Result:
    """Events a CPU second of the process that follows them."""
    rates: dict[Reading, list[float]] = {Reading.ON: [], Reading.OFF: []}
    for turn in range(turns):
        for number, gate in enumerate((Reading.ON, Reading.OFF)[:: 1 if turn % 2 else -1]):
            base = LIVE_BASE + ID_STEP * 1000 * (2 * turn + number + 1)
            rates[gate].append(await _live(dsn, gate, seconds=seconds, rate=rate, base=base))
    note = f"{rate} events/s asked for, polls included; limit: the gate off"
    return _result("gate of joins, live", rates[Reading.ON], rates[Reading.OFF], note)


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


def _result(name: str, ours: Sequence[float], limit: Sequence[float], note: str) -> Result:
    pairs = [one / other for one, other in zip(ours, limit, strict=True)]
    return Result(
        name,
        median(ours),
        "events/CPU s",
        limit=median(limit),
        ratio=versus(ours, limit),
        goal=GOAL,
        turns={"on": ours, "off": limit},
        note=f"{note}; single turns {min(pairs):.2f} to {max(pairs):.2f}",
    )
