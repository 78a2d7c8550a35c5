"""The live view of the demo on a terminal, and the same in one line for a pipe.

The two numbers stand side by side and neither is shown without the other: how often store
and log disagreed, and how much was compared.  No divergence at no coverage is not green.
"""

from __future__ import annotations

from typing import Final

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sidecar.demo.ledger import MATCH, UNJUDGED
from sidecar.demo.scene import GATES, Planted, Scene
from sidecar.demo.watch import LANES

BAR: Final = 22
FULL_LINES: Final = 36
BARS_LINES: Final = 10
NEVER: Final = "n/a"
_COLOURS: Final = {MATCH: "green", UNJUDGED: "bright_black", "divergent": "red", "second_writer": "red"}


def view(scene: Scene, height: int = FULL_LINES) -> RenderableType:
    """The whole screen; on one of few lines the two numbers and the faults stay to the last."""
    parts: list[RenderableType] = [_numbers(scene), faults(scene)]
    if height >= FULL_LINES - BARS_LINES:
        parts.insert(0, _head(scene))
    if height >= FULL_LINES:
        parts.insert(2, _side_by_side(_lanes(scene), _verdicts(scene)))
        parts.append(_playing(scene))
    return Group(*parts)


def line(scene: Scene) -> str:
    """The same moment in one line."""
    look = scene.look
    lanes = " ".join(f"{lane} {look.lanes.get(lane, 0)}" for lane in LANES[:3])
    verdicts = " ".join(f"{label} {count}" for label, count in scene.verdicts.most_common())
    return (
        f"{scene.elapsed_s:5.1f} s  {scene.phase}  rows {scene.written} ({lanes})"
        f"  divergences {look.diverged}  coverage {coverage(scene)} of {look.eligible_executions}"
        f"  lag {look.lag_s:.2f} s  due {look.due}  {verdicts}"
    )


def coverage(scene: Scene) -> str:
    """Covered share of the eligible executions; `n/a`, never 100 %, when there are none."""
    look = scene.look
    if not look.eligible_executions:
        return NEVER
    return f"{100 * look.covered_executions / look.eligible_executions:.1f} %"


def faults(scene: Scene) -> Table:
    """What was planted, what the ledger says, what the sidecar says."""
    table = Table(box=SIMPLE_HEAD, expand=True, pad_edge=False, title="planted faults", title_justify="left")
    table.add_column("fault", ratio=4, no_wrap=True)
    table.add_column("ledger says", ratio=3, no_wrap=True)
    table.add_column("sidecar says", ratio=3, no_wrap=True)
    table.add_column("", width=1)
    for planted in scene.planted():
        table.add_row(
            Text(planted.fault.title, style="" if planted.announced else "bright_black"),
            _expected(planted),
            _seen(planted),
            _mark(planted),
        )
    return table


def colour(verdict: str) -> str:
    """A verdict's colour: red accuses, yellow refuses to answer, green compared equal."""
    return _COLOURS.get(verdict, "cyan" if verdict.startswith("pending_") else "yellow")


def _head(scene: Scene) -> Panel:
    text = Text()
    text.append("a recorded NoETL log at ", style="bright_black")
    text.append(f"{scene.speed:g}x", style="bold")
    text.append(" its speed, played by concurrent writers; pages ", style="bright_black")
    text.append(f"{scene.pages or scene.metrics}\n")
    text.append("gates on: ", style="bright_black")
    text.append(" ".join(GATES), style="bold")
    text.append(f"\n{scene.windows}", style="bright_black")
    title = f"[bold]noetl-chain demo[/] · {scene.phase} · {scene.elapsed_s:.0f} s"
    return Panel(text, title=title, title_align="left", box=ROUNDED, border_style="blue")


def _numbers(scene: Scene) -> Table:
    grid = Table.grid(expand=True)
    for _ in range(3):
        grid.add_column(ratio=1)
    grid.add_row(_divergences(scene), _coverage(scene), _lag(scene))
    return grid


def _divergences(scene: Scene) -> Panel:
    look = scene.look
    style = "bold red" if look.diverged else "bold green" if look.covered_executions else "bold yellow"
    kinds = " · ".join(f"{kind} {count}" for kind, count in sorted(look.divergences.items()))
    nothing = "none" if look.covered_executions else "none, and nothing compared yet"
    return _number("divergences", str(look.diverged), kinds or nothing, style)


def _coverage(scene: Scene) -> Panel:
    look = scene.look
    style = "bold green" if look.covered_executions else "bold yellow"
    detail = (
        f"{look.covered_executions:,} / {look.eligible_executions:,} executions ·"
        f" {look.covered_events:,} / {look.eligible_events:,} events"
    )
    return _number("coverage", coverage(scene), detail, style)


def _lag(scene: Scene) -> Panel:
    look = scene.look
    age = look.ages.get("live", 0.0)
    detail = f"{look.behind:,} rows behind · live horizon {age:.1f} s old"
    return _number("lag, commit to seen", f"{look.lag_s:.2f} s", detail, "bold")


def _number(title: str, number: str, detail: str, style: str) -> Panel:
    text = Text(justify="center")
    text.append(f"{number}\n", style=style)
    text.append(detail, style="bright_black")
    return Panel(text, title=title, box=ROUNDED, border_style="bright_black")


def _side_by_side(left: RenderableType, right: RenderableType) -> Table:
    grid = Table.grid(expand=True, padding=(0, 2))
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(left, right)
    return grid


def _lanes(scene: Scene) -> Table:
    look = scene.look
    rows = [(lane, look.lanes.get(lane, 0), "blue") for lane in LANES]
    return _bars(f"rows by the lane that first saw them · {scene.written:,} written", rows)


def _verdicts(scene: Scene) -> Table:
    rows = [(label, count, colour(label)) for label, count in scene.verdicts.most_common()]
    return _bars(f"latest verdicts of {len(scene.look.verdicts):,} executions · {scene.look.due} due", rows)


def _bars(title: str, rows: list[tuple[str, int, str]]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column()
    most = max((count for _, count, _ in rows), default=0)
    for label, count, style in rows:
        filled = ProgressBar(total=max(most, 1), completed=count, width=BAR, complete_style=style)
        table.add_row(Text(label, style=style), f"{count:,}", filled)
    return table


def _expected(planted: Planted) -> Text:
    if not planted.announced:
        return Text("not yet", style="bright_black")
    return Text(_times(planted.fault.verdict, planted.announced), style=colour(planted.fault.verdict))


def _seen(planted: Planted) -> Text:
    if not planted.announced:
        return Text("")
    first = planted.seen[0]
    if set(planted.seen) == {first}:
        return Text(_times(first, planted.announced), style=colour(first))
    return Text(", ".join(planted.seen), style="yellow")


def _mark(planted: Planted) -> Text:
    if planted.agrees:
        return Text("✓", style="bold green")
    return Text("…" if planted.announced else "", style="bright_black")


def _times(verdict: str, count: int) -> str:
    return verdict if count == 1 else f"{verdict} x{count}"


def _playing(scene: Scene) -> Columns:
    parts: list[RenderableType] = []
    for each in scene.playing:
        table = Table.grid(padding=(0, 1))
        table.add_row(
            Text(each.name.removeprefix("noetl-rust-"), style="bold"),
            ProgressBar(total=max(each.rows, 1), completed=each.written, width=14),
            Text(f"{each.written:,}/{each.rows:,}", style="bright_black"),
        )
        parts.append(table)
    return Columns(parts, expand=True)
