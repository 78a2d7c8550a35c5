"""One seed: a script, a server, a disk, and the sidecar as it is, from start to quiet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import structlog

import sidecar.comparator.loop
import sidecar.core.resolve
import sidecar.feed.pool
import sidecar.feed.reads
import sidecar.service.line
import sidecar.source.compare
import sidecar.source.log
import sidecar.source.pieces
import sidecar.source.poll
import sidecar.source.scan
import sidecar.source.sweep
import sidecar.source.tail
from sidecar.certified import Certified, created_at
from sidecar.comparator.loop import Comparator
from sidecar.core.authority import GuardedRead
from sidecar.core.due import SECOND, Windows
from sidecar.core.judge import REVOKING
from sidecar.core.ports import Batch
from sidecar.core.rejoin import predecessors
from sidecar.core.settle import Limits
from sidecar.core.verdict import RESOLVING
from sidecar.errors import StoreError
from sidecar.feed.feed import Feed
from sidecar.feed.report import FeedReport
from sidecar.service.line import Line
from sidecar.service.told import Instruments
from sidecar.source.log import PostgresLog
from sidecar.source.options import Shard
from sidecar.source.poll import Poller
from sidecar.source.sweep import SweepLane
from sidecar.source.tail import WindowLane
from sidecar.telemetry.health import Health
from sidecar.telemetry.metrics import Metrics
from tests.contract.model import Shelf
from tests.simulation.clockwork import Times, microseconds, run
from tests.simulation.ledger import QUIET, expected, unplanted
from tests.simulation.script import DANGLING_S, READ_LIMIT, Kill, Script, script
from tests.simulation.statements import TABLE, SimulatedSession, Statements, Weather
from tests.simulation.store import Disk, SimulatedStore, guarded
from tests.simulation.world import Facts, World, name

PATIENCE_S = 120.0
LOOKBACK_US = 3600 * SECOND
"""Within this simulated time after the last disturbance everything must be judged."""

ALARMS = frozenset({"divergent", "second_writer"})


class Wrong(AssertionError):
    """The run showed something that must not be."""


@dataclass
class Outcome:
    """What a run came to: its trace, and for each execution what was expected and given."""

    seed: int
    script: Script
    trace: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    table: dict[int, tuple[frozenset[str], str | None]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def replay(self) -> str:
        return f"python -m tests.simulation {self.seed}"


def simulate(seed: int, made: Callable[[Outcome], Run] | None = None, scene: Script | None = None) -> Outcome:
    """Play one seed to its end; `scene`: what happens, in place of the seed's own script."""
    outcome = Outcome(seed, scene or script(seed))
    with _real_sizes() if scene is not None else _small(random.Random(f"sizes {seed}")):
        run((made or Run)(outcome).play())
    return outcome


