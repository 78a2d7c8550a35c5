"""Show what the WAL source keeps on the server, and say every gap.

A gap is repaired without anybody's help; it is told because somebody made it: a dropped slot, a
second reader of it, a publication made anew, a server that gave it up.
Source: spec 1.8.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from sidecar.core.walgap import Gap
from sidecar.service.line import FollowedLane
from sidecar.service.told import Instruments

HINTS: Final[Mapping[Gap, str]] = {
    Gap.FIRST: "the slot was made; the sweep reads what was committed before",
    Gap.SCOPE: "other settings than before: the slot was made anew",
    Gap.TIMELINE: "after a promotion or on another server a slot is made anew",
    Gap.PUBLICATION: "leave the publication as it is: what it left out is read by the sweep",
    Gap.SLOT_MISSING: "somebody dropped the slot",
    Gap.SLOT_LOST: "raise max_slot_wal_keep_size, and look why the sidecar was away so long",
    Gap.SLOT_AHEAD: "one sidecar a slot: NOETL_CHAIN_WAL_SLOT names another one",
    Gap.OWED: "the last process ended before a round of the sweep did",
    Gap.TRUNCATED: "somebody emptied the event table",
    Gap.UNREADABLE: "a row whose key stands behind its large columns; the sweep reads it",
}


class WalState(Protocol):
    """What the source keeps on the server."""

    @property
    def retained_bytes(self) -> int: ...


class WalFollowed(FollowedLane, Protocol):
    """The lane `wal`."""

    @property
    def wal(self) -> WalState: ...

    @property
    def gaps(self) -> Mapping[Gap, int]:
        """How often each was found since the start."""
        ...


class SlotWatch:
    """`run` looks for ever, beside everything else.

    Args:
        lanes: Of which at most one follows the WAL.
        every_s: Between two looks.
    """

    def __init__(self, lanes: Iterable[WalFollowed], instruments: Instruments, *, every_s: float) -> None:
        self._lanes = tuple(lanes)
        self._instruments = instruments
        self._every_s = every_s
        self._told: Counter[Gap] = Counter()

    async def run(self) -> None:
        while self._lanes:
            self.look()
            await asyncio.sleep(self._every_s)

    def look(self) -> None:
        """Export, and say each gap once."""
        for lane in self._lanes:
            self._instruments.metrics.wal_retained(lane.wal.retained_bytes)
            for gap, count in lane.gaps.items():
                if new := count - self._told[gap]:
                    self._instruments.metrics.wal_gap(gap, new)
                    say = self._instruments.log.info if gap is Gap.FIRST else self._instruments.log.warning
                    say("wal_gap", reason=gap.value, times=new, hint=HINTS[gap])
                self._told[gap] = count
