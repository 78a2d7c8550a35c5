"""What the one-shot commands show on stderr: a progress bar on a terminal, and a summary.

Machine output is stdout's alone.  No payload is ever shown.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sidecar.comparator.findings import FOUND, GOOD, Verification
from sidecar.core.populate import InSync
from sidecar.core.verdict import Verdict
from sidecar.inspection.tabled import Whole
from sidecar.store.acknowledge import Acknowledged
from sidecar.store.check import FINDINGS_MAX, Checked
from sidecar.store.rebuild import Rebuilt

FINDINGS_SHOWN: Final = 20
STORED: Final = frozenset({"in_sync", "extended"})


class Advance(Protocol):
    def __call__(self, rows: int, what: str = "") -> None:
        """`rows` more are done; `what` is shown beside the bar."""
        ...


@contextmanager
def progress(title: str, total: int | None, *, unit: str = "rows") -> Iterator[Advance]:
    """A bar with rate and time left on a terminal; silent elsewhere.

    Args:
        total: Rows to come, an estimate; None: unknown.
        unit: What is counted, in the plural.
    """
    if not sys.stderr.isatty():
        yield lambda rows, what="": None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=total, rate="", what="")

        def advance(rows: int, what: str = "") -> None:
            bar.advance(task, rows)
            speed = bar.tasks[0].speed
            bar.update(task, what=what, rate=f"{speed:,.0f} {unit}/s" if speed else "")

        yield advance


def show_verification(found: Verification, seconds: float) -> None:
    """The two numbers together, the verdicts, the first findings."""
    console = Console(stderr=True, highlight=False)
    for name, why in found.controls.unexpected.items():
        console.print(f"control {name} failed: {why}; no execution was judged", style="red", markup=False)
    share = f"{found.covered / found.eligible:.1%}" if found.eligible else "nothing eligible"
    divergences = sum(found.divergences.values())
    console.print(
        f"divergences [b]{divergences}[/b] beside coverage [b]{share}[/b]"
        f"  ({found.covered:,} of {found.eligible:,} eligible executions,"
        f" {found.covered_events:,} of {found.events:,} events, {seconds:.1f} s, against: {found.against})"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("verdict")
    table.add_column("executions", justify="right")
    for verdict in Verdict:
        if found.verdicts[verdict]:
            table.add_row(verdict.value, f"{found.verdicts[verdict]:,}", style=_style(verdict))
    console.print(Whole(table))
    _show_findings(console, found)


def show_backfill(outcomes: Counter[str], rows: int, seconds: float) -> None:
    """What a backfill came to, by outcome of the executions that were not stored already."""
    console = Console(stderr=True, highlight=False)
    console.print(f"{rows:,} rows stored in {seconds:.1f} s")
    for outcome, count in sorted(outcomes.items()):
        console.print(f"{outcome:<20} {count:,}", style="green" if outcome in STORED else "yellow")


def show_check(checked: Checked, seconds: float) -> None:
    """What a check of a store came to."""
    console = Console(stderr=True, highlight=False)
    if checked.damaged:
        console.print("the store is damaged; what comes behind was not read", style="red")
    else:
        console.print(f"{checked.executions:,} executions, {checked.events:,} events in {seconds:.1f} s")
    for finding in checked.findings[:FINDINGS_SHOWN]:
        where = "the store" if finding.execution_id is None else finding.execution_id
        console.print(f"{where}  {finding.kind}  {finding.detail}", style="red", markup=False)
    if (more := checked.kinds.total() - FINDINGS_SHOWN) > 0:
        console.print(f"and {more:,} more: --json lists the first {FINDINGS_MAX:,}")
    if not checked.kinds:
        console.print("nothing in it contradicts itself", style="green")


def show_rebuild(done: Rebuilt) -> None:
    """What a rebuild of one partition came to."""
    console = Console(stderr=True, highlight=False)
    if isinstance(done.outcome, InSync):
        console.print(
            f"{done.rows:,} rows stand there now, {done.kept:,} are kept as evidence", style="green"
        )
    elif done.outcome.label == "log_truncated":
        console.print("nothing was changed: the log is longer than NOETL_CHAIN_READ_LIMIT", style="yellow")
    else:
        console.print(f"nothing was changed: the log is refused ({done.outcome.label})", style="yellow")


def show_acknowledged(done: Acknowledged) -> None:
    """What became of one finding."""
    console = Console(stderr=True, highlight=False)
    what = f"{done.verdict}{'' if done.kind is None else ' ' + done.kind} of execution {done.execution_id}"
    if done.at is None:
        console.print(f"finding {done.finding_id} ({what}) counts again", style="yellow", markup=False)
    else:
        console.print(
            f"finding {done.finding_id} ({what}) is acknowledged: kept and shown, and counts no more",
            style="green",
            markup=False,
        )


def _show_findings(console: Console, found: Verification) -> None:
    worst_first = sorted(found.findings, key=lambda judgement: judgement.verdict not in FOUND)
    for judgement in worst_first[:FINDINGS_SHOWN]:
        at = "" if judgement.position is None else f" at position {judgement.position}"
        kinds = "".join(f" {kind.value}" for kind in judgement.kinds)
        console.print(
            f"{judgement.execution_id}  {judgement.verdict.value}{kinds}{at}"
            f"  log {judgement.log_rows}, store {judgement.stored_rows}  {judgement.detail}",
            style=_style(judgement.verdict),
            markup=False,
        )
    if len(worst_first) > FINDINGS_SHOWN:
        console.print(f"and {len(worst_first) - FINDINGS_SHOWN:,} more: --json lists them all")


def _style(verdict: Verdict) -> str:
    if verdict in FOUND:
        return "red"
    return "green" if verdict in GOOD else "yellow"