class Run:
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.chance = random.Random(f"run {outcome.seed}")
        self.disk = Disk()
        self.weather = Weather(
            random.Random(f"weather {outcome.seed}"), failing=self.chance.choice((0.1, 0.4))
        )
        self.weather.calm = self.chance.choice((0.7, 0.95))
        self.world = World(outcome.script, self.disk, self.weather, self.say)
        self.weather.slow_s = self.chance.choice((0.003, 0.05))
        if "slow_read" in outcome.script.faults:
            self.weather.slow_answers = self.chance.choice((0.1, 0.5))
        self.statements = Statements(self.world.server)
        self.windows = Windows(
            tick=SECOND // 2,
            settle=int(self.chance.choice((0.5, 2.0)) * SECOND),
            dangling=int(DANGLING_S * SECOND),
            lookback=LOOKBACK_US,
        )
        self.tick_s = self.chance.choice((0.3, 1.0, 2.0))
        self.poll_s = self.chance.choice((0.15, 0.5))
        self.seen: dict[int, str | None] = {}
        self.alarmed: set[int] = set()
        self.said: dict[int, str | None] = {}
        """By execution, the last verdict that said something: a read that fails takes none back."""
        self.line: asyncio.Task[None] | None = None
        self.followed: tuple[WindowLane | SweepLane, ...] = ()
        self.store: SimulatedStore | None = None
        self.starting: asyncio.Task[None] | None = None

    def say(self, text: str) -> None:
        self.outcome.trace.append((asyncio.get_running_loop().time(), text))

    # The sidecar

    async def start(self) -> None:
        """As `app` puts it together."""
        store = self.store = SimulatedStore(
            self.disk, self.weather, self.committed, rejoining=self.outcome.script.rejoin
        )
        certified = self.certified(store)
        feed = _Delivering(
            self.taken,
            store,
            self.reader(store),
            windows=self.windows,
            limits=Limits(READ_LIMIT, self.pool, self.pool_total),
            comparing=True,
            certified=certified,
        )
        comparator = Comparator(
            store, self.reader(store), feed.settling, self.windows, projecting=True, certified=certified
        )
        self.followed = self.lanes(store)
        line = Line(
            self.followed,
            feed,
            comparator,
            _nothing,
            Instruments(METRICS, Health(clock=Times.monotonic), SILENT),
            tick_s=self.tick_s,
        )
        self.line = asyncio.create_task(self._live(store, line, certified))

    async def _live(self, store: SimulatedStore, line: Line, certified: Certified | None) -> None:
        while True:
            try:
                await store.flag_held()
                if certified is not None:
                    await certified.begin(store)
                break
            except StoreError:
                await asyncio.sleep(0.2)
        await line.run()

    def certified(self, _store: SimulatedStore) -> Certified | None:
        """Nobody asks for states here; see `tests.simulation.asking`."""
        return None

    pool = 1000
    pool_total = 100_000

    def session(self) -> Any:
        return SimulatedSession(self.statements, self.weather)

    def reader(self, store: SimulatedStore) -> PostgresLog:
        return PostgresLog(self.session(), TABLE, store.clock, read_limit=READ_LIMIT)

    def lanes(self, store: SimulatedStore) -> tuple[WindowLane | SweepLane, ...]:
        session = self.session()
        sweep = SweepLane(
            session,
            Poller(session, TABLE, store.clock, Shard()),
            PostgresLog(session, TABLE, store.clock, read_limit=READ_LIMIT),
            TABLE,
            store,
            round_s=3.0,
            scan_timeout_s=10.0,
            shard=Shard(),
        )
        return self.window("live", store, 3.0, self.poll_s), self.window("late", store, 30.0, 1.5), sweep

    def window(self, key: str, store: SimulatedStore, window_s: float, every_s: float) -> WindowLane:
        poller = Poller(self.session(), TABLE, store.clock, Shard())
        return WindowLane(key, poller, TABLE, store, window_s=window_s, every_s=every_s, shard=Shard())

    async def stop(self) -> None:
        """Killed: whatever it was about to do is not done."""
        if self.store is not None:
            self.store.killed = True
        if self.line is not None:
            self.line.cancel()
            await asyncio.wait({self.line})
            self.ended()

    def ended(self) -> None:
        line, self.line = self.line, None
        if line is not None and not line.cancelled() and (error := line.exception()) is not None:
            raise error

    def kill(self, kill: Kill) -> None:
        if self.starting is None or self.starting.done():
            self.say(f"the sidecar is killed for {kill.down_s} s")
            self.starting = asyncio.create_task(self._again(kill.down_s))

    async def _again(self, down_s: float) -> None:
        await self.stop()
        await asyncio.sleep(down_s)
        self.say("the sidecar starts again")
        await self.start()

    # The run

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        world = asyncio.create_task(self.world.play(self.kill))
        try:
            if self.outcome.script.shown_first:
                await asyncio.sleep(2.5)
            if self.starting is None:
                await self.start()
            while not world.done():
                await asyncio.wait({world}, timeout=1.0)
                self.check_alive()
            world.result()
            if self.starting is not None:
                await self.starting
            self.world.calm()
            await self.quiet()
            self.judge()
        except Wrong as wrong:
            self.outcome.wrong.append(str(wrong))
        finally:
            world.cancel()
            if self.starting is not None:
                self.starting.cancel()
            await self.stop()
        self.outcome.seconds = loop.time()

    def check_alive(self) -> None:
        if self.line is not None and self.line.done() and self.store is not None and not self.store.killed:
            self.ended()
            raise Wrong("the line has ended by itself")

    async def quiet(self) -> None:
        """Wait until every lane has been everywhere and nothing is due."""
        loop = asyncio.get_running_loop()
        began, calm = loop.time(), microseconds()
        await asyncio.sleep(6.0)
        while self.waiting() or self.behind(calm):
            await asyncio.sleep(0.5)
            self.check_alive()
            if loop.time() - began > PATIENCE_S:
                raise Wrong(f"still due after {PATIENCE_S} s: {self.waiting() or self.behind(calm)}")

    def behind(self, calm: int) -> list[str]:
        """Lanes that have not been everywhere since; one that failed for a while rests for a while."""
        return [
            lane.name
            for lane in self.followed
            if not lane.state.caught_up or (lane.state.polled_at or 0) <= calm
        ]

    def waiting(self) -> list[int]:
        """Executions with an open question; what a cut log leaves open stays so."""
        shelf = self.disk.shelf
        return sorted(
            e
            for e in shelf.due
            if e not in shelf.partitions or shelf.partitions[e].verdict != "log_truncated"
        )

    # What is held against the ledger

    def committed(self, shelf: Shelf, touched: Collection[int]) -> None:
        """After each commit: what is served now, and which verdict was given."""
        for e in sorted(touched):
            partition = shelf.partitions.get(e)
            if partition is None:
                continue
            if partition.verdict not in QUIET:
                self.said[e] = partition.verdict
            self.served(shelf, e)
            self.joined(shelf, e)
            if partition.verdict != self.seen.get(e) and partition.verdict is not None:
                self.seen[e] = partition.verdict
                self.say(f"verdict {e}: {partition.verdict}")
                self.given(e, partition.verdict)
                if partition.verdict == "match_rejoined":
                    standing = {(j.tip_event_id, j.root_event_id) for j in shelf.joins_of(e) if j.stands}
                    self.world.facts[e].published |= standing
                if partition.verdict in REVOKING and self.guarded(shelf, e).events is not None:
                    self.wrong(f"execution {e} is served after {partition.verdict}")
                if partition.verdict in ALARMS:
                    self.alarmed.add(e)
                elif partition.verdict in RESOLVING:
                    self.alarmed.discard(e)

    def taken(self, batch: Batch) -> None:
        """What a batch has shown is durable; a second root beside a stored one is labelled at once."""
        shelf = self.disk.shelf
        for event in (row.event for row in batch.rows):
            e = event.execution_id
            self.world.facts[e].is_delivered([event])
            partition, chain = shelf.partitions.get(e), [row.event for row in shelf.chain(e)]
            if partition is None or event.prev_event_id is not None or not chain:
                continue
            if event.event_id in predecessors(shelf.joins_of(e)):
                continue  # see `joined`
            if chain[0].event_id != event.event_id and (partition.label, partition.revoked_at) == (
                None,
                None,
            ):
                self.wrong(f"execution {e} got a second root and no label")

    def joined(self, shelf: Shelf, e: int) -> None:
        """Every proof that is kept agrees with the true order of insertion.

        Of a row that was changed before anybody saw it nothing better can be known (spec 2.13).
        """
        facts = self.world.facts.get(e)
        for join in shelf.joins_of(e):
            tip, root = join.tip_event_id, join.root_event_id
            if not self.outcome.script.rejoin:
                self.wrong(f"execution {e}: a join is kept with the gate off")
            if facts is None or root in facts.changed_unseen:
                continue
            if not facts.inserted.follows(tip, root):
                self.wrong(f"execution {e}: {name(root)} is joined to {name(tip)}, and was not after it")

    def guarded(self, shelf: Shelf, e: int) -> GuardedRead:
        return guarded(shelf, e, rejoining=self.outcome.script.rejoin)

    def served(self, shelf: Shelf, e: int) -> None:
        answer = self.guarded(shelf, e)
        facts = self.world.facts.get(e)
        if answer.events is None:
            return
        if facts is None or not facts.ever:
            self.wrong(f"execution {e} is served and has never been in the log")
        elif not answer.events:
            self.wrong(f"execution {e} is served as empty")
        elif (why := facts.why_not_served(answer.events, self.said.get(e))) is not None:
            chain = [name(event.event_id) for event in answer.events]
            self.wrong(f"execution {e} is served as {chain}, and {why}")

    def given(self, e: int, verdict: str) -> None:
        facts = self.world.facts.get(e)
        if facts is None:
            self.wrong(f"{verdict} on {e}, which has never been in the log")
        elif (why := unplanted(facts, verdict, microseconds() + self.world.ahead_us)) is not None:
            self.wrong(f"execution {e}: {why}")

    def wrong(self, text: str) -> None:
        self.say(f"WRONG: {text}")
        self.outcome.wrong.append(text)

    def left_to_the_audit(self, shelf: Shelf, e: int, facts: Facts) -> bool:
        """Stored whole by a read without H, older than lookback: no audit plays here (spec 2.12)."""
        oldest = microseconds() + self.world.ahead_us - LOOKBACK_US
        times = [created_at(event.body) for event in facts.log]
        served = self.guarded(shelf, e).events
        whole = served is not None and frozenset(served) == frozenset(facts.log)
        return whole and all(at is not None and at < oldest for at in times)

    def judge(self) -> None:
        """The ledger's verdict of each execution is ours, and ours is the ledger's."""
        shelf = self.disk.shelf
        for e, facts in sorted(self.world.facts.items()):
            partition = shelf.partitions.get(e)
            given = None if partition is None else partition.verdict
            if not facts.ever and given is None:
                continue
            wanted = expected(facts, shelf.chain(e))
            self.outcome.table[e] = wanted, given
            unasked = given is None and (not facts.log or self.left_to_the_audit(shelf, e, facts))
            if given not in wanted and not unasked:
                self.wrong(f"execution {e}: expected {' or '.join(sorted(wanted))}, given {given}")
            counted = frozenset[str]() if partition is None else partition.counted_kinds
            if bool(counted) != (e in self.alarmed):
                self.wrong(f"execution {e}: {given} with the kinds {sorted(counted)}")
            resolved, read = given in ("match", "match_rejoined"), self.guarded(shelf, e)
            if resolved and facts.row_at > facts.meddled_at and read.events is None:
                self.wrong(f"execution {e}: {given}, and it is not served ({read.reason})")
        for e in sorted(shelf.partitions.keys() - self.world.facts.keys()):
            self.wrong(f"execution {e} has a record and no row")


