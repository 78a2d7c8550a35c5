"""Evidence side by side: the rows of log and store in pairs, and where they first differ.

Plain values in, plain values out; what a finding keeps is read as it stands, whichever version
wrote it.  A body is cut around the first difference: what shows why is there, and a page stays
readable however long a body is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from sidecar.inspection.drawn import visible

BEFORE, AFTER = 160, 640
"""Characters shown of a body before and behind its first difference."""
HASH_SHOWN: Final = 16
"""Characters of a hash."""
COMPARED: Final = (
    ("event_id", "event"),
    ("prev_event_id", "predecessor"),
    ("parent_execution_id", "parent"),
    ("event_type", "type"),
    ("bytes", "bytes"),
    ("sha256", "sha256"),
)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of one side; `differs`: the other side has another one."""

    name: str
    text: str
    differs: bool


@dataclass(frozen=True, slots=True)
class Body:
    """A body around its first difference: what both have, what differs, how much is left out."""

    cut_before: int
    same: str
    other: str
    cut_after: int


@dataclass(frozen=True, slots=True)
class Side:
    """One row of one side.  `body` is None where none was kept or none may be shown."""

    cells: tuple[Cell, ...]
    body: Body | None


@dataclass(frozen=True, slots=True)
class Pair:
    """One place on both sides; None: that side keeps no row for it.

    `absent`: it has none; else it has one that was not kept.  `first`: the first place where they
    differ.  `at`: the character from which the bodies differ.
    """

    position: int | None
    log: Side | None
    store: Side | None
    absent: bool
    differs: bool
    first: bool
    at: int | None


def beside(evidence: Mapping[str, Any] | None, *, payload: bool) -> tuple[Pair, ...]:
    """The kept rows of a finding in pairs, in the order of the chain.

    Args:
        payload: Show the bodies that were kept.
    """
    told = evidence or {}
    pairs: list[Pair] = []
    for log, store in _matched(_shown(told, "log"), _shown(told, "store")):
        absent = _absent(told, log, "store") if store is None else _absent(told, store, "log")
        first = not any(each.differs for each in pairs)
        pairs.append(_pair(log, store, absent=absent, payload=payload, first=first))
    return tuple(pairs)


def _absent(evidence: Mapping[str, Any], row: Row | None, other: str) -> bool:
    """Whether the other side lacks a row: it ends before it, or is known not to have it."""
    if row is None:
        return False
    only = evidence.get("only_log" if other == "store" else "only_store") or {}
    rows = (evidence.get(other) or {}).get("rows", 0)
    ends = row["position"] is not None and row["position"] >= rows
    return ends or row["event_id"] in only.get("first", ())


def _shown(evidence: Mapping[str, Any], side: str) -> Sequence[Row]:
    return (evidence.get(side) or {}).get("shown") or ()


def _matched(log: Sequence[Row], store: Sequence[Row]) -> list[tuple[Row | None, Row | None]]:
    """By place; rows without one by their id; what is left stands alone."""
    places = sorted({row["position"] for row in (*log, *store) if row["position"] is not None})
    if any(row["position"] is None for row in log):
        return _by_id(log, store)
    ours = {row["position"]: row for row in store}
    theirs = {row["position"]: row for row in log}
    return [(theirs.get(place), ours.get(place)) for place in places]


def _by_id(log: Sequence[Row], store: Sequence[Row]) -> list[tuple[Row | None, Row | None]]:
    ids = dict.fromkeys(row["event_id"] for row in (*store, *log))
    pairs: list[tuple[Row | None, Row | None]] = []
    for event_id in ids:
        theirs = [row for row in log if row["event_id"] == event_id]
        ours = [row for row in store if row["event_id"] == event_id]
        pairs += zip_longest(theirs, ours)
    return pairs


def _pair(log: Row | None, store: Row | None, *, absent: bool, payload: bool, first: bool) -> Pair:
    both = log is not None and store is not None
    names = {name for name, _ in COMPARED if both and _value(log, name) != _value(store, name)}
    place = next((row["position"] for row in (store, log) if row is not None), None)
    at = _difference(log, store)
    differs = bool(names) or (absent and not both)
    return Pair(
        position=place,
        log=_side(log, names, at, payload=payload),
        store=_side(store, names, at, payload=payload),
        absent=absent and not both,
        differs=differs,
        first=first and differs,
        at=at if payload else None,
    )


def _value(row: Row | None, name: str) -> object:
    return None if row is None else row[name]


def _difference(log: Row | None, store: Row | None) -> int | None:
    """The first character in which two kept bodies differ."""
    if log is None or store is None:
        return None
    theirs, ours = log.get("body"), store.get("body")
    if theirs is None or ours is None or theirs == ours:
        return None
    return next(
        (at for at, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b),
        min(len(theirs), len(ours)),
    )


def _side(row: Row | None, differing: set[str], at: int | None, *, payload: bool) -> Side | None:
    if row is None:
        return None
    cells = tuple(Cell(words, _text(name, row[name]), name in differing) for name, words in COMPARED)
    body = row.get("body") if payload else None
    return Side(cells, None if body is None else cut(body, at))


def _text(name: str, value: object) -> str:
    text = "none" if value is None else visible(str(value))
    return f"{text[:HASH_SHOWN]}…" if name == "sha256" else text


def cut(body: str, at: int | None) -> Body:
    """A body around the character `at`, None where it does not differ; what does not print is written out."""
    differs = len(body) if at is None else at
    begin = 0 if at is None else max(0, at - BEFORE)
    middle = min(differs, begin + AFTER)
    end = middle if at is None else min(len(body), at + AFTER)
    most = 2**31
    return Body(
        begin, visible(body[begin:middle], most=most), visible(body[middle:end], most=most), len(body) - end
    )
