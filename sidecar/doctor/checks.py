"""What one check of `doctor` says, and what all of them together come to.

A check is good, a warning, failed, or could not be told.  "Could not be told" is a value of its
own and never good.  Each names the thing and, when it is not good, what to do.
Source: design section 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

INCOMPLETE: Final = 3


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    CANNOT_TELL = "cannot_tell"


@dataclass(frozen=True, slots=True)
class Check:
    """One answer.  `exit_code`: of a failed one, the code the program would end with."""

    name: str
    state: State
    found: str
    remedy: str = ""
    exit_code: int = 1


def ok(name: str, found: str) -> Check:
    return Check(name, State.OK, found)


def warning(name: str, found: str, remedy: str) -> Check:
    return Check(name, State.WARNING, found, remedy)


def failed(name: str, found: str, remedy: str, *, exit_code: int = 1) -> Check:
    return Check(name, State.FAILED, found, remedy, exit_code)


def cannot_tell(name: str, why: str, remedy: str = "") -> Check:
    return Check(name, State.CANNOT_TELL, why, remedy)


def exit_code(checks: Iterable[Check]) -> int:
    """0 when nothing failed and everything was told; a failure outranks what was not told.

    Of several failures the greatest code: an unusable store (20), no Postgres (10), a
    configuration (2), anything else (1).
    """
    found = tuple(checks)
    codes = [check.exit_code for check in found if check.state is State.FAILED]
    if codes:
        return max(codes)
    return INCOMPLETE if any(check.state is State.CANNOT_TELL for check in found) else 0


def document(checks: Sequence[Check]) -> dict[str, object]:
    """The answer as JSON."""
    counts = Counter(check.state for check in checks)
    return {
        "exit_code": exit_code(checks),
        "counts": {state.value: counts[state] for state in State},
        "checks": [
            {"name": check.name, "state": check.state.value, "found": check.found, "remedy": check.remedy}
            for check in checks
        ],
    }