class _Delivering(Feed):
    """The feed; what it has stored of a batch is delivered."""

    def __init__(self, taken: Callable[[Batch], None], *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._taken = taken

    async def take(self, batch: Batch, tell: Callable[[FeedReport], None] = lambda _: None) -> FeedReport:
        report = await super().take(batch, tell)
        self._taken(batch)
        return report


async def _nothing() -> None:
    """No gauges: sizes are SQLite's."""


SILENT: Any = structlog.wrap_logger(
    structlog.ReturnLogger(), processors=[], wrapper_class=structlog.make_filtering_bound_logger(50)
)
METRICS = Metrics()


def _real_sizes() -> AbstractContextManager[object]:
    return patch.object(sidecar.service.line, "time", Times)


@contextmanager
def _small(chance: random.Random) -> Iterator[None]:
    """The program's sizes small, so that few rows fill pieces, batches and pages."""
    sizes: Mapping[Any, Mapping[str, tuple[int, ...]]] = {
        sidecar.feed.reads: {"FIRST_SIGHTS_MAX": (1, 3, 256)},
        sidecar.feed.pool: {"REFUSED_KEYS_MAX": (2, 65_536)},
        sidecar.comparator.loop: {"EXECUTIONS_MAX": (1, 3, 64), "ROWS_MAX": (8, 10_000)},
        sidecar.source.pieces: {"ROWS_FIRST": (2, 200), "ROWS_MAX": (3, 2000)},
        sidecar.source.poll: {"PIECE_ROWS": (2, 5000), "_FETCH_KEYS": (3, 5000)},
        sidecar.source.tail: {"PINNED_ROWS": (3, 2000)},
        sidecar.source.scan: {"CHUNK_EXECUTIONS": (2, 2000), "_FIRST_ROWS": (3, 1000)},
        sidecar.core.resolve: {"CRASH_LOSS": (3 * SECOND,)},
        sidecar.source.compare: {"_LACKING_AT_ONCE": (1, 1000)},
    }
    with ExitStack() as patched:
        for module, values in sizes.items():
            for key, among in values.items():
                patched.enter_context(patch.object(module, key, chance.choice(among)))
        remembered = chance.choice((6, 200_000))
        for module in sidecar.source.poll, sidecar.source.tail:
            patched.enter_context(patch.object(module, "SEEN_MAX", remembered))
        patched.enter_context(patch.object(sidecar.service.line, "time", Times))
        yield
