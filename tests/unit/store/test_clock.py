"""The store's clock: no two answers alike, none earlier than the store's greatest time."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sidecar.store.clock import StoreClock


class Hands:
    """A wall clock and a monotonic clock that a test sets."""

    def __init__(self, wall: int, monotonic: int) -> None:
        self.wall_us = wall
        self.monotonic_us = monotonic

    def clock(self, floor: int) -> StoreClock:
        return StoreClock(floor, wall=lambda: self.wall_us, monotonic=lambda: self.monotonic_us)


def test_starts_at_the_wall_when_the_store_is_older() -> None:
    assert Hands(1000, 5).clock(10).now() == 1000


def test_starts_above_the_store_when_the_wall_was_set_back() -> None:
    assert Hands(1000, 5).clock(5000).now() == 5001


def test_advances_with_the_monotonic_clock_alone() -> None:
    hands = Hands(1000, 5)
    clock = hands.clock(0)
    assert clock.now() == 1000
    hands.wall_us = 1
    hands.monotonic_us += 250
    assert clock.now() == 1250
    hands.wall_us = 10**18
    assert clock.now() == 1251


@given(
    floor=st.integers(0, 2**60),
    wall=st.integers(0, 2**60),
    steps=st.lists(st.tuples(st.integers(-(2**50), 2**50), st.integers(0, 1000)), max_size=30),
)
def test_strictly_increases_whatever_the_wall_does(
    floor: int, wall: int, steps: list[tuple[int, int]]
) -> None:
    hands = Hands(wall, 7)
    clock = hands.clock(floor)
    assert clock.last == floor
    answers = [floor]
    for jump, passed in steps:
        hands.wall_us += jump
        hands.monotonic_us += passed
        answers.append(clock.now())
        assert clock.last == answers[-1]
    assert all(a < b for a, b in pairwise(answers))
