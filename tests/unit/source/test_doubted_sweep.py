"""A sweep that is asked for a round polls and compares every partition, whatever its horizon."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from sidecar.core.horizon import Cursor, Facts
from sidecar.source import sweep as sweeping
from sidecar.source.compare import Comparison, Step
from sidecar.source.doubt import Doubt
from sidecar.source.options import Shard
from sidecar.source.partitions import Listing, Part
from sidecar.source.poll import Intervals, Piece, Request
from sidecar.source.sweep import SweepLane
from sidecar.source.table import EventTable
from sidecar.source.tail import scope_of
from tests.support.tailing import MemoryStore

TABLE = EventTable("noetl", "db", 7, 150000, {}, (), True, "t")
FACTS = Facts(horizon=100, xmax=110, epoch="e", tree="t", server_now=5)
PARTS = (Part("sweep:11:5", Intervals(((0, 9),)), "p"), Part("sweep:12:5", Intervals(((10, 19),)), "q"))


class Played:
    """Poller and comparison of one sweep; `done` says what was asked, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []

        async def listed(*_: Any) -> Listing:
            return Listing(FACTS, PARTS)

        async def compared(over: Comparison) -> AsyncGenerator[Step, None]:
            self.done.append(f"compare {over.low}")
            yield Step(FACTS)

        monkeypatch.setattr(sweeping, "list_parts", listed)
        monkeypatch.setattr(sweeping, "compared", compared)

    async def run(self, request: Request, accept: Callable[[Facts], bool]) -> AsyncGenerator[Piece, None]:
        assert isinstance(request.range, Intervals)
        self.done.append(f"poll {request.range.ranges[0][0]}")
        if accept(FACTS):
            yield Piece(FACTS, 200, (), 1, last=True)


def _store(*lanes: str) -> MemoryStore:
    store = MemoryStore()
    for part in PARTS:
        scope = scope_of(TABLE, Shard(), part.over.predicate)
        store.lane_cursors[part.lane] = Cursor(part.lane, 90, "e", scope, part.tree, 1)
    for lane in lanes:
        store.lane_cursors[lane] = Cursor(lane, 90, "e", "s", "t", 1)
    return store


def _sweep(played: Played, store: MemoryStore, doubt: Doubt, before: tuple[str, ...] = ()) -> SweepLane:
    nothing: Any = None
    return SweepLane(
        nothing,
        played,  # type: ignore[arg-type]  # as much of a poller as a sweep asks for
        nothing,
        TABLE,
        store,
        round_s=0.0,
        scan_timeout_s=1.0,
        shard=Shard(),
        doubt=doubt,
        before=before,
    )


async def test_a_doubted_partition_is_polled_and_compared_and_the_round_ends_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doubt, store, played = Doubt(), _store(), Played(monkeypatch)
    sweep = _sweep(played, store, doubt)
    ticket, settled = doubt.ask(), list[tuple[bool, bool]]()
    async with aclosing(sweep.batches()) as batches:
        async for batch in batches:
            store.take(batch)
            settled.append((doubt.settled(ticket), sweep.state.caught_up))
            if len(settled) == 3:
                break
    assert played.done == ["poll 0", "compare 0", "poll 10", "compare 10", "poll 0"]
    assert settled == [(False, False), (False, False), (True, True)]
    assert {store.horizon(part.lane) for part in PARTS} == {100}, (
        "the horizon of the poll, not the comparison's"
    )


async def test_a_second_question_gets_a_round_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    doubt, store, played = Doubt(), _store(), Played(monkeypatch)
    first, second = doubt.ask(), None
    async with aclosing(_sweep(played, store, doubt).batches()) as batches:
        async for batch in batches:
            store.take(batch)
            if second is None:
                second = doubt.ask()
            elif doubt.settled(second):
                break
    assert doubt.settled(first)
    assert [each for each in played.done if each.startswith("compare")] == [
        "compare 0", "compare 0", "compare 10",
    ]  # fmt: skip


async def test_what_another_source_left_is_asked_for_and_dropped_when_the_round_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, played = _store("wal"), Played(monkeypatch)
    async with aclosing(_sweep(played, store, Doubt(), ("wal",)).batches()) as batches:
        async for batch in batches:
            store.take(batch)
            if batch.dropped_lanes:
                break
    assert played.done == ["poll 0", "compare 0", "poll 10", "compare 10"]
    assert "wal" not in store.lane_cursors


async def test_without_a_question_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    store, played = _store("wal"), Played(monkeypatch)
    async with aclosing(_sweep(played, store, Doubt()).batches()) as batches:
        async for batch in batches:
            store.take(batch)
            if len(store.batches) == 3:
                break
    assert [each.partition(" ")[0] for each in played.done] == ["poll"] * 3
    assert "wal" in store.lane_cursors
