"""Alive: every loop ticked lately.  Ready: no reason against it.  Design 4, HTTP."""

from __future__ import annotations

from sidecar.telemetry.health import Health, NotReady


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def watched(tick_seconds: float = 5) -> tuple[Health, Clock]:
    clock = Clock()
    health = Health(clock=clock)
    health.watch("feed", tick_seconds=tick_seconds)
    return health, clock


def test_a_loop_may_be_silent_for_thirty_seconds_at_least() -> None:
    health, clock = watched(tick_seconds=0.15)
    clock.now += 30
    assert health.silent() == ()
    clock.now += 0.1
    assert health.silent() == ("feed",)
    health.ticked("feed")
    assert health.silent() == ()


def test_a_slow_loop_may_be_silent_for_three_ticks() -> None:
    health, clock = watched(tick_seconds=20)
    clock.now += 60
    assert health.silent() == ()
    clock.now += 1
    assert health.silent() == ("feed",)


def test_a_loop_that_waits_with_a_bound_is_alive_until_the_bound_and_has_its_time_after_it() -> None:
    health, clock = watched()
    health.waits("feed", 600)
    clock.now += 630
    assert health.silent() == ()
    clock.now += 1
    assert health.silent() == ("feed",)
    health.waits("feed", 600)
    health.waits("feed", 0)
    clock.now += 31
    assert health.silent() == ("feed",), "a wait that ended gives no more time"


def test_nobody_waits_for_a_loop_that_is_not_watched() -> None:
    health, clock = watched()
    health.waits("stranger", 1)
    clock.now += 10
    assert health.silent() == ()


def test_a_loop_that_ended_as_it_should_is_not_missed() -> None:
    health, clock = watched()
    health.unwatch("feed")
    clock.now += 1000
    assert health.silent() == ()


def test_a_paused_store_is_alive_and_not_ready() -> None:
    health, clock = watched()
    health.clear(NotReady.STARTING)
    health.mark(NotReady.PAUSED)
    clock.now += 1000
    assert health.silent() == ()
    assert health.reasons() == (NotReady.PAUSED,)
    health.clear(NotReady.PAUSED)
    assert health.silent() == (), "the loops get their time anew"
    clock.now += 31
    assert health.silent() == ("feed",)


def test_clearing_what_does_not_stand_is_no_tick() -> None:
    health, clock = watched()
    clock.now += 31
    health.clear(NotReady.PAUSED)
    assert health.silent() == ("feed",)


def test_reasons_stand_until_they_are_cleared() -> None:
    health, _ = watched()
    assert health.reasons() == (NotReady.STARTING,)
    health.mark(NotReady.SOURCE_UNAVAILABLE)
    health.mark(NotReady.CATCHING_UP)
    health.clear(NotReady.STARTING)
    assert health.reasons() == (NotReady.CATCHING_UP, NotReady.SOURCE_UNAVAILABLE)
