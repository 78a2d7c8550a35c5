"""One seed -> what everybody does: writers, servers, disks, second writers.

The NoETL server stamps each event with the head of its execution, kept in memory: a restart
loses the map, and what follows is a second root.  Faults are planted on top, each a thing that
somebody does; what the log shows of them follows.  Times are seconds since the run began.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

FAULTS: Final = (
    "restart_at",
    "duplicate_terminal",
    "delay_row",
    "overdue_row",
    "lost_insert",
    "orphan_root",
    "fork",
    "island",
    "old_clock",
    "long",
    "update",
    "delete",
    "second_writer",
    "prune",
    "detach",
    "crash",
    "kill",
    "storm",
    "full",
    "pin",
    "clock_back",
    "slow_read",
)
"""Everything that can go wrong; a seed switches each on or off, so that few meet often."""

RESTART_FAULTS: Final = ("old_server", "straggler", "touched_root", "stall", "downtime")
"""What more a seed with the gate NOETL_CHAIN_REJOIN on may have: it asks for the order of pieces."""

PARTITION_WIDTH: Final = 1000
PARTITIONS: Final = 3
READ_LIMIT: Final = 12
DANGLING_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class Stamped:
    """An event as the NoETL server stamped it."""

    execution_id: int
    event_id: int
    prev: int | None
    event_type: str
    created_s: float


@dataclass(frozen=True, slots=True)
class Insert:
    """A row goes into transaction `tx`, which begins with its first one."""

    tx: int
    row: Stamped
    savepoint: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """A transaction commits (`flushed`: and waits for the disk) or rolls back."""

    tx: int
    commit: bool = True
    flushed: bool = True


@dataclass(frozen=True, slots=True)
class Pin:
    """A transaction takes an id and does nothing more until its End."""

    tx: int


@dataclass(frozen=True, slots=True)
class Update:
    """Somebody changes the body of the `nth` visible row of an execution; None: of its last root."""

    execution_id: int
    nth: int | None


@dataclass(frozen=True, slots=True)
class Delete:
    """Somebody deletes the `nth` visible row of an execution."""

    execution_id: int
    nth: int


@dataclass(frozen=True, slots=True)
class Plant:
    """A second writer appends `rows` events to the store; `whole`: with every marker moved along."""

    execution_id: int
    rows: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Tree:
    """A partition is dropped, or detached and attached again."""

    partition: int
    what: str


@dataclass(frozen=True, slots=True)
class Crash:
    """The server ends; it is away for `down_s` and may have lost the last commits."""

    down_s: float
    loses_s: float
    postmaster: bool


@dataclass(frozen=True, slots=True)
class Kill:
    """The sidecar is killed and starts again after `down_s`."""

    down_s: float


@dataclass(frozen=True, slots=True)
class Switch:
    """Something begins or ends: storm, full, stall."""

    what: str
    on: bool


@dataclass(frozen=True, slots=True)
class ClockBack:
    """The sidecar's wall clock is set."""

    seconds: float


Action = Insert | End | Pin | Update | Delete | Plant | Tree | Crash | Kill | Switch | ClockBack


@dataclass(frozen=True, slots=True)
class Step:
    at: float
    action: Action


@dataclass(frozen=True, slots=True)
class Script:
    """What happens, in order of time, and what the sidecar is told.

    `planted`: execution -> the faults planted in it by name, those of the writers only.
    """

    seed: int
    faults: frozenset[str]
    steps: tuple[Step, ...]
    planted: dict[int, tuple[str, ...]]
    first_xid: int
    shown_first: bool
    """The sidecar starts after half of the writing."""
    rejoin: bool
    """The gate NOETL_CHAIN_REJOIN is on."""


def script(seed: int) -> Script:
    return _Writer(seed).script()


@dataclass(slots=True)
class _Tx:
    number: int
    inserts: list[tuple[float, Stamped, bool]] = field(default_factory=list)
    end_at: float = 0.0
    commit: bool = True


