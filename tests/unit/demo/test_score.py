"""The score: commits in order, as many open as were, and no standstill."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest

from sidecar.demo.recording import Transaction
from sidecar.demo.score import Score
from sidecar.errors import InvariantError


def transactions(opened: tuple[int, ...]) -> list[Transaction]:
    return [Transaction(position, at, 100 + position, ()) for position, at in enumerate(opened)]


async def played(opened: tuple[int, ...], connections: int) -> tuple[list[int], list[int]]:
    """Positions in the order of taking and of committing."""
    score = Score(transactions(opened), connections)
    taken: list[int] = []
    committed: list[int] = []

    async def connection() -> None:
        while (transaction := await score.take()) is not None:
            taken.append(transaction.position)
            await score.turn(transaction)
            committed.append(transaction.position)
            score.commit(transaction)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(connection())
    return taken, committed


@pytest.mark.parametrize("connections", [1, 2, 3, 4, 7])
async def test_every_order_of_opening_ends_with_every_number_of_connections(connections: int) -> None:
    for opened in permutations(range(5)):
        taken, committed = await played(opened, connections)
        assert committed == [0, 1, 2, 3, 4]
        assert sorted(taken) == committed


async def test_with_connections_to_spare_they_open_as_recorded() -> None:
    taken, _ = await played((4, 3, 2, 1, 0), 7)
    assert taken == [4, 3, 2, 1, 0]


async def test_the_last_free_connection_waits_for_the_one_whose_turn_it_is() -> None:
    score = Score(transactions((2, 1, 0)), 2)
    first = await score.take()
    assert first is not None
    assert first.position == 2
    second = await score.take()
    assert second is not None
    assert second.position == 0


async def test_a_commit_out_of_turn_is_our_bug() -> None:
    score = Score(transactions((0, 1)), 3)
    await score.take()
    late = await score.take()
    assert late is not None
    with pytest.raises(InvariantError):
        score.commit(late)


async def test_nothing_to_play_ends_at_once() -> None:
    assert await Score((), 1).take() is None
