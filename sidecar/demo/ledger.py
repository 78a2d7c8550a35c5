"""What must come out, written down before it happens, and whether it did.

The ledger holds one entry for every execution that is played or planted.  It is written to a
file, one JSON object a line, and flushed before the first row of that execution exists, so
an expectation can never follow from the outcome.

The agreement has two directions.  Every entry must have exactly its verdict; and nothing may
be found that the ledger does not announce: no verdict other than `match` on an execution
without an entry, and no divergence counted beyond those announced, not even one that a later
match took back.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sidecar.errors import invariant

MATCH: Final = "match"
UNJUDGED: Final = "unjudged"
HARMLESS: Final = frozenset({MATCH, "pending_visibility", "pending_stale", "pending_settle"})
"""What may be said on the way of an execution that matches in the end: not knowing yet."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One expectation.

    `fault`: the planted fault's name, None for a recorded execution.  `kind`: the divergence
    kind that goes with the verdict, None when no divergence may be counted.
    """

    execution_id: int
    verdict: str
    origin: str
    fault: str | None = None
    kind: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """An execution whose verdict is not the announced one.

    `expected` None: the ledger has no entry.  `seen` is `unjudged` when there is no verdict.
    """

    execution_id: int
    expected: str | None
    seen: str
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Miscounted:
    """A divergence kind counted more or less often than announced."""

    kind: str
    expected: int
    seen: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """Verdicts against the ledger.

    `missing`: entries without their verdict.  `extra`: verdicts without an entry.  `taken_back`:
    verdicts published on the way of an execution that had to match.
    """

    entries: int
    missing: tuple[Found, ...]
    extra: tuple[Found, ...]
    miscounted: tuple[Miscounted, ...]
    taken_back: tuple[Found, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether both directions agree.  An empty ledger announces nothing and proves nothing."""
        return self.entries > 0 and not (self.missing or self.extra or self.miscounted or self.taken_back)


class Ledger:
    """The entries, in memory and in a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("x", encoding="utf-8")
        self._entries: dict[int, Entry] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def entries(self) -> Mapping[int, Entry]:
        return self._entries

    def announce(self, entries: Iterable[Entry]) -> None:
        """Write entries down; on return they are in the file."""
        for entry in entries:
            invariant(entry.execution_id not in self._entries, "an execution is announced twice")
            self._entries[entry.execution_id] = entry
            self._file.write(_line(entry))
        self._file.flush()
        os.fsync(self._file.fileno())

    def faults(self) -> dict[str, list[Entry]]:
        """The planted entries by fault, in the order of planting."""
        planted: dict[str, list[Entry]] = {}
        for entry in self._entries.values():
            if entry.fault is not None:
                planted.setdefault(entry.fault, []).append(entry)
        return planted


def agreement(
    entries: Mapping[int, Entry],
    verdicts: Mapping[int, str | None],
    divergences: Mapping[str, int],
    published: Iterable[tuple[int, str]] = (),
) -> Agreement:
    """Compare what was announced with what was found, in both directions.

    Args:
        verdicts: The latest verdict of every execution that is known to the sidecar.
        divergences: How often each kind was counted since the start; zeros may be left out.
        published: Execution and verdict of everything that was said since the start.
    """
    missing = tuple(
        Found(entry.execution_id, entry.verdict, seen, entry.fault)
        for entry in entries.values()
        if (seen := verdicts.get(entry.execution_id) or UNJUDGED) != entry.verdict
    )
    extra = tuple(
        Found(execution, None, verdict or UNJUDGED)
        for execution, verdict in verdicts.items()
        if execution not in entries and verdict != MATCH
    )
    announced = Counter(entry.kind for entry in entries.values() if entry.kind is not None)
    miscounted = tuple(
        Miscounted(kind, announced[kind], divergences.get(kind, 0))
        for kind in sorted(announced.keys() | divergences.keys())
        if announced[kind] != divergences.get(kind, 0)
    )
    return Agreement(len(entries), missing, extra, miscounted, _taken_back(entries, published))


def _taken_back(entries: Mapping[int, Entry], published: Iterable[tuple[int, str]]) -> tuple[Found, ...]:
    said = {
        (execution, verdict)
        for execution, verdict in published
        if verdict not in HARMLESS and execution in entries and entries[execution].verdict == MATCH
    }
    return tuple(
        Found(execution, MATCH, verdict, entries[execution].fault) for execution, verdict in sorted(said)
    )


def _line(entry: Entry) -> str:
    record = {
        "execution_id": str(entry.execution_id),
        "verdict": entry.verdict,
        "kind": entry.kind,
        "fault": entry.fault,
        "origin": entry.origin,
        "why": entry.why,
    }
    return json.dumps(record) + "\n"