class _Writer:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(f"script {seed}")
        count = self.chance.choice((0, 1, 1, 2, 2, 3, 4, 6, 9))
        self.faults = frozenset(self.chance.sample(FAULTS, count))
        self.steps: list[Step] = []
        self.planted: dict[int, list[str]] = {}
        self.used: set[int] = set()
        self.tx = 0
        self.unflushed = self.chance.choice((0.85, 1.0))
        self.restarting = random.Random(f"restarts {seed}")
        self.rejoin = self.restarting.random() < 0.4
        if self.rejoin:
            more = {name for name in RESTART_FAULTS if self.restarting.random() < 0.4}
            self.faults |= more | ({"restart_at"} if self.restarting.random() < 0.9 else set())

    def script(self) -> Script:
        chance = self.chance
        lives = [self._life() for _ in range(chance.randint(2, 6))]
        self._write(lives)
        self._around(lives)
        spans = (700, 2**32 - 40, 5 * 2**32 - 25)
        return Script(
            self.seed,
            self.faults,
            tuple(sorted(self.steps, key=lambda step: step.at)),
            {e: tuple(names) for e, names in self.planted.items()},
            chance.choice(spans) + chance.randrange(20),
            chance.random() < 0.3,
            self.rejoin,
        )

    def _id(self) -> int:
        while (event_id := self.chance.randrange(2**55, 2**62)) in self.used:
            continue
        self.used.add(event_id)
        return event_id

    # Writers

    def _life(self) -> _Life:
        """One execution: when each of its events is made, and what is planted."""
        chance = self.chance
        while (execution_id := chance.randrange(PARTITION_WIDTH * (PARTITIONS + 1))) in self.planted:
            continue
        wanted = ["duplicate_terminal", "delay_row", "overdue_row", "lost_insert", "orphan_root", "fork"]
        wanted += ["island", "old_clock", "long", "update", "delete", "second_writer"]
        here = [name for name in wanted if name in self.faults and chance.random() < 0.5]
        planted = chance.sample(here, min(len(here), 1 if chance.random() < 0.8 else 2))
        self.planted[execution_id] = planted
        count = READ_LIMIT + chance.randint(-1, 2) if "long" in planted else chance.randint(1, 9)
        at, times = chance.random() * 3, []
        pace = chance.choice((0.02, 0.2, 0.5))
        for _ in range(count):
            times.append(at)
            at += chance.expovariate(1 / pace)
        ended = chance.random() < 0.85 or "duplicate_terminal" in planted
        return _Life(execution_id, times, ended, frozenset(planted))

    def _write(self, lives: list[_Life]) -> None:
        chance = self.chance
        restarts: list[float] = []
        if "restart_at" in self.faults:
            restarts = sorted(chance.random() * 5 for _ in range(chance.randint(1, 2)))
            self._downtime(restarts, lives)
        made = [(at, n, life) for n, life in enumerate(lives) for at in life.times]
        made.sort(key=lambda each: each[:2])
        heads: dict[int, int] = {}
        old = _OldServer(self.restarting, "old_server" in self.faults)
        left = {life.execution_id: len(life.times) for life in lives}
        special = {life.execution_id: chance.randrange(1, max(2, len(life.times))) for life in lives}
        open_tx: list[_Tx] = []
        for at, _, life in made:
            while restarts and restarts[0] <= at:
                began = restarts.pop(0)
                old.replaced(began, heads)
                self._stragglers(began, heads)
                heads.clear()
            e = life.execution_id
            left[e] -= 1
            number = len(life.times) - left[e] - 1
            last = life.ended and not left[e]
            name = "playbook_started" if number == 0 else "playbook.completed" if last else "step.exit"
            event_id, prev = self._id(), heads.get(e)
            by_old = old.writes(e, at, event_id)
            if by_old is not None:
                prev = by_old
            now = number == special[e]
            head: int | None = event_id
            if now and "orphan_root" in life.planted:
                prev, head = None, prev
            if now and "fork" in life.planted:
                self._fork(life, at, prev)
            if now and "island" in life.planted:
                self._island(life, at)
            if by_old is not None:
                pass
            elif head is None:
                heads.pop(e, None)
            else:
                heads[e] = head
            if last:
                heads.pop(e, None)
            created = at
            if "old_clock" in life.planted and (now or chance.random() < 0.2):
                created = at - chance.choice((5.0, 40.0, 5000.0))
            row = Stamped(e, event_id, prev, name, created)
            slow = None
            if now and "delay_row" in life.planted:
                slow = chance.uniform(0.3, DANGLING_S * 0.7)
            if now and "overdue_row" in life.planted:
                slow = chance.uniform(DANGLING_S + 1, DANGLING_S + 4)
            if by_old is not None and self.restarting.random() < 0.5:  # behind what the new one wrote
                slow = self.restarting.uniform(0.3, DANGLING_S * 0.7)
            lost = now and "lost_insert" in life.planted
            self._insert(open_tx, at, row, slow=slow, lost=lost)
            if last and "duplicate_terminal" in life.planted:
                again = Stamped(e, self._id(), None, name, at)
                self._insert(open_tx, at + chance.choice((0.001, 0.3, 2.0)), again, slow=None, lost=False)
        self._finish(open_tx)

    def _downtime(self, restarts: list[float], lives: list[_Life]) -> None:
        """Nothing is written while the NoETL server is away."""
        for began in restarts if "downtime" in self.faults else ():
            down_s = self.restarting.choice((0.3, 1.0, 3.0))
            for life in lives:
                life.times[:] = [at + down_s if at >= began else at for at in life.times]

    def _stragglers(self, began: float, heads: dict[int, int]) -> None:
        """One more row each of some pieces, when what follows may have been joined already.

        And changed roots: an UPDATE makes a root look younger than it is.
        """
        for execution_id, head in heads.items() if "straggler" in self.faults else ():
            if self.restarting.random() < 0.5:
                at = began + self.restarting.uniform(0.6, 4.0)
                self._alone(at, Stamped(execution_id, self._id(), head, "step.exit", at))
        for execution_id in heads if "touched_root" in self.faults else ():
            if self.restarting.random() < 0.5:
                at = began + self.restarting.uniform(0.1, 3.0)
                self.steps.append(Step(at, Update(execution_id, None)))

    def _fork(self, life: _Life, at: float, prev: int | None) -> None:
        row = Stamped(life.execution_id, self._id(), prev, "step.exit", at)
        self._alone(at + self.chance.random() * 0.5, row)

    def _island(self, life: _Life, at: float) -> None:
        one, two = self._id(), self._id()
        for event_id, prev in ((one, two), (two, one)):
            row = Stamped(life.execution_id, event_id, prev, "step.exit", at)
            self._alone(at + self.chance.random() * 0.5, row)

    def _alone(self, at: float, row: Stamped) -> None:
        tx = self._tx()
        tx.inserts.append((at, row, False))
        tx.end_at = at + self._delay()
        self._finish([tx])

    def _tx(self) -> _Tx:
        self.tx += 1
        return _Tx(self.tx)

    def _delay(self) -> float:
        return self.chance.choice((0.0, 0.01, 0.05, 0.2, 0.8)) * self.chance.random()

    def _insert(self, open_tx: list[_Tx], at: float, row: Stamped, *, slow: float | None, lost: bool) -> None:
        chance = self.chance
        savepoint = chance.random() < 0.2
        if slow is None and not lost:
            shared = [tx for tx in open_tx if tx.end_at > at]
            if shared and chance.random() < 0.3:
                tx = chance.choice(shared)
                tx.inserts.append((at, row, savepoint))
                tx.end_at = max(tx.end_at, at) + self._delay()
                return
            tx = self._tx()
            tx.inserts.append((at, row, savepoint))
            tx.end_at = at + self._delay()
            open_tx.append(tx)
            return
        tx = self._tx()
        tx.inserts.append((at, row, savepoint))
        tx.end_at, tx.commit = at + (slow or self._delay()), not lost
        self._finish([tx])

    def _finish(self, transactions: list[_Tx]) -> None:
        for tx in transactions:
            for at, row, savepoint in tx.inserts:
                self.steps.append(Step(at, Insert(tx.number, row, savepoint)))
            flushed = not ("crash" in self.faults and self.chance.random() < self.unflushed)
            self.steps.append(Step(tx.end_at + 1e-6, End(tx.number, tx.commit, flushed)))

    # Everybody else

    def _around(self, lives: list[_Life]) -> None:
        chance = self.chance
        for life in lives:
            begin, end = life.times[0], life.times[-1]
            for name in sorted(life.planted & {"update", "delete", "second_writer"}):
                at = begin + chance.random() * (end - begin + 0.5)
                e, nth = life.execution_id, chance.randrange(9)
                if name == "update":
                    self.steps.append(Step(at, Update(e, nth)))
                elif name == "delete":
                    self.steps.append(Step(at, Delete(e, nth)))
                else:
                    self.steps.append(Step(at, Plant(e, chance.randint(1, 2), chance.random() < 0.5)))
        if "prune" in self.faults:
            self.steps.append(Step(1 + chance.random() * 7, Tree(chance.randrange(PARTITIONS), "drop")))
        if "detach" in self.faults:
            at, part = 7.5 + chance.random() * 3, chance.randrange(PARTITIONS)
            begun = [life for life in lives if life.execution_id < PARTITIONS * PARTITION_WIDTH]
            if begun and chance.random() < 0.5:  # between a commit and the poll that would show it
                life = chance.choice(begun)
                at, part = chance.choice(life.times) + chance.random(), life.execution_id // PARTITION_WIDTH
            self.steps.append(Step(at, Tree(part, "detach")))
            self.steps.append(Step(at + chance.choice((0.001, 0.1, 1.5)), Tree(part, "attach")))
        if "crash" in self.faults:
            for _ in range(chance.randint(1, 2)):
                loses = chance.choice((0.0, 0.05, 0.3, 1.0))
                crash = Crash(chance.choice((0.0, 0.2, 2.0)), loses, chance.random() < 0.5)
                self.steps.append(Step(chance.random() * 7, crash))
            self._crash_between(lives)
        if "kill" in self.faults:
            for _ in range(chance.randint(1, 4)):
                self.steps.append(Step(chance.random() * 9, Kill(chance.choice((0.0, 0.1, 1.0, 3.0)))))
        for what in "storm", "full", "stall":
            if what in self.faults:
                for _ in range(chance.randint(1, 2)):
                    at = chance.random() * 8
                    self.steps.append(Step(at, Switch(what, on=True)))
                    self.steps.append(Step(at + chance.random() * 3, Switch(what, on=False)))
        if "pin" in self.faults:
            tx, at = self._tx(), chance.random() * 4
            self.steps.append(Step(at, Pin(tx.number)))
            self.steps.append(Step(at + chance.random() * 5, End(tx.number)))
        if "clock_back" in self.faults:
            self.steps.append(Step(chance.random() * 6, ClockBack(chance.choice((-3600.0, -1.0, 2.0)))))

    def _crash_between(self, lives: list[_Life]) -> None:
        """A short crash after an event was polled and before its execution's next one.

        No server loses a commit that is as old as `CRASH_LOSS`; a run shortens that to 3 s.
        """
        gaps = [
            (one, two)
            for life in lives
            for one, two in zip(life.times, life.times[1:], strict=False)
            if 0.5 < two - one < 2.5
        ]
        if gaps and self.chance.random() < 0.7:
            one, two = self.chance.choice(gaps)
            at = two - self.chance.random() * 0.05
            crash = Crash(0.0, at - one + 0.01, self.chance.random() < 0.5)
            self.steps.append(Step(at, crash))


class _OldServer:
    """A server that was replaced and goes on for a while, with the heads it knows."""

    def __init__(self, chance: random.Random, lives_on: bool) -> None:
        self._chance = chance
        self._lives_on = lives_on
        self._heads: dict[int, int] = {}
        self._until = 0.0

    def replaced(self, at: float, heads: dict[int, int]) -> None:
        if self._lives_on:
            self._heads, self._until = dict(heads), at + self._chance.choice((0.1, 0.5, 1.5))

    def writes(self, execution_id: int, at: float, event_id: int) -> int | None:
        """The predecessor it stamps; None: the new server writes."""
        if at > self._until or self._chance.random() < 0.5:
            return None
        prev = self._heads.get(execution_id)
        if prev is not None:
            self._heads[execution_id] = event_id
        return prev


@dataclass(frozen=True, slots=True)
class _Life:
    execution_id: int
    times: list[float]
    ended: bool
    planted: frozenset[str]
