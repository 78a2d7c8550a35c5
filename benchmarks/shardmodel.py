"""N shards over one log, played on a virtual clock: what each would have to do, and when it would be late.

Simulated: every commit of a recorded log, many copies of it at once; which shard each execution
falls to, by the real hash; every poll of every shard's live lane, the rows of its range and the
rows it finds, counted one by one; the time a sidecar is busy with them.  A poll begins when the
one before it is stored.

Put in as measured by `benchmarks.costs`, each taken as constant: what a poll, a row of its range,
an event and a judgement cost in CPU time.  A sidecar is one CPU; what it judges slows down what it
stores.  Not simulated: Postgres's limits.  Its work is added up and said in CPUs; whether it has
so many, and what locks, memory and disks add, is another question.  Nor the lanes late and sweep.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from benchmarks.result import Result, quantile
from sidecar.core.shards import shard_of
from sidecar.demo.recording import Recording, bundled

SECOND: Final = 1_000_000
COPIES: Final = 100
COPY_STEP: Final = 613 << 22
"""Between the ids of two copies: as if they had been minted 613 ms later."""

Arrivals = Sequence[tuple[int, int]]
"""(microseconds of the commit, execution_id) of every event, ascending."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds of CPU, as measured on the machine of docs/scale.md.

    Postgres: `poll` by itself, `looked` for every row of its range, `read` for an event.  The
    sidecar: `own` for a poll that finds something, `event` for each event that it stores;
    `judge` for a judgement of an execution and `judge_event` for each of its events.
    """

    poll: float = 2600.0
    looked: float = 0.15
    read: float = 23.0
    own: float = 8900.0
    event: float = 87.0
    judge: float = 190.0
    judge_event: float = 12.6
    judgements: int = 2
    """Of one execution: while it runs and when it has ended."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Seconds: from poll to poll, and how far back a poll looks."""

    every: float = 0.15
    window: float = 60.0


@dataclass(frozen=True, slots=True)
class Shard:
    """What one shard came to: events, share of its CPU, and lags in milliseconds from commit to stored."""

    events: int
    busy: float
    lags: Sequence[float]


@dataclass(frozen=True, slots=True)
class Played:
    """`postgres`: CPUs that all polls together keep busy.  `late_s`: how long after the last commit the last
    event was stored."""

    shards: Sequence[Shard]
    postgres: float
    late_s: float

    @property
    def keeps_up(self) -> bool:
        """No shard is late by more than a few polls, and none works all the time."""
        return self.late_s < 1.0 and max(shard.busy for shard in self.shards) < 0.9

    @property
    def imbalance(self) -> float:
        """The fullest shard's events over the mean."""
        return max(shard.events for shard in self.shards) * len(self.shards) / self.events

    @property
    def events(self) -> int:
        return sum(shard.events for shard in self.shards)

    def lag(self, share: float) -> float:
        return quantile([lag for shard in self.shards for lag in shard.lags], share)


def copied(recording: Recording, copies: int = COPIES) -> list[tuple[int, int]]:
    """The commits of a recording, `copies` times at once, each copy a little later, under ids of its own."""
    events = [(each.committed_at, row.execution_id) for each in recording.transactions for row in each.rows]
    first = min(at for at, _ in events)
    return sorted(
        (at - first + copy * 7919 % 1000 * 1000, execution_id + copy * COPY_STEP)
        for copy in range(copies)
        for at, execution_id in events
    )


def play(
    arrivals: Arrivals, count: int, costs: Costs, lane: Lane | None = None, *, sample: int = 7
) -> Played:
    """Play a log to its end.

    Args:
        sample: The lag of every so many events is kept.
    """
    lane = lane or Lane()
    owner = {execution_id: shard_of(execution_id, count) for execution_id in {e for _, e in arrivals}}
    committed = [at for at, _ in arrivals]
    mine: list[list[int]] = [[] for _ in range(count)]
    for at, execution_id in arrivals:
        mine[owner[execution_id]].append(at)
    span = max(1, committed[-1] - committed[0])
    shards, postgres, last = [], 0.0, 0.0
    for index, own in enumerate(mine):
        executions = sum(1 for each in owner.values() if each == index)
        judged = costs.judgements * (executions * costs.judge + len(own) * costs.judge_event) / span
        # Shards do not start at the same instant.
        one = _followed(own, committed, index / count, costs, lane, sample, 1 - min(judged, 0.99))
        lasted = max(span, one.ended - committed[0])
        shards.append(Shard(len(own), one.busy / lasted + judged, one.lags))
        postgres += one.postgres / lasted
        last = max(last, one.ended)
    return Played(shards, postgres, max(0.0, last - committed[-1]) / SECOND)


@dataclass(slots=True)
class _Followed:
    """Microseconds: the sidecar's, Postgres's, and when the last event was stored."""

    busy: float = 0.0
    postgres: float = 0.0
    ended: float = 0.0
    lags: list[float] = field(default_factory=list)


def _followed(
    own: Sequence[int],
    committed: Sequence[int],
    phase: float,
    costs: Costs,
    lane: Lane,
    sample: int,
    left: float,
) -> _Followed:
    """One shard's polls.  `left`: the part of its CPU that is not judging."""
    every, window = lane.every * SECOND, lane.window * SECOND
    at, taken, done = committed[0] + phase * every, 0, _Followed()
    while taken < len(own) or at <= committed[-1]:
        found = bisect_right(own, at)
        new, looked = found - taken, bisect_right(committed, at) - bisect_left(committed, at - window)
        asked = costs.poll + looked * costs.looked + new * costs.read
        work = costs.own + new * costs.event
        stored = at + asked + work / left
        if new:
            done.ended = stored
        done.lags += [(stored - own[n]) / 1000 for n in range(taken + -taken % sample, found, sample)]
        done.busy += work
        done.postgres += asked
        taken, at = found, max(at + every, stored)
    return done


def measure(costs: Costs | None = None) -> Iterator[Result]:
    """The recorded log a hundred times at once, then at about 10,000 events a second, by count of shards."""
    recording = bundled("noetl-rust-clean")
    for copies, windows in ((COPIES, (60.0,)), (160, (60.0, 5.0))):
        arrivals = copied(recording, copies)
        rate = len(arrivals) / recording.span_s
        for window, count in product(windows, (1, 2, 4, 8, 16)):
            played = play(arrivals, count, costs or Costs(), Lane(window=window))
            yield Result(
                f"{rate:,.0f} events/s, {count} shard{'s' * (count > 1)}, live window {window:.0f} s:"
                " commit to stored, p99",
                played.lag(0.99),
                "ms, simulated",
                note=f"p50 {played.lag(0.5):,.0f} ms, longest {played.lag(1.0):,.0f} ms;"
                f" busiest shard {max(each.busy for each in played.shards):.0%} of a CPU,"
                f" fullest {played.imbalance:.2f} of the mean; Postgres {played.postgres:.1f} CPUs",
            )
