"""The page of `verify --report`: the two numbers, the verdicts, each finding with its chain drawn.

One file with nothing outside of it and no script, so that it can be sent on.  Its place is tried
before the work begins, and the page stands there whole or not at all.  No body is in it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from markupsafe import Markup

from sidecar.comparator.findings import FOUND, Verification
from sidecar.core.authority import StoredEvent
from sidecar.core.picture import picture
from sidecar.core.ports import ExecutionLog, LogReader
from sidecar.core.rejoin import Join
from sidecar.core.verdict import Judgement
from sidecar.errors import ConfigError, PartitionUnreadable, SourceError
from sidecar.web.drawing import irregular, svg
from sidecar.web.rendering import render, style

DRAWN_MAX: Final = 100
"""Findings with a drawing; the others are listed."""
LISTED_MAX: Final = 2_000
READ_MAX: Final = 16
"""Executions of one read."""


class Chains(Protocol):
    """A store whose raw rows can be read."""

    async def chains(self, execution_ids: Sequence[int]) -> Mapping[int, tuple[StoredEvent, ...]]: ...

    async def joins(self, execution_id: int) -> tuple[Join, ...]:
        """Every join that is kept of the execution."""
        ...


@dataclass(slots=True)
class Report:
    """Where the page will stand, and the drawings that are collected for it."""

    place: Path
    scratch: Path
    drawings: dict[int, Markup] = field(default_factory=dict)
    remarks: dict[int, tuple[str, ...]] = field(default_factory=dict)

    async def draw(self, found: Verification, log: LogReader, store: Chains) -> None:
        """Draw the first findings, the worst in front; what cannot be read now is not drawn."""
        wanted = [each.execution_id for each in worst_first(found)[:DRAWN_MAX]]
        for start in range(0, len(wanted), READ_MAX):
            ids = wanted[start : start + READ_MAX]
            try:
                read = await log.read(ids)
            except SourceError:
                return
            for each in read:
                await self._draw(each.execution_id, each, store)

    async def _draw(self, execution_id: int, log: ExecutionLog, store: Chains) -> None:
        try:
            rows = (await store.chains((execution_id,))).get(execution_id, ())
        except PartitionUnreadable:
            rows = ()
        joins = await store.joins(execution_id)
        drawing = picture(log.events, rows, joins)
        title = f"Chain of execution {execution_id}; the sentences beside it say what is irregular."
        self.drawings[execution_id] = svg(drawing, title)
        self.remarks[execution_id] = tuple(irregular(drawing))

    def write(self, found: Verification, seconds: float) -> None:
        """Write the page in one step.

        Raises:
            ConfigError: the disk did not take it.
        """
        text = page(found, seconds, self.drawings, self.remarks)
        try:
            with self.scratch.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            self.scratch.replace(self.place)
        except OSError as error:
            raise _unwritable(self.place, error) from None


@contextmanager
def reporting(place: Path | None) -> Iterator[Report | None]:
    """A report at `place`; None for none.  Without `write` nothing is left there.

    Raises:
        ConfigError: nothing can be written there.
    """
    if place is None:
        yield None
        return
    try:
        if place.is_dir():
            raise IsADirectoryError(21, "is a directory")
        handle, name = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".tmp", dir=place.parent)
    except OSError as error:
        raise _unwritable(place, error) from None
    os.fchmod(handle, 0o644)
    os.close(handle)
    scratch = Path(name)
    try:
        yield Report(place, scratch)
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


def _unwritable(place: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the report cannot be written to {place}: {error.strerror}",
        hint="give --report a file in a folder that exists and may be written to",
    )


def worst_first(found: Verification) -> list[Judgement]:
    return sorted(found.findings, key=lambda judgement: judgement.verdict not in FOUND)


def page(
    found: Verification,
    seconds: float,
    drawings: Mapping[int, Markup],
    remarks: Mapping[int, tuple[str, ...]],
) -> str:
    """The page as text."""
    ordered = worst_first(found)
    return render(
        "report.html",
        style=style(),
        found=found,
        divergences=found.divergences.total(),
        ratio=found.covered / found.eligible if found.eligible else None,
        verdicts=[(verdict.value, n) for verdict, n in sorted(found.verdicts.items()) if n],
        kinds=[(kind.value, n) for kind, n in sorted(found.divergences.items()) if n],
        findings=ordered[:LISTED_MAX],
        more=max(0, len(ordered) - LISTED_MAX),
        drawings=drawings,
        remarks=remarks,
        seconds=seconds,
    )
