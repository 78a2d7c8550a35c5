"""What an audit makes of one execution: nothing to do, judged by its sums, or to be read.

An execution with an entry in the work list is in flight: the comparator reads it anyway, and
its sums are nobody's answer.  One that differs is looked at twice before it is handed over; if
its log moved in between, it is in flight too.

A difference that was handed over and got a final verdict is known as long as nothing moved on
either side: a refused log has no chain in the store, and reading it again would say the same.  A
verdict that claims agreement is never such an answer.  Source: design 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.core.sums import StoredSums, Sums, agree
from sidecar.core.verdict import RETRY, Verdict

AGREEING: Final = frozenset({Verdict.MATCH, Verdict.MATCH_REJOINED})


@dataclass(frozen=True, slots=True)
class Round:
    """One walk over the whole history.

    `after_id`: every execution up to this one is done, None before the first slice.  Times are
    the store's; `finished_at` None: it goes on.  `executions`: those that were compared,
    `differing`: those of them that differ.
    """

    number: int
    after_id: int | None
    started_at: int
    finished_at: int | None = None
    executions: int = 0
    differing: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """What the store knows of an execution beside its rows.

    `waiting`: it has an entry in the work list.  `verdict_rows`: of the log read behind the
    verdict.  `seen`: the fingerprint with which an audit last handed it over.
    """

    verdict: str | None = None
    verdict_rows: int = 0
    waiting: bool = False
    seen: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Both sides of one execution at one time.  `log` None: truncated or not summed."""

    log: Sums | None
    stored: StoredSums
    standing: Standing = Standing()

    @property
    def fingerprint(self) -> str:
        """What must stand still for a verdict to be still the answer."""
        log = "-" if self.log is None else f"{self.log.rows}.{self.log.roots}.{self.log.digest:x}"
        stored = self.stored.sums
        return f"{log}/{stored.rows}.{stored.roots}.{stored.digest:x}.{int(self.stored.whole)}"


class Found(StrEnum):
    """EQUAL: nothing to do.  BY_SUMS: equal, and nobody has judged it yet.  DIFFERENT: and known
    to be.  READ: the comparator has to read it.  IN_FLIGHT: ask again in the next round."""

    EQUAL = "equal"
    BY_SUMS = "by_sums"
    DIFFERENT = "different"
    READ = "read"
    IN_FLIGHT = "in_flight"


def found(look: Look) -> Found:
    """What one look comes to; READ asks for a second one."""
    standing = look.standing
    if standing.waiting:
        return Found.IN_FLIGHT
    if agree(look.log, look.stored):
        if standing.verdict is None:
            return Found.BY_SUMS
        if standing.verdict in AGREEING or is_known(look):
            return Found.EQUAL
        return Found.READ  # the verdict says otherwise: something was put right
    return Found.DIFFERENT if is_known(look) else Found.READ


def confirmed(first: Look, second: Look) -> Found:
    """What two looks come to, the second a moment later."""
    again = found(second)
    moved = first.log != second.log
    return Found.IN_FLIGHT if again is Found.READ and moved else again


def is_known(look: Look) -> bool:
    """Whether the verdict speaks of exactly these two sides.

    What was handed over and waits no longer was judged since, by a later read of the log:
    that read must have seen as many rows as are there now.
    """
    standing = look.standing
    if standing.verdict is None or standing.verdict in RETRY or standing.seen != look.fingerprint:
        return False
    if standing.verdict in AGREEING:
        return agree(look.log, look.stored)
    return look.log is None or standing.verdict_rows == look.log.rows
