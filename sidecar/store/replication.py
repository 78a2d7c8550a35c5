"""Further stores that follow a primary, each at its own pace.

A follower reads what the primary committed after the replica's position, by the engine's own
sequence, and applies it with the position in one transaction of the replica.  So a crash reads
again, and a replica that was away, or was put back from an older copy, goes on from what it
holds.  An event that meets another one is recorded in the replica as a finding and passed
over: what stands there is never overwritten.

The position stands in the replica, under the name of the primary that gave the numbers; a
replica that follows another store, or one that was put back, begins at 0, and what it knows is
passed over.  Markers and coverage are not replicated: a replica claims nothing and is not
served.  A failure here is the replica's own: the primary never waits.  Source: spec 2.2, 2.3, 6.1.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from sidecar.core.evidence import FORKED, Finding, Rows, side
from sidecar.core.ports import EpochSpan
from sidecar.store import events
from sidecar.store.chain import ChainStore
from sidecar.store.events import Clash
from sidecar.store.format import Marker, gate
from sidecar.store.location import sqlite_path
from sidecar.store.sequence import Numbered
from sidecar.store.unit import SqliteUnit

ROWS_PER_STEP: Final = 500
"""Rows of one transaction; with the largest bodies seen (300 kB) still 150 MB."""

_POSITION: Final = "SELECT gseq FROM replica_position WHERE replica = ?"
_MOVE: Final = "REPLACE INTO replica_position (replica, gseq, moved_at) VALUES (?, ?, ?)"
_FORKS: Final = (
    "SELECT count(*) FROM finding"
    f" WHERE verdict = '{FORKED}' AND resolved_at IS NULL AND acknowledged_at IS NULL"
)


@dataclass(frozen=True, slots=True)
class Step:
    """Where a replica stands after one transaction.

    `position`: everything up to this number of the primary is in it, but for `clashes`.
    `lag`: numbers behind the primary, 0 when it has everything.  `forks`: events that it holds
    differently, by its own record.  `applied`: a transaction went through; False for the first
    word after opening, when `initialised` says whether the file was new.
    """

    position: int
    lag: int
    clashes: tuple[Clash, ...]
    forks: int
    initialised: bool = False
    applied: bool = True


class Follower:
    """One replica of `primary`.

    Args:
        url: The replica's store: as for ChainStore.open.
        rows: At most so many events a transaction.
    """

    def __init__(self, primary: ChainStore, url: str, *, rows: int = ROWS_PER_STEP) -> None:
        self._primary = primary
        self._url = url
        self._rows = rows
        self._position = 0

    @property
    def lag(self) -> int:
        """Numbers of the primary that the replica is not known to have.

        Until the replica was reached once, that is all of them.
        """
        return max(0, self._primary.committed.high - self._position)

    async def follow(self, tell: Callable[[Step], None]) -> None:
        """Follow without end.

        Args:
            tell: Called when the replica is open, and after every transaction.

        Raises:
            StoreError: the replica cannot be used now; what was applied stands.  Follow again.
        """
        name = await self._primary.prepare_following()
        marker = await asyncio.to_thread(gate, sqlite_path(self._url))
        async with ChainStore.open(self._url) as replica:
            self._position = await self._start(replica, name)
            forks = (await replica.query(_FORKS))[0][0]
            tell(Step(self._position, self.lag, (), forks, marker is Marker.ABSENT, applied=False))
            while True:
                step = await self._step(replica, name)
                self._position = step.position
                tell(step)

    async def _start(self, replica: ChainStore, name: str) -> int:
        """The replica's position, if what stands there is what the primary has there."""
        found = await replica.query(_POSITION, (name,))
        position: int = found[0][0] if found else 0
        if position > self._primary.committed.high:
            return 0  # the primary was put back: its numbers are given again
        last = await self._primary.event_up_to(position)
        if last is None:
            return position
        event = last.row.event
        held = await replica.get(event.execution_id, event.event_id)
        agree = held is not None and (held.exec_seq, held.event) == (last.row.exec_seq, event)
        return position if agree else 0

    async def _step(self, replica: ChainStore, name: str) -> Step:
        high = await self._primary.committed.beyond(self._position)
        batch = await self._primary.events_after(self._position, self._rows)
        # A batch that is not full holds everything up to `high`, which was read before it.
        last = batch[-1].gseq if batch else 0
        position = last if len(batch) == self._rows else max(last, high)
        epochs = await self._primary.epochs()
        clashes = await replica.transact(lambda unit: _take(unit, replica, name, position, batch, epochs))
        forks = (await replica.query(_FORKS))[0][0]
        return Step(position, max(0, self._primary.committed.high - position), tuple(clashes), forks)


async def _take(
    unit: SqliteUnit,
    replica: ChainStore,
    name: str,
    position: int,
    batch: Sequence[Numbered],
    epochs: Sequence[EpochSpan],
) -> list[Clash]:
    now = replica.clock.now()
    clashes = await events.apply(unit, [replace(each.row, origin="replicated") for each in batch], now)
    await unit.note_findings([_forked(clash, now) for clash in clashes], ())
    for span in epochs:  # `seen_at` of a row says something only beside them
        await unit.see_epoch(span.epoch, span.first_seen_at)
        await unit.see_epoch(span.epoch, span.last_seen_at)
    await unit.rows(_MOVE, (name, position, now))
    return clashes


def _forked(clash: Clash, now: int) -> Finding:
    """The primary's row in the place of the log, the replica's beside it."""
    came, stands, rows = clash.came, clash.stands, Rows()
    evidence = {
        "kinds": [],
        "log": side(1, now, (rows.stored(came),)),
        "store": side(1, now, (rows.stored(stands),)),
    }
    return Finding(
        came.event.execution_id,
        FORKED,
        evidence,
        position=came.exec_seq - 1,
        detail=str(clash.error),
        log_event_id=came.event.event_id,
        store_event_id=stands.event.event_id,
        each_place=True,
    )
