"""What the anchor proves of two rows, held against the instant at which each was really inserted.

Writers take their xid early, write rows of one transaction over a while, in savepoints too, and commit late.
A trigger notes `clock_timestamp()` of every row in a table beside.  Order of commit is no judge here:
an xid behind the snapshot implies it, so such a test could not fail.  That this one can is shown
in the same run, by rules that take something else for the anchor.  Source: spec 2.13.
"""

from __future__ import annotations

import asyncio
import random
import sys
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import pytest

import sidecar.source.log
import sidecar.source.poll
from sidecar.core.horizon import Facts, TailRow
from sidecar.core.rejoin import Join, Missing, Sighting, join
from sidecar.source.connection import Session
from tests.support.databases import Database
from tests.support.restarted import INSTANTS, instants
from tests.support.rows import event_row, insert_rows
from tests.support.tailing import MemoryStore, Ticks, following, opened
from tests.support.writers import overlapped

E = 7700
WRITERS = 6
AHEAD = range(10_000, 10_010)
"""Rows that are read before any poll shows them."""


class Anchor(int):
    """An anchor that remembers the snapshot it was read after."""

    facts: Facts

    @classmethod
    def of(cls, number: int, facts: Facts) -> Self:
        anchor = cls(number)
        anchor.facts = facts
        return anchor


@pytest.fixture
def anchors(monkeypatch: pytest.MonkeyPatch) -> list[Anchor]:
    """The anchors of the polls, oldest first; every row that is seen bears one of the kind."""
    real, taken = sidecar.source.log.read_anchor, list[Anchor]()

    async def remembered(session: Session, facts: Facts) -> Anchor:
        return Anchor.of(await real(session, facts), facts)

    async def of_a_poll(session: Session, facts: Facts) -> Anchor:
        taken.append(await remembered(session, facts))
        return taken[-1]

    monkeypatch.setattr(sidecar.source.log, "read_anchor", remembered)
    monkeypatch.setattr(sidecar.source.poll, "read_anchor", of_a_poll)
    return taken


@dataclass(frozen=True, slots=True)
class Seen:
    """A row as it was first seen, what each rule takes for its anchor, and when it was inserted."""

    sighting: Sighting
    anchors: dict[str, int]
    at: float


def _wrong(rule: str, earlier: list[Seen], later: list[Seen]) -> tuple[int, int]:
    """How many pairs a rule says the order of, and how many of them it says falsely.

    For each earlier row: of those that were inserted before it none may be said to come after.
    """
    said = wrong = 0
    xids = sorted(row.sighting.xid or 0 for row in later)
    by_time = sorted(later, key=lambda row: row.at)
    times = [row.at for row in by_time]
    for u in earlier:
        anchor = u.anchors[rule]
        said += len(xids) - bisect_left(xids, anchor)
        wrong += sum((v.sighting.xid or 0) >= anchor for v in by_time[: bisect_left(times, u.at)])
    return said, wrong


def _seen_by_polls(rows: Iterable[TailRow], at: dict[int, float]) -> list[Seen]:
    found = []
    for row in rows:
        if row.xid is None or not isinstance(row.anchor, Anchor):
            continue
        facts = row.anchor.facts
        sighting = Sighting(row.event.event_id, row.xid, row.anchor, row.epoch)
        rules = {"anchor": int(row.anchor), "xmax": facts.xmax, "horizon": facts.horizon}
        found.append(Seen(sighting, rules, at[row.event.event_id]))
    return found


