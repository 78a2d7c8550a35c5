"""How `status` looks on a terminal: the two numbers first, then what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from sidecar.core.acceptance import OPEN
from sidecar.inspection.tabled import Whole

MIB: Final = 1024 * 1024


def show_status(told: Mapping[str, Any]) -> None:
    """Show a document of `status` on stderr; no part of it is taken for markup."""
    console = Console(stderr=True, highlight=False, markup=False)
    _head(console, told)
    if told["coverage"] is None:
        console.print("nothing was looked at yet", style="yellow")
        return
    _numbers(console, told)
    _acceptance(console, told)
    console.print(Whole(_coverage(told["coverage"])))
    console.print(Whole(_counts("verdict", "executions", told["verdicts"])))
    if any(told["due"].values()):
        console.print(Whole(_counts("due", "executions", told["due"])))
    console.print(Whole(_lanes(told["lanes"])))
    size = told["store"]
    console.print(
        f"store {size['bytes'] / MIB:,.1f} MiB, write-ahead log {size['wal_bytes'] / MIB:,.1f} MiB"
        + ("" if size["free_bytes"] is None else f", free {size['free_bytes'] / MIB:,.0f} MiB")
    )
    console.print(f"fleet {told['fleet']['live_workers']:,} live")
    _shard(console, told.get("shard"))


def _head(console: Console, told: Mapping[str, Any]) -> None:
    if told["from"] == "store":
        console.print("read from the store; gates and controls are the running sidecar's: ask it with --api")
        return
    gates = ", ".join(f"{gate} {reading}" for gate, reading in told["gates"].items())
    console.print(f"{told['arming']}: {gates}", style=None if told["arming"] == "armed" else "yellow")
    if not told["ready"]:
        console.print("not ready: " + ", ".join(told["not_ready"]), style="yellow")


def _shard(console: Console, shard: Mapping[str, Any] | None) -> None:
    """Nothing of a single sidecar, and nothing of one that does not say."""
    if shard is None or (shard["count"] == 1 and shard["differs"] is not True and not shard["moving"]):
        return
    text, stored = f"shard {shard['index']} of {shard['count']}", shard["store"]
    if shard["moving"]:
        console.print(f"{text}; the store is on its way to another shard", style="yellow")
    elif shard["differs"]:
        told = f"{stored['index']} of {stored['count']}"
        console.print(f"{text} by the settings; the store was filled as {told}", style="yellow")
    else:
        console.print(text + ("" if stored else "; the store does not say as which it was filled"))


def _numbers(console: Console, told: Mapping[str, Any]) -> None:
    found = sum(told["findings_open"][verdict] for verdict in OPEN)
    start = told["coverage"]["start"]
    share = f"{start['ratio']:.2%}" if "ratio" in start else "nothing eligible"
    console.print(
        f"open findings {found:,} beside coverage {share}"
        f" ({start['covered_events']:,} of {start['eligible_events']:,} eligible events,"
        f" {start['covered_executions']:,} of {start['eligible_executions']:,} executions,"
        f" {told['observation_seconds'] / 3600:,.1f} h observed)",
        style="bold red" if found else "bold",
    )
    kinds = {kind: count for kind, count in told["divergences"].items() if count}
    if kinds:
        console.print("divergences: " + ", ".join(f"{kind} {n:,}" for kind, n in kinds.items()), style="red")


def _acceptance(console: Console, told: Mapping[str, Any]) -> None:
    acceptance = told["acceptance"]
    # An older sidecar does not say; it counted matches.
    joined = "match_rejoined" in acceptance.get("counted", ())
    counted = " (match_rejoined counts as covered)" if joined else ""
    if acceptance["accepted"]:
        console.print(f"accepted{counted}", style="green")
        return
    console.print(f"not accepted{counted}:", style="yellow")
    for each in acceptance["blocked"]:
        console.print(f"  {each['reason']}: {each['detail']}", style="yellow")


def _coverage(windows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Eighty columns wide; what is uncovered stands by verdict below it, and by window in the JSON."""
    table = Table(box=None, pad_edge=False)
    for column in ("window", "covered", "events", "of", "executions", "of", "pending", "rejoined"):
        table.add_column(column, justify="left" if column == "window" else "right")
    for window, each in windows.items():
        table.add_row(
            window,
            f"{each['ratio']:.2%}" if "ratio" in each else "-",
            f"{each['covered_events']:,}",
            f"{each['eligible_events']:,}",
            f"{each['covered_executions']:,}",
            f"{each['eligible_executions']:,}",
            f"{each['pending_executions']:,}",
            f"{each['rejoined_executions']:,}",
        )
    return table


def _counts(what: str, unit: str, counts: Mapping[str, int]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(what)
    table.add_column(unit, justify="right")
    for label, count in counts.items():
        if count:
            table.add_row(label, f"{count:,}", style="red" if label in OPEN else None)
    return table


def _lanes(lanes: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("lane", "polled", "H age", "lag", ""):
        table.add_column(column, justify="left" if column in {"lane", ""} else "right")
    for lane in lanes:
        caught_up = {True: "caught up", False: "catching up", None: ""}[lane["caught_up"]]
        ages = (lane["polled_seconds_ago"], lane["horizon_age_seconds"], lane["lag_seconds"])
        table.add_row(lane["lane"], *("-" if age is None else f"{age:,.1f} s" for age in ages), caught_up)
    return table
