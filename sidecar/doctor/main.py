"""`noetl-chain doctor`: ask, show, end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sidecar.doctor.checks import Check, State, document, exit_code
from sidecar.doctor.examination import examined
from sidecar.inspection.drawn import visible
from sidecar.inspection.tabled import Whole
from sidecar.settings import Settings
from sidecar.telemetry import logs

TEXT_MAX: Final = 4_000
STYLE: Final = {
    State.OK: "green",
    State.WARNING: "yellow",
    State.FAILED: "red",
    State.CANNOT_TELL: "magenta",
}


def main_doctor(settings: Settings, *, as_json: bool) -> int:
    """Look at everything a sidecar with these settings would meet.  Nothing is written.

    Returns:
        0 good or warnings only, 3 when something could not be told; of what failed the greatest
        code: 1, 2 configuration, 10 no Postgres, 20 store unusable.
    """
    logs.configure(settings.log_level, settings.log_format)
    checks = asyncio.run(examined(settings))
    if as_json:
        print(json.dumps(document(checks)))  # noqa: T201 - machine output
    else:
        show(checks, Console(stderr=True, highlight=False))
    return exit_code(checks)


def show(checks: Sequence[Check], console: Console) -> None:
    """One row a check; the remedy stands below what it is for."""
    table = Table(box=None, pad_edge=False)
    for column in ("check", "", "found"):
        table.add_column(column)
    for check in checks:
        found = Text(_printable(check.found))
        if check.remedy:
            found.append(f"\n→ {_printable(check.remedy)}", style="bold")
        table.add_row(check.name, Text(check.state.value.replace("_", " "), STYLE[check.state]), found)
    console.print(Whole(table))


def _printable(text: str) -> str:
    """Names of roles, databases and partitions are other people's: none of them steers the terminal."""
    return visible(text, most=TEXT_MAX)
