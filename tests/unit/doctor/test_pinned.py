"""When the log says who holds the horizon back, and when it keeps quiet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sidecar.core.ports import Batch
from sidecar.errors import SourceUnavailable
from sidecar.service.pinned import AGAIN_S, UNSEEN, PinWatch
from sidecar.source.pins import Pin, Pins
from sidecar.source.tail import LaneState
from tests.support.captured import captured


@dataclass
class StillLane:
    """A lane of which only the state is asked."""

    name: str = "live"
    age_s: int = 0

    @property
    def state(self) -> LaneState:
        return LaneState(True, self.age_s * 1_000_000, 0)

    def batches(self) -> Any:
        raise AssertionError(Batch)


def _pin(pid: int | None, gid: str | None = None, *, xid: int = 700, holds: bool = True) -> Pin:
    return Pin(xid, pid, gid, "billing", "writer", "d", "idle in transaction", 90.0, holds)


@dataclass
class Watched:
    """A watch whose server answers `pins`, or fails."""

    pins: Pins | None = None
    now: float = 0.0
    asked: int = 0
    live: StillLane = field(default_factory=StillLane)
    sweep: StillLane = field(default_factory=lambda: StillLane("sweep"))

    def __post_init__(self) -> None:
        log, self.lines = captured()
        self.watch = PinWatch(
            self.ask, [self.live, self.sweep], log, bound_s=60, every_s=1, clock=lambda: self.now
        )

    async def ask(self) -> Pins:
        self.asked += 1
        if self.pins is None:
            raise SourceUnavailable("away", hint="wait")
        return self.pins

    async def look(self, age_s: int) -> list[str]:
        self.live.age_s = age_s
        before = len(self.lines)
        await self.watch.look()
        return [line["event"] for line in self.lines[before:]]


async def test_a_culprit_is_named_once_then_again_after_a_while_and_its_end_is_told() -> None:
    seen = Watched(Pins(700, 800, (_pin(41),)))
    assert await seen.look(59) == []
    assert seen.asked == 0, "nobody is asked about a horizon that moves"
    assert await seen.look(61) == ["horizon_held"]
    assert await seen.look(66) == []
    seen.now = AGAIN_S + 1
    assert await seen.look(700) == ["horizon_held"]
    assert await seen.look(0) == ["horizon_moves_on"]
    assert await seen.look(0) == []
    line = seen.lines[0]
    assert (line["pid"], line["application"], line["role"], line["open_s"]) == (41, "billing", "writer", 90.0)
    assert "pg_terminate_backend(41)" in line["hint"]


async def test_another_culprit_is_named_at_once() -> None:
    seen = Watched(Pins(700, 800, (_pin(41),)))
    await seen.look(61)
    seen.pins = Pins(710, 800, (_pin(None, "two-phase", xid=710),))
    assert await seen.look(61) == ["horizon_held"]
    assert seen.lines[-1]["gid"] == "two-phase"
    assert "ROLLBACK PREPARED" in seen.lines[-1]["hint"]


async def test_who_only_writes_later_is_not_accused() -> None:
    seen = Watched(Pins(700, 800, (_pin(42, xid=750, holds=False),)))
    assert await seen.look(61) == ["horizon_held"]
    assert seen.lines[-1]["by"] == UNSEEN
    seen.pins = Pins(800, 800, ())
    assert await seen.look(61) == [], "it has ended since the poll"


async def test_a_server_that_cannot_be_asked_is_no_failure_of_the_sidecar() -> None:
    seen = Watched(None)
    assert await seen.look(61) == ["horizon_held"]
    assert seen.lines[-1]["hint"] == "wait"
    assert await seen.look(62) == []


async def test_a_partition_that_waits_for_its_round_accuses_nobody() -> None:
    seen = Watched(Pins(700, 800, (_pin(41),)))
    seen.sweep.age_s = 500
    assert await seen.look(0) == []
    assert seen.asked == 0
