"""Scenes written by hand for clauses of the rule for joins that few seeds come near.

Each is played at several offsets against polls and ticks.  The program has to be right at all of
them; without the clause at least one shows it.  A scene begins with an execution of one stored row,
the root FIRST; TIP goes on behind it, and NEXT is the root of another server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final
from unittest.mock import patch

import sidecar.feed.feed
import sidecar.source.pieces
import sidecar.source.poll
from tests.simulation.run import Outcome, Run, simulate
from tests.simulation.script import End, Insert, Script, Stamped, Step, Update

E: Final = 1500
OTHER: Final = 1400
FIRST, TIP, NEXT, BRANCH = 5_000, 6_000, 7_000, 8_000
OFFSETS: Final = tuple(at / 20 for at in range(20))


class _Calm(Run):
    """Nothing is slow and nothing fails: only the scene decides who comes first."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.weather.calm = 1.0
        self.tick_s, self.poll_s = 1.0, 0.5


def _row(event_id: int, prev: int | None, at: float, *, execution_id: int = E) -> Stamped:
    return Stamped(execution_id, event_id, prev, "step.exit", at)


def _first(tx: int) -> list[Step]:
    return [Step(0.1, Insert(tx, _row(FIRST, None, 0.1))), Step(0.11, End(tx))]


def _begun_beside(at: float) -> list[Step]:
    """NEXT is written while TIP is under way, under the greater xid, and commits a poll later."""
    return [
        *_first(1),
        Step(at, Insert(2, _row(TIP, FIRST, at))),
        Step(at + 0.01, Insert(3, _row(NEXT, None, at))),
        Step(at + 0.02, End(2)),
        Step(at + 0.8, End(3)),
    ]


def _met_by_a_log_read(at: float) -> list[Step]:
    """A row makes the execution due; TIP becomes visible between that poll and the comparator's read."""
    return [
        *_first(1),
        Step(at, Insert(2, _row(FIRST + 1, FIRST, at))),
        Step(at + 0.01, End(2)),
        Step(at + 0.5, Insert(3, _row(TIP, FIRST + 1, at))),
        Step(at + 0.51, Insert(4, _row(NEXT, None, at))),
        Step(at + 0.52, End(3)),
        Step(at + 0.9, End(4)),
    ]


def _updated(at: float) -> list[Step]:
    """NEXT has no proof, for it was begun before TIP was seen; then somebody changes it."""
    return [
        *_first(1),
        Step(at, Insert(2, _row(NEXT, None, at))),
        Step(at + 0.01, Insert(3, _row(TIP, FIRST, at))),
        Step(at + 0.02, End(3)),
        Step(at + 0.8, End(2)),
        Step(at + 2.0, Update(E, None)),
    ]


def _in_parts(at: float) -> list[Step]:
    """TIP, then NEXT, between two polls; the poll comes in pieces of two rows, and TIP was changed last."""
    steps = _first(1)
    for number, execution_id in enumerate(range(OTHER, OTHER + 4), start=2):
        row = _row(execution_id, None, at, execution_id=execution_id)
        steps += [Step(at, Insert(number, row)), Step(at + 0.01, End(number))]
    steps.append(Step(at + 0.1, Update(E, 1)))
    for number, row in enumerate((_row(TIP, FIRST, at), _row(NEXT, None, at)), start=6):
        moment = at + 0.02 + number / 100
        steps += [Step(moment, Insert(number, row)), Step(moment + 0.001, End(number))]
    return steps


def _forked(at: float) -> list[Step]:
    """TIP is seen; then two servers write, one of them behind FIRST."""
    rows = _row(TIP, FIRST, at), _row(BRANCH, FIRST, at + 1.2), _row(NEXT, None, at + 1.25)
    return [
        *_first(1),
        *(
            step
            for number, row in enumerate(rows, start=2)
            for step in (Step(row.created_s, Insert(number, row)), Step(row.created_s + 0.01, End(number)))
        ),
    ]


SCENES: Final[Mapping[str, Callable[[float], list[Step]]]] = {
    "rejoin: the snapshot's xmax for the anchor": _begun_beside,
    "rejoin: a poll's anchor for a log read": _met_by_a_log_read,
    "rejoin: an updated row's xid": _updated,
    "rejoin: a root that came in a part of a poll": _in_parts,
    "rejoin: forks do not matter": _forked,
}
"""By the mutant that each is for."""


def played(name: str, number: int) -> Outcome:
    """The scene at one of the offsets."""
    steps = tuple(sorted(SCENES[name](2.0 + OFFSETS[number]), key=lambda step: step.at))
    scene = Script(number, frozenset(), steps, {}, 700, shown_first=False, rejoin=True)
    with _sizes(small=name.endswith("part of a poll")):
        return simulate(number, _Calm, scene)


def first_wrong(name: str) -> Outcome | None:
    """The first offset that shows something wrong; None: all is right."""
    outcomes = (played(name, number) for number in range(len(OFFSETS)))
    return next((outcome for outcome in outcomes if outcome.wrong), None)


def _sizes(*, small: bool) -> AbstractContextManager[Any]:
    stack = ExitStack()
    if small:
        stack.enter_context(patch.object(sidecar.source.pieces, "ROWS_FIRST", 2))
        stack.enter_context(patch.object(sidecar.source.pieces, "ROWS_MAX", 2))
        stack.enter_context(patch.object(sidecar.source.poll, "PIECE_ROWS", 2))
    return stack
