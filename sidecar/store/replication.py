"""Further stores that follow a primary, each at its own pace.

A follower reads what the primary committed after the replica's position, by the engine's own
sequence, and applies it with the position in one transaction of the replica.  So a crash reads
again, and a replica that was away, or was put back from an older copy, goes on from what it
holds.  An event that meets another one is recorded in the replica as a finding and passed
over: what stands there is never overwritten.

The position stands in the replica, under the name of the primary that gave the numbers; a
replica that follows another store, or one that was put back, begins at 0, and what it knows is
passed over.  What the primary let go of goes here, too, and what it filled anew is taken anew:
the old rows are kept as a finding, and the open findings of that execution end.

Markers and coverage are not replicated: a replica claims nothing and is not served.  Joins go along
with the rows of their execution, a withdrawal by itself, for it stores no row: the primary says when
there was one, and whoever opens compares.  A failure here is the replica's own: the primary never
waits.  Source: spec 2.2, 2.3, 6.1.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from sidecar.core.authority import StoredEvent
from sidecar.core.evidence import FORKED, REBUILT, Finding, Rows, side
from sidecar.core.ports import EpochSpan
from sidecar.core.rejoin import Join
from sidecar.errors import StoreError
from sidecar.store import departure, events, joins
from sidecar.store.chain import ChainStore
from sidecar.store.departure import Departure
from sidecar.store.events import Clash
from sidecar.store.format import Marker, gate
from sidecar.store.location import sqlite_path
from sidecar.store.sequence import News
from sidecar.store.unit import StoreUnit

ROWS_PER_STEP: Final = 500
"""Rows of one transaction; with the largest bodies seen (300 kB) still 150 MB."""

_POSITION: Final = "SELECT gseq FROM replica_position WHERE replica = ?"
_GONE: Final = tuple(
    f"DELETE FROM {table} WHERE execution_id = ?"
    for table in ("event", "rejoin", "d3_projection", "due", "partition")
)
_MOVE: Final = "REPLACE INTO replica_position (replica, gseq, moved_at) VALUES (?, ?, ?)"
_FORKS: Final = (
    "SELECT count(*) FROM finding"
    f" WHERE verdict = '{FORKED}' AND resolved_at IS NULL AND acknowledged_at IS NULL"
)


@dataclass(frozen=True, slots=True)
class Step:
    """Where a replica stands after one transaction.

    `position`: everything up to this number of the primary is in it, but for `clashes`.
    `departed`: as for `position`, of the partitions that the primary let go of.
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
    departed: int = 0


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
        self._departed = 0
        self._marks = -1

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
        async with self._opened(tell) as (replica, name):
            while True:
                await self._step(replica, name, tell)

    async def catch_up(self, tell: Callable[[Step], None] = lambda step: None) -> int:
        """Follow until the replica has what the primary has committed; otherwise as `follow`.

        Returns:
            How many events it holds differently.
        """
        async with self._opened(tell) as (replica, name):
            goal = self._primary.committed
            high, departed, marks = goal.high, goal.departed, goal.marks
            while self._position < high or self._departed < departed or self._marks < marks:
                await self._step(replica, name, tell)
            return int((await replica.query(_FORKS))[0][0])

    @asynccontextmanager
    async def _opened(self, tell: Callable[[Step], None]) -> AsyncIterator[tuple[ChainStore, str]]:
        name = await self._primary.prepare_following()
        marker = await asyncio.to_thread(gate, sqlite_path(self._url))
        async with ChainStore.open(self._url) as replica:
            self._position, self._departed = await self._start(replica, name)
            self._marks = await self._marks_in(replica)
            forks = (await replica.query(_FORKS))[0][0]
            new = marker is Marker.ABSENT
            tell(Step(self._position, self.lag, (), forks, new, applied=False, departed=self._departed))
            yield replica, name

    async def _start(self, replica: ChainStore, name: str) -> tuple[int, int]:
        """The replica's position and departures, if what stands there is what the primary has there."""
        position, departed = await _position(replica, name), await _position(replica, _departures(name))
        if position > self._primary.committed.high or departed > self._primary.committed.departed:
            return 0, 0  # the primary was put back: its numbers are given again
        last = await self._primary.event_up_to(position)
        if last is None:
            return position, departed
        held = await replica.get(last.event.execution_id, last.event.event_id)
        agree = held is not None and (held.exec_seq, held.event) == (last.exec_seq, last.event)
        return (position, departed) if agree else (0, 0)

    async def _marks_in(self, replica: ChainStore) -> int:
        """How many of the primary's marks the replica has: all that there are now, or none."""
        marks = self._primary.committed.marks
        ours, theirs = (
            await self._primary.query(joins.ALL_WITHDRAWN),
            await replica.query(joins.ALL_WITHDRAWN),
        )
        return marks if set(ours) <= set(theirs) else -1

    async def _step(self, replica: ChainStore, name: str, tell: Callable[[Step], None]) -> None:
        high = await self._primary.committed.beyond(self._position, self._departed, self._marks)
        marks = self._primary.committed.marks
        news = await self._primary.news_after(self._position, self._departed, self._rows)
        departed = news.departures[-1].seq if news.departures else self._departed
        if len(news.departures) == self._rows:
            position = self._position  # the events come with the last of the departures
        else:
            # A batch that is not full holds everything up to `high`, which was read before it.
            last = news.events[-1].gseq if news.events else high
            position = last if len(news.events) == self._rows else max(last, high)
        epochs = await self._primary.epochs()
        proven = await self._joins(news, marked=marks > self._marks)

        async def take(unit: StoreUnit) -> list[Clash]:
            clashes = await _take(unit, news, epochs, replica.clock.now())
            for each in proven:
                await unit.rows(joins.COPY, joins.row_of(each))
            await unit.rows(_MOVE, (name, position, replica.clock.now()))
            await unit.rows(_MOVE, (_departures(name), departed, replica.clock.now()))
            return clashes

        clashes = await replica.transact(take)
        self._position, self._departed, self._marks = position, departed, marks
        forks = (await replica.query(_FORKS))[0][0]
        tell(Step(position, self.lag, tuple(clashes), forks, departed=departed))

    async def _joins(self, news: News, *, marked: bool) -> list[Join]:
        """What is kept of the executions that come, read after their rows; `marked`: every withdrawn one.

        There are few of those, if any.
        """
        touched = {each.row.event.execution_id for each in news.events}
        touched |= {each.execution_id for each in news.departures if each.rebuilt}
        kept = await self._primary.joins_of(touched) if touched else {}
        withdrawn = joins.grouped(await self._primary.query(joins.ALL_WITHDRAWN) if marked else ())
        return [each for of_one in (*withdrawn.values(), *kept.values()) for each in of_one]


