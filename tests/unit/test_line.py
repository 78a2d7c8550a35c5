"""What the line tells of loops that pause: a trouble stands as long as any loop has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
import structlog

from sidecar.errors import InvariantError, SourceUnavailable, StoreError, StoreFull
from sidecar.service.line import Line
from sidecar.service.replicas import ReplicaStep, replicate
from sidecar.service.told import Instruments, Progress
from sidecar.telemetry.health import Health, NotReady
from sidecar.telemetry.metrics import Metrics
from tests.support.captured import captured


async def _nothing() -> None:
    return


def _line() -> tuple[Line, Health, Metrics]:
    metrics, health = Metrics(), Health()
    nobody = cast("Any", None)  # nothing is fed or judged here
    line = Line((), nobody, nobody, _nothing, Instruments(metrics, health, structlog.get_logger()), tick_s=1)
    health.clear(NotReady.STARTING)
    return line, health, metrics


def _paused(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("noetl_chain_store_paused")


def test_one_loops_trouble_does_not_hide_anothers() -> None:
    line, health, metrics = _line()
    line._trouble("live", NotReady.PAUSED, StoreFull("full"))
    line._trouble("sweep", NotReady.SOURCE_UNAVAILABLE, SourceUnavailable("gone"))
    assert health.reasons() == (NotReady.PAUSED, NotReady.SOURCE_UNAVAILABLE)
    assert _paused(metrics) == 1


def test_a_trouble_ends_with_the_last_loop_that_has_it() -> None:
    line, health, metrics = _line()
    for loop in ("live", "late"):
        line._trouble(loop, NotReady.PAUSED, StoreFull("full"))
    line._trouble("sweep", NotReady.SOURCE_UNAVAILABLE, SourceUnavailable("gone"))
    line._well("live")
    assert _paused(metrics) == 1
    line._well("late")
    assert (_paused(metrics), health.reasons()) == (0, (NotReady.SOURCE_UNAVAILABLE,))
    line._well("sweep")
    assert health.reasons() == ()


@dataclass
class LaneState:
    caught_up: bool
    horizon_age_s: float = 0.0


class StartedError(Exception):
    """A lane was asked for its batches."""


class ScriptedLane:
    def __init__(self, name: str, *, caught_up: bool) -> None:
        self.name = name
        self.state = LaneState(caught_up)

    def batches(self) -> Any:
        raise StartedError(self.name)


async def test_the_late_lane_begins_when_the_sweep_has_been_round(monkeypatch: pytest.MonkeyPatch) -> None:
    line, health, _ = _line()
    late, sweep = ScriptedLane("late", caught_up=False), ScriptedLane("sweep", caught_up=False)
    line.lanes = cast("Any", (late, sweep))
    pauses = 0

    async def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        sweep.state.caught_up = pauses == 3

    monkeypatch.setattr("sidecar.service.line.asyncio.sleep", pause)
    health.watch("late", tick_seconds=1)
    with pytest.raises(StartedError, match="late"):
        await line._follow(cast("Any", late))
    assert pauses == 3
    with pytest.raises(StartedError, match="sweep"):
        await line._follow(cast("Any", sweep))


@dataclass
class Told:
    """A replica's step as the line reads it."""

    lag: int = 0
    clashes: tuple[Any, ...] = ()
    forks: int = 0
    initialised: bool = False
    applied: bool = True


class Faltering:
    """A replica that fails with these reasons in turn, or applies; then our own bug ends it."""

    lag = 5

    def __init__(self, *reasons: str) -> None:
        self.reasons = iter(reasons)
        self.calls = 0

    async def follow(self, tell: Callable[[ReplicaStep], None]) -> None:
        self.calls += 1
        tell(Told(lag=5, applied=False))
        for reason in self.reasons:
            if reason == "applies":
                tell(Told(lag=0))
                continue
            raise StoreError(reason)
        raise InvariantError("our bug ends the process")


async def test_a_replica_that_fails_is_told_once_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(round(seconds, 1))

    monkeypatch.setattr("sidecar.service.replicas.asyncio.sleep", sleep)
    metrics, health = Metrics(replicas=1), Health()
    log, said = captured()
    instruments = Instruments(metrics, health, log)
    replica = Faltering("a", "a", "a", "b", "applies", "b", "b")
    with pytest.raises(InvariantError):
        await replicate(0, replica, instruments, Progress())
    assert [(each["event"], each.get("reason")) for each in said] == [
        ("replica_away", "a"), ("replica_away", "b"), ("replica_resumed", None), ("replica_away", "b"),
    ]  # fmt: skip
    assert pauses == [0.2, 0.4, 0.8, 1.6, 0.2, 0.4]
    assert NotReady.PAUSED not in health.reasons()
    assert metrics.registry.get_sample_value("noetl_chain_replica_lag_events", {"replica": "0"}) == 5
    assert _paused(metrics) == 0
