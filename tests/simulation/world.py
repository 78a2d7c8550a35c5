"""Plays a script on the simulated server and remembers what was true when.

What it remembers are facts of the log and of who did what; no verdict is looked at here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

import msgspec

from sidecar.certified import created_at
from sidecar.core.authority import Coverage, Partition, StoredEvent, Watermark
from sidecar.core.event import Event
from tests.contract.model import ordered
from tests.simulation.clockwork import microseconds
from tests.simulation.order import Inserted
from tests.simulation.script import (
    PARTITION_WIDTH,
    PARTITIONS,
    ClockBack,
    Crash,
    Delete,
    End,
    Insert,
    Kill,
    Pin,
    Plant,
    Script,
    Stamped,
    Step,
    Switch,
    Tree,
    Update,
)
from tests.simulation.server import ROOT_RELID, Down, Row, Server, Transaction
from tests.simulation.statements import Weather
from tests.simulation.store import Disk

OUTSIDE_LIVE_US = 2_000_000
"""A row this old when it becomes visible may be outside the live window (3 s) at the next poll."""

State = frozenset[Event]
"""The visible rows of one execution at one instant."""


@dataclass
class Facts:
    """What was done to one execution.

    `states`: every state its log was in, with the time it began, oldest first.  The sets hold
    event ids.
    """

    rejoin: bool = False
    """The gate NOETL_CHAIN_REJOIN is on: pieces in their true order are a chain."""
    inserted: Inserted = field(default_factory=Inserted)
    changed_unseen: set[int] = field(default_factory=set)
    """Rows that were changed before anybody had seen them as they were inserted."""
    published: set[tuple[int, int]] = field(default_factory=set)
    """Joins, tip and root, over which a verdict was given."""
    states: list[tuple[int, State]] = field(default_factory=lambda: [(0, frozenset())])
    lost: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    foreign: set[int] = field(default_factory=set)
    updated: set[int] = field(default_factory=set)
    left: bool = False
    """Its partition was dropped or detached at some time."""
    crashed: bool = False
    """The server crashed: what somebody took away may then look like what was lost (spec 3.4 b)."""
    chains: set[tuple[Event, ...]] = field(default_factory=set)
    """Every beginning of every chain that its log was at some instant."""
    versions: dict[int, list[Event]] = field(default_factory=dict)
    """By event id, every committed version of each row, oldest first."""
    delivered: dict[int, int] = field(default_factory=dict)
    """By event id, how many versions a lane has shown the feed, and the feed has stored."""

    row_at: int = 0
    """When a row last became visible, or changed."""
    taken_at: int = -1
    """When a row last left the log, or changed."""
    meddled_at: int = -1
    """When somebody last took a row from the log or put one into the store."""
    all: dict[int, Event] = field(default_factory=dict)
    """Every row that was ever visible, in its last version."""

    def becomes(self, at: int, state: State) -> None:
        """The log changed."""
        if state - self.log:
            self.row_at = at
        if self.log - state:
            self.taken_at = at
        self.states.append((at, state))
        self.all |= {event.event_id: event for event in state}
        for event in state:
            known = self.versions.setdefault(event.event_id, [])
            if event not in known:
                known.append(event)
        shown = tuple(event for event in state if not self._passed_by(event, at))
        self.inserted.passed_by |= {event.event_id for event in state.difference(shown) - self.states[-2][1]}
        # A chain that lost its beginning to a pruned partition goes on where it stands.
        for rows in (tuple(state), shown, *([tuple(self.all.values())] if self.left else [])):
            label, links = ordered(rows)
            joined = self.inserted.in_row(rows) if self.rejoin else None
            if label == "ordered" or joined is not None:
                chain = tuple(joined or links)
                self.chains.update(chain[:length] for length in range(1, len(chain) + 1))

    def _passed_by(self, event: Event, at: int) -> bool:
        """Whether the live lane cannot have shown the row, and no other lane has: its clock is old."""
        created = created_at(event.body)
        old = created is not None and at - created > OUTSIDE_LIVE_US
        return old and event.event_id not in self.delivered

    @property
    def log(self) -> State:
        return self.states[-1][1]

    def is_delivered(self, events: Iterable[Event]) -> None:
        """A lane has shown these versions, and the transaction that took them is durable."""
        for event in events:
            number = self.versions[event.event_id].index(event)
            self.delivered[event.event_id] = max(number, self.delivered.get(event.event_id, 0))

    def why_not_served(self, chain: tuple[Event, ...], verdict: str | None) -> str | None:
        """What is wrong with serving these events; None: nothing, as far as anybody could know.

        A DELETE, a partition that leaves and a row in the store are seen by no lane, and what an
        older log read stored may be served until then: there each link is looked at alone.  So it is
        where a crash took a row from within the chain and the head stayed (spec 2.12 step 4 asks for
        the head only), but nothing may stand on a lost row that was not visible beside it, except what
        a second writer put there.  A pruned copy stays readable as it is (spec 3.4), that row with it.
        """
        ours = [event for event in chain if event.event_id not in self.foreign]
        for event in ours:
            known = self.versions.get(event.event_id, [])
            if event not in known:
                return f"{event.event_id} was never like that"
            if verdict != "log_pruned" and known.index(event) < self.delivered.get(event.event_id, 0):
                return f"a newer version of {event.event_id} was delivered"
        ids = [event.event_id for event in chain]
        for one, two in pairwise(ids):
            if two in self.foreign:
                continue
            if one in self.lost and not any({one, two} <= _ids(state) for _, state in self.states):
                return f"{two} stands on a row that was lost before"
        if self.foreign or self.deleted or self.left or self.lost.intersection(ids[:-1]):
            behind = all(self._stands_behind(one, two) for one, two in pairwise(chain))
            linked = chain[0].prev_event_id is None and behind
            return None if linked else "its links do not hold"
        if self.updated:  # which version of a row may be served was looked at above
            known_ids = {tuple(event.event_id for event in each) for each in self.chains}
            return None if tuple(ids) in known_ids else "its log never was that"
        return None if chain in self.chains else "its log never was that"

    def _stands_behind(self, one: Event, two: Event) -> bool:
        if self.rejoin and two.prev_event_id is None:
            return self.inserted.follows(one.event_id, two.event_id)
        return two.prev_event_id == one.event_id

    @property
    def ever(self) -> bool:
        """Whether any row of it was ever visible."""
        return len(self.states) > 1


def _ids(state: State) -> set[int]:
    return {event.event_id for event in state}


class World:
    """The server, the disk, and whoever uses them besides the sidecar."""

    def __init__(self, script: Script, disk: Disk, weather: Weather, say: Callable[[str], None]) -> None:
        ranges = [(n * PARTITION_WIDTH, (n + 1) * PARTITION_WIDTH) for n in range(PARTITIONS)]
        self.server = Server(ranges, next_xid=script.first_xid)
        self.disk = disk
        self.facts: dict[int, Facts] = {}
        self.weather = weather
        self.crashed = False
        self.ahead_us = 0
        """How far the sidecar's clock was set forward, at most."""
        self._script = script
        self._say = say
        self._open: dict[int, Transaction] = {}
        self._foreign = 0
        self._done = 0
        """How many rows were inserted and transactions committed: the true order of both."""
        self._inserted: dict[tuple[int, int], tuple[int, int]] = {}
        self._began: dict[int, int] = {}
        self._back_up: asyncio.Task[None] | None = None

    async def play(self, kill: Callable[[Kill], None]) -> None:
        """Do everything in its time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for step in self._script.steps:
            await asyncio.sleep(max(0.0, began + step.at - loop.time()))
            self._do(step, kill)
        if self._back_up is not None:
            await self._back_up

    def _do(self, step: Step, kill: Callable[[Kill], None]) -> None:
        match step.action:
            case Insert(tx, row, savepoint):
                self._insert(tx, row, savepoint)
            case End(tx, commit, flushed):
                self._end(tx, commit, flushed)
            case Pin(tx):
                self._pin(tx)
            case Update(execution_id, nth):
                self._update(execution_id, nth)
            case Delete(execution_id, nth):
                self._delete(execution_id, nth)
            case Plant():
                self._plant(step.action)
            case Tree(partition, what):
                self._tree(ROOT_RELID + 1 + partition, what)
            case Crash():
                self._crash(step.action)
            case Kill():
                kill(step.action)
            case Switch(what, on):
                self._switch(what, on)
            case ClockBack(seconds):
                self._say(f"the sidecar's clock is set by {seconds} s")
                self.disk.offset += int(seconds * 1e6)
                self.ahead_us = max(self.ahead_us, self.disk.offset)

    # Writers

    def _insert(self, tx: int, stamped: Stamped, savepoint: bool) -> None:
        transaction = self._open.setdefault(tx, Transaction())
        try:
            self.server.insert(transaction, row_of(stamped), savepoint=savepoint)
            self._done += 1
            began = self._began.setdefault(tx, microseconds())
            began = microseconds() if savepoint else began
            self._inserted[stamped.execution_id, stamped.event_id] = self._done, began
        except Down:
            self._say(f"tx {tx}: {short(stamped)} found no server")

    def _end(self, tx: int, commit: bool, flushed: bool) -> None:
        transaction = self._open.pop(tx, None)
        if transaction is None or transaction.xid is None:
            return
        if not commit:
            self.server.roll_back(transaction)
            self._say(f"tx {tx} rolled back")
            return
        if not self.server.commit(transaction, microseconds(), flushed=flushed):
            self._say(f"tx {tx} was ended by a crash")
            return
        rows = [short(row.event) if row else f"-{key[1]}" for key, row, _ in transaction.writes]
        self._say(f"tx {tx} (xid {transaction.xid}) commits {', '.join(rows)}")
        self._shows(transaction)
        self._look({key[0] for key, _, _ in transaction.writes})

    def _shows(self, transaction: Transaction) -> None:
        self._done += 1
        for (execution_id, event_id), _, _ in transaction.writes:
            inserted = self._fact(execution_id).inserted
            number, began = self._inserted[execution_id, event_id]
            inserted.number[event_id], inserted.began_at[event_id] = number, began
            inserted.shown[event_id], inserted.shown_at[event_id] = self._done, microseconds()

    def _pin(self, tx: int) -> None:
        if self.server.up:
            self._open[tx] = Transaction()
            self.server.begin_writing(self._open[tx])
            self._say(f"tx {tx} pins the horizon")

    def _update(self, execution_id: int, nth: int | None) -> None:
        if (event := self._nth(execution_id, nth)) is not None:
            key = (execution_id, event.event_id)
            old = self.server.table[key].row
            changed = msgspec.structs.replace(
                event, body=body_of(event.event_id, old.created_at, changed=True)
            )
            self._fact(execution_id).updated.add(event.event_id)
            if event.event_id not in self._fact(execution_id).delivered:
                self._fact(execution_id).changed_unseen.add(event.event_id)
            self._say(f"{short(event)} gets another body")
            self._at_once(lambda tx: self.server.insert(tx, replace(old, event=changed)), execution_id)

    def _delete(self, execution_id: int, nth: int) -> None:
        if (event := self._nth(execution_id, nth)) is not None:
            self._fact(execution_id).deleted.add(event.event_id)
            self._fact(execution_id).meddled_at = microseconds()
            self._say(f"{short(event)} is deleted")
            self._at_once(lambda tx: self.server.delete(tx, (execution_id, event.event_id)), execution_id)

    def _nth(self, execution_id: int, nth: int | None) -> Event | None:
        rows = sorted(self.server.of(execution_id).values(), key=lambda event: event.event_id)
        if nth is None:
            shown = self._fact(execution_id).inserted.shown
            rows = [event for event in rows if event.prev_event_id is None]
            rows, nth = sorted(rows, key=lambda event: shown[event.event_id]), -1
        return rows[nth % len(rows)] if rows and self.server.up else None

    def _at_once(self, write: Callable[[Transaction], None], execution_id: int) -> None:
        transaction = Transaction()
        write(transaction)
        self.server.commit(transaction, microseconds())
        self._look({execution_id})

    # The server and its tree

    def _tree(self, relid: int, what: str) -> None:
        parts = {part.relid: part for part in self.server.tree}
        inside = self._inside(relid)
        if not self.server.up or (what == "attach") == (relid in parts):
            return
        self._say(f"partition {relid}: {what}")
        match what:
            case "drop":
                self.server.drop(relid)
            case "detach":
                self.server.detach(relid)
            case _:
                self.server.attach(relid)
        for execution_id in inside:
            self._fact(execution_id).left = True
        self._look(set(inside))

    def _inside(self, relid: int) -> list[int]:
        number = relid - ROOT_RELID - 1
        return [e for e in self.facts if e // PARTITION_WIDTH == number]

    def _crash(self, crash: Crash) -> None:
        if not self.server.up:
            return
        lost = self.server.crash(microseconds(), loses_s=crash.loses_s, postmaster=crash.postmaster)
        self._say(f"the server crashes and loses {[short(event) for event in lost.values()]}")
        for execution_id, event_id in lost:
            self._fact(execution_id).lost.add(event_id)
        self.crashed = True
        for fact in self.facts.values():
            fact.crashed = True
        self._look({execution_id for execution_id, _ in lost})
        self._back_up = asyncio.create_task(self._start(crash.down_s))

    async def _start(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._say("the server is up")
        self.server.start()

    def _switch(self, what: str, on: bool) -> None:
        self._say(f"{what}: {'begins' if on else 'ends'}")
        if what == "full":
            self.disk.full = on
        elif what == "stall":
            self.weather.stalled = on
        else:
            self.weather.storm = on

    def calm(self) -> None:
        """Nothing disturbs any more."""
        self.disk.full = self.weather.storm = self.weather.stalled = False

    # The store

    def _plant(self, plant: Plant) -> None:
        """What a second process on the same file leaves there."""
        shelf, e = self.disk.shelf, plant.execution_id
        chain = shelf.chain(e)
        if not chain or [row.exec_seq for row in chain] != list(range(1, len(chain) + 1)):
            return
        rows = dict(shelf.rows[e])
        prev = chain[-1].event.event_id
        for seq in range(len(chain) + 1, len(chain) + 1 + plant.rows):
            self._foreign += 1
            event_id = -self._foreign
            event = Event(e, event_id, prev, None, "step.exit", body_of(event_id, microseconds()))
            rows[seq] = StoredEvent(seq, event, "append" if plant.whole else None)
            self._fact(e).foreign.add(event_id)
            prev = event_id
        shelf.rows[e] = rows
        self._fact(e).meddled_at = microseconds()
        if plant.whole:
            self._move_along(e, len(rows), prev)
        self._say(f"a second writer stores {plant.rows} rows in {e}, whole={plant.whole}")

    def _move_along(self, e: int, rows: int, head: int) -> None:
        shelf = self.disk.shelf
        partition = shelf.partitions.get(e) or Partition(e)
        coverage = partition.coverage
        shelf.partitions[e] = replace(
            partition,
            head_seq=rows,
            head_event_id=head,
            watermark=Watermark(1, rows),
            coverage=coverage and Coverage(coverage.root_event_id, rows),
            head_anchor=None,
        )

    # Facts

    def _fact(self, execution_id: int) -> Facts:
        fresh = Facts(crashed=self.crashed, rejoin=self._script.rejoin)
        return self.facts.setdefault(execution_id, fresh)

    def _look(self, executions: set[int]) -> None:
        now = microseconds()
        for execution_id in sorted(executions):
            fact, state = self._fact(execution_id), frozenset(self.server.of(execution_id).values())
            if state != fact.log:
                fact.becomes(now, state)


def row_of(stamped: Stamped) -> Row:
    now = microseconds()
    created = now + int((stamped.created_s - asyncio.get_running_loop().time()) * 1e6)
    return Row(event_of(stamped, created), created, now)


def event_of(stamped: Stamped, created: int) -> Event:
    return Event(
        stamped.execution_id,
        stamped.event_id,
        stamped.prev,
        None,
        stamped.event_type,
        body_of(stamped.event_id, created),
    )


def body_of(event_id: int, created: int, *, changed: bool = False) -> str:
    """Every event moves the folded state: it is a step of its own."""
    at = datetime.fromtimestamp(created // 1_000_000, UTC).replace(microsecond=created % 1_000_000)
    body = {
        "event_id": str(event_id),
        "node_name": f"step-{event_id}",
        "timestamp": at.replace(tzinfo=None).isoformat(),
    }
    return json.dumps(body | ({"note": "changed"} if changed else {}))


def short(row: Stamped | Event) -> str:
    prev = row.prev if isinstance(row, Stamped) else row.prev_event_id
    return f"{row.execution_id}:{name(row.event_id)}<{'-' if prev is None else name(prev)}"


def name(event_id: int) -> str:
    """The end of an id, as a trace shows it."""
    return str(event_id)[-4:]
