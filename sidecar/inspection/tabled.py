"""Tables whose words stay whole at any width.

A terminal too narrow for the longest word of each column gets the same cells one below the other:
a number or an id that is folded reads as two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

_UNBOUNDED: Final = 100_000


@dataclass(frozen=True, slots=True)
class Whole:
    """A table of texts; as it is where it fits, else one line a cell."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        measured = self.table.__rich_measure__(console, options.update(max_width=_UNBOUNDED))
        unwrapped = any(column.no_wrap for column in self.table.columns)
        if (measured.maximum if unwrapped else measured.minimum) <= options.max_width:
            yield self.table
        else:
            yield from self._lines()

    def _lines(self) -> Iterator[Text]:
        if self.table.title:
            yield _text(self.table.title)
        columns = self.table.columns
        heads = [_text(column.header).plain for column in columns]
        pad = max(map(len, heads))
        rows = zip(*(column.cells for column in columns), strict=True)
        for row, cells in zip(self.table.rows, rows, strict=True):
            for place, (head, cell) in enumerate(zip(heads, cells, strict=True)):
                value = _text(cell)
                if value.plain:
                    label = f"{head:<{pad}} " if head else ""
                    yield Text.assemble("  " if place else "", label, value, style=row.style or "")


def _text(cell: RenderableType) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text.from_markup(str(cell))
