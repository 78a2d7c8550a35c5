"""`make bench`: one run, one table.

    make bench BENCH_ARGS='--json bench.json --rows 200000'
    make bench BENCH_ARGS='--only catch-up'
    make bench BENCH_ARGS='--only growth --sizes 50000 500000 5000000'

Rates depend on the machine and on what else runs on it; the ratios come from interleaved turns
in one run and can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path

import structlog
import uvloop
from rich.console import Console
from rich.table import Table as Grid

from benchmarks import (
    catchup,
    certificate,
    chainread,
    costs,
    detection,
    growth,
    live,
    rejoin,
    shardmodel,
    stores,
    storm,
)
from benchmarks.data import filled
from benchmarks.result import Result
from sidecar.demo.postgres import EmbeddedPostgres

ROWS = (
    "catch-up",
    "verify",
    "live",
    "read",
    "growth",
    "certificate",
    "detection",
    "rejoin",
    "costs",
    "shards",
    "stores",
    "storm",
)


def main() -> int:
    chosen = _arguments(sys.argv[1:])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    with EmbeddedPostgres.start() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = runner.run(_measured(server, chosen))
        major = server.major
    _show(results)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(_document(results, major, chosen), indent=1) + "\n")
    return 0


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description="Speed beside the same work without logic."
    )
    parser.add_argument("--rows", type=int, default=60_000, help="rows of 0.6 kB")
    parser.add_argument("--rows-large", type=int, default=15_000, help="rows of 4 kB")
    parser.add_argument("--events", type=int, default=60, help="events of an execution")
    parser.add_argument("--turns", type=int, default=5, help="repetitions of each rate")
    parser.add_argument("--rate", type=int, default=500, help="events a second of the live row")
    parser.add_argument("--seconds", type=float, default=10, help="length of the live row")
    parser.add_argument("--plants", type=int, default=3, help="plants of each kind of the detection rows")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[50_000, 500_000], help="stored events of the growth rows"
    )
    parser.add_argument("--only", action="append", choices=ROWS, help="only these rows; may be repeated")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here as well")
    return parser.parse_args(words)


async def _measured(server: EmbeddedPostgres, chosen: argparse.Namespace) -> list[Result]:
    results = []
    async for result in _results(server, chosen, chosen.only or ROWS):
        print(f"  {result.name}: {result.value:,.2f} {result.unit}", file=sys.stderr)
        results.append(result)
    return results


async def _results(
    server: EmbeddedPostgres, chosen: argparse.Namespace, only: Sequence[str]
) -> AsyncIterator[Result]:
    if "catch-up" in only or "verify" in only:
        for label, rows, size in (("0.6 kB", chosen.rows, 600), ("4 kB", chosen.rows_large, 4000)):
            table = await filled(server, f"bench_{size}", rows=rows, events=chosen.events, body_bytes=size)
            if "catch-up" in only:
                yield await catchup.measure(label, table, turns=chosen.turns)
            if "verify" in only:
                yield await catchup.verify_rate(label, table, turns=min(3, chosen.turns))
    if "read" in only:
        table = await filled(server, "bench_read", rows=20_000, events=100, body_bytes=600)
        yield await chainread.measure(table)
    if "certificate" in only:
        yield certificate.observed(chosen.turns)
        yield certificate.decided(chosen.turns)
        yield await certificate.skipped(chosen.turns)
    if "growth" in only:
        async for result in growth.measure(server, chosen.sizes):
            yield result
    if "live" in only:
        table = await filled(server, "bench_live", rows=6_000, events=60, body_bytes=600)
        for result in await live.measure(table.dsn, seconds=chosen.seconds, rate=chosen.rate):
            yield result
    if "rejoin" in only:
        table = await filled(server, "bench_rejoin", rows=chosen.rows // 3, events=60, body_bytes=600)
        yield await rejoin.caught_up(table, turns=chosen.turns)
        yield await rejoin.followed(table.dsn, turns=3, seconds=chosen.seconds / 2, rate=chosen.rate)
    if "detection" in only:
        table = await filled(server, "bench_detection", rows=600, events=60, body_bytes=600)
        for result in await detection.measure(table.dsn, plants=chosen.plants):
            yield result

    if "costs" in only:
        rate = min(200, chosen.rate)
        for result in await costs.measure(
            server, rows=min(30_000, chosen.rows), turns=2, rate=rate, seconds=chosen.seconds
        ):
            yield result
    if "storm" in only:
        table = await filled(server, "bench_storm", rows=chosen.rows, events=chosen.events, body_bytes=600)
        yield await storm.measure(table, turns=min(3, chosen.turns))
    if "shards" in only:
        for result in shardmodel.measure():
            yield result
    if "stores" in only:
        servers = stores.Servers()
        try:
            measured = await stores.measure(servers, rows=min(30_000, chosen.rows), events=60, turns=3)
        finally:
            servers.stop()
        for result in measured:
            yield result


def _show(results: Sequence[Result]) -> None:
    grid = Grid(box=None, pad_edge=False)
    for name in ("what", "measured", "", "limit", "ratio", "goal", ""):
        grid.add_column(name, justify="right" if name in ("measured", "limit", "ratio", "goal") else "left")
    for result in results:
        grid.add_row(
            result.name,
            f"{result.value:,.2f}" if result.value < 1000 else f"{result.value:,.0f}",
            result.unit,
            ""
            if result.limit is None
            else f"{result.limit:,.2f}"
            if result.limit < 1000
            else f"{result.limit:,.0f}",
            "" if result.ratio is None else f"{result.ratio:.2f}",
            "" if result.goal is None else f"{result.goal:.2f}{'' if result.met else ' missed'}",
            result.note,
        )
    Console(width=None if sys.stdout.isatty() else 200).print(grid)


def _document(results: Sequence[Result], major: int, chosen: argparse.Namespace) -> dict[str, object]:
    return {
        "machine": {"cpus": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version()},
        "postgres": major,
        "sqlite": sqlite3.sqlite_version,
        "rows": chosen.rows,
        "rows_large": chosen.rows_large,
        "results": [asdict(result) for result in results],
    }


if __name__ == "__main__":
    sys.exit(main())