async def caught_up(primary: ChainStore, urls: Sequence[str]) -> list[int | StoreError]:
    """Bring replicas up to what is committed, one after the other.

    Returns:
        For each: how many events it holds differently, or why it cannot be used now.
    """
    found: list[int | StoreError] = []
    for url in urls:
        try:
            found.append(await Follower(primary, url).catch_up())
        except StoreError as error:
            found.append(error)
    return found


def _departures(name: str) -> str:
    """Under what the place among the departures of a primary stands, beside its position."""
    return f"{name}/departures"


async def _position(replica: ChainStore, name: str) -> int:
    found = await replica.query(_POSITION, (name,))
    return int(found[0][0]) if found else 0


async def _take(unit: StoreUnit, news: News, epochs: Sequence[EpochSpan], now: int) -> list[Clash]:
    for each in news.departures:
        await _depart(unit, each, now)
    rows = [replace(each.row, origin="replicated") for each in news.events]
    clashes = await events.apply(unit, rows, now)
    await unit.note_findings([_forked(clash, now) for clash in clashes], ())
    for span in epochs:  # `seen_at` of a row says something only beside them
        await unit.see_epoch(span.epoch, span.first_seen_at)
        await unit.see_epoch(span.epoch, span.last_seen_at)
    return clashes


async def _depart(unit: StoreUnit, gone: Departure, now: int) -> None:
    """Let go of what the primary let go of; what it filled anew, it holds differently from here on."""
    e = gone.execution_id
    stored = await unit.chain(e)
    kept = [_replaced(e, stored, now)] if gone.rebuilt and stored else []
    await unit.note_findings(kept, (e,))
    for statement in _GONE:
        await unit.rows(statement, (e,))
    await departure.note(unit, e, rebuilt=gone.rebuilt, now=now)


def _replaced(execution_id: int, stored: Sequence[StoredEvent], now: int) -> Finding:
    rows = Rows()
    shown = (rows.stored(row) for row in stored)
    evidence = {"kinds": [], "log": side(0, now, ()), "store": side(len(stored), now, shown)}
    detail = "rebuilt in the store that this one follows"
    return Finding(execution_id, REBUILT, evidence, detail=detail, settled=True)


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
