"""The highest committed numbers: they only rise, and whoever waits wakes for any one of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.store.sequence import Committed


def numbers(of: Committed) -> tuple[int, int, int]:
    return of.high, of.departed, of.marks


def test_numbers_rise_each_for_itself_and_never_fall() -> None:
    done = Committed(5)
    assert numbers(done) == (5, 0, 0)
    for reached, marked, after in (
        ((6,), False, (6, 0, 0)),
        ((6, 2), False, (6, 2, 0)),
        ((4, 3), False, (6, 3, 0)),
        ((7, 1), False, (7, 3, 0)),
        ((1, 1), False, (7, 3, 0)),
        ((1,), True, (7, 3, 1)),
        ((1,), True, (7, 3, 2)),
    ):
        done.reach(*reached, marked=marked)
        assert numbers(done) == after


@pytest.mark.parametrize(
    ("reached", "wakes"),
    [
        (((6, 2), {}), True),
        (((5, 3), {}), True),
        (((5, 2), {"marked": True}), True),
        (((5, 2), {}), False),
    ],
)
async def test_any_number_wakes_who_waits_and_nothing_else_does(reached: Any, wakes: bool) -> None:
    done = Committed(5, 2)
    asleep = done._moved
    waiting = asyncio.create_task(done.beyond(5, 2, 0))
    await asyncio.sleep(0)
    assert not waiting.done()
    done.reach(*reached[0], **reached[1])
    assert asleep.is_set() is wakes
    if not wakes:
        waiting.cancel()
        return
    assert await waiting == done.high


@pytest.mark.parametrize("seen", [(4, 2, 0), (5, 1, 0), (5, 2, -1)])
async def test_who_lacks_one_of_them_does_not_wait(seen: tuple[int, int, int]) -> None:
    assert await asyncio.wait_for(Committed(5, 2).beyond(*seen), 10) == 5