@pytest.mark.usefixtures("anchors")
async def test_what_is_said_to_come_after_was_inserted_after(pg: Database) -> None:
    """Of all pairs of some hundred rows, found by polls, and by log reads between them."""
    seed = random.randrange(2**32)
    sys.stderr.write(f"seed {seed}\n")
    await pg.execute(INSTANTS)
    store = MemoryStore()
    read: dict[int, int] = {}
    async with opened(pg.dsn, poll_ms=15) as source:
        live, _, _ = source.lanes(store, Ticks())
        reader = source.reader(Ticks())
        async with following(live, store) as follower:
            await follower.until(lambda: store.horizon("live") is not None)
            writers = [
                asyncio.create_task(
                    overlapped(pg, E, range(w * 1000 + 10, (w + 1) * 1000), random.Random(seed + w))
                )
                for w in range(WRITERS)
            ]
            while not all(writer.done() for writer in writers):
                (log,) = await reader.read([E])
                for event in log.events or ():
                    if (E, event.event_id) not in store.bodies and log.read.anchor is not None:
                        read.setdefault(event.event_id, log.read.anchor)
                await follower.polls("live", 1)
            for writer in writers:
                writer.result()
            await follower.polls("live", 1)
        # Nobody polls now, so that these reads are ahead of the poll on whatever machine.
        for event_id in AHEAD:
            await pg.insert([event_row(E, event_id, prev=1)])
            (log,) = await reader.read([E])
            assert event_id in {event.event_id for event in log.events or ()}
            assert log.read.anchor is not None
            read[event_id] = log.read.anchor
        again, _, _ = source.lanes(store, Ticks())
        async with following(again, store) as follower:
            await follower.until(lambda: (E, AHEAD[-1]) in store.bodies)
    at = await instants(pg)
    rows = _seen_by_polls(store.first_rows.values(), at)
    assert len(rows) == len(at), "each row was seen by a poll with a horizon"

    said, wrong = _wrong("anchor", rows, rows)
    assert wrong == 0
    assert said > len(rows) ** 2 / 20, "a rule that says nothing is never wrong"
    _program_says_the_same(rows, random.Random(seed))
    for rule in "xmax", "horizon":
        assert _wrong(rule, rows, rows)[1] > 0, f"{rule} in place of the anchor: the test cannot fail"

    epoch = rows[0].sighting.epoch
    found = [Seen(Sighting(i, None, anchor, epoch), {"anchor": anchor}, at[i]) for i, anchor in read.items()]
    assert len(found) >= len(AHEAD)
    said, wrong = _wrong("anchor", found, rows)
    assert wrong == 0
    assert said > 0


def _program_says_the_same(rows: list[Seen], chance: random.Random) -> None:
    """The count above compares numbers; the program's own rule says no more than that."""
    for _ in range(2000):
        u, v = chance.choice(rows), chance.choice(rows)
        answer = join(E, u.sighting, v.sighting, 0)
        proven = (v.sighting.xid or 0) >= u.anchors["anchor"]
        assert isinstance(answer, Join) == proven
        assert proven or answer is Missing.BEFORE_ANCHOR


async def test_a_row_of_a_log_read_takes_the_anchor_that_is_read_after_it(
    pg: Database, anchors: list[Anchor]
) -> None:
    """The last poll's lies before it, and says that what was inserted first came after."""
    await pg.execute(INSTANTS)
    store, early = MemoryStore(), await pg.connect()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        async with following(live, store) as follower:
            await follower.until(lambda: store.horizon("live") is not None)
        polled = anchors[-1]
        async with early.transaction():
            await insert_rows(early, [event_row(E, 2)])
            await pg.insert([event_row(E, 1)])
            (log,) = await source.reader(Ticks()).read([E])
        again, _, _ = source.lanes(store, Ticks())
        async with following(again, store) as follower:
            await follower.until(lambda: (E, 2) in store.bodies)
    at, root = await instants(pg), store.first_rows[E, 2]
    assert at[2] < at[1]
    assert [event.event_id for event in log.events or ()] == [1]
    assert root.xid is not None
    assert log.read.anchor is not None
    tip = Sighting(1, None, log.read.anchor, log.read.epoch)
    later = Sighting(2, root.xid, root.anchor, root.epoch)
    assert join(E, tip, later, 0) is Missing.BEFORE_ANCHOR
    assert isinstance(join(E, replace(tip, anchor=polled), later, 0), Join), "the poll's would not do"
