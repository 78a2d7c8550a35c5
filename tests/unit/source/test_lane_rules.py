"""Rules of the lanes that a real server shows too rarely: here it is played by a script."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from sidecar.core.horizon import Cursor, Facts
from sidecar.core.ports import Batch
from sidecar.source import sweep as sweeping
from sidecar.source.compare import Comparison, Step
from sidecar.source.options import Shard
from sidecar.source.partitions import Listing, Part
from sidecar.source.poll import Intervals, Piece, Request
from sidecar.source.sweep import SweepLane
from sidecar.source.table import EventTable
from sidecar.source.tail import WindowLane
from tests.support.tailing import MemoryStore

TABLE = EventTable("noetl", "db", 7, 150000, {}, (), True, "t")
FACTS = Facts(horizon=100, xmax=110, epoch="e", tree="t", server_now=5)
PART = Part("sweep:11:5", Intervals(((0, 9),)), "p")


class ScriptedPoller:
    """Answers polls with the facts of a script, and keeps the requests."""

    def __init__(self, *script: Facts) -> None:
        self._script = list(script)
        self.requests: list[Request] = []

    async def run(self, request: Request, accept: Callable[[Facts], bool]) -> AsyncGenerator[Piece, None]:
        self.requests.append(request)
        facts = self._script.pop(0)
        if accept(facts):
            yield Piece(facts, 200, (), 1, last=True, seen={(1, len(self.requests)): 3})


def _window_lane(poller: Any, store: MemoryStore) -> WindowLane:
    return WindowLane("live", poller, TABLE, store, window_s=60.0, every_s=0.0, shard=Shard())


async def _batches(lane: Any, store: MemoryStore, count: int) -> list[Batch]:
    found: list[Batch] = []
    async with aclosing(lane.batches()) as batches:
        async for batch in batches:
            store.take(batch)
            found.append(batch)
            if len(found) == count:
                break
    return found


async def test_a_poll_whose_h_does_not_hold_is_repeated_at_once_without_predicate_and_memory() -> None:
    other = replace(FACTS, epoch="after a crash")
    poller, store = ScriptedPoller(FACTS, FACTS, FACTS, other, other), MemoryStore()
    await _batches(_window_lane(poller, store), store, 4)
    first, second, third, discarded, repeated = poller.requests
    assert (first.horizon, second.horizon, third.horizon) == (None, None, 100)
    assert (discarded.horizon, discarded.seen) == (100, {(1, 3): 3})
    assert (repeated.horizon, repeated.seen) == (None, {})
    assert repeated.unknown is None
    assert store.horizon("live") is None


async def test_a_lane_begins_with_the_stores_cursor() -> None:
    poller, store = ScriptedPoller(FACTS), MemoryStore()
    lane = _window_lane(poller, store)
    store.lane_cursors["live"] = Cursor("live", 90, "e", "db/7/0of1/created_at:60.0", "t", 4)
    await _batches(lane, store, 1)
    assert (poller.requests[0].horizon, poller.requests[0].polled_at) == (90, 4)
    assert store.horizon("live") == 100


def _sweep_lane(poller: Any, store: MemoryStore) -> SweepLane:
    nothing: Any = None
    return SweepLane(nothing, poller, nothing, TABLE, store, round_s=0.0, scan_timeout_s=1.0, shard=Shard())


def _listing(monkeypatch: pytest.MonkeyPatch, *trees: str) -> list[str]:
    """Listings with these trees, the last for ever; returns those that were asked for."""
    asked: list[str] = []

    async def list_parts(*_: object) -> Listing:
        tree = trees[min(len(asked), len(trees) - 1)]
        asked.append(tree)
        return Listing(replace(FACTS, tree=tree), (PART,))

    monkeypatch.setattr(sweeping, "list_parts", list_parts)
    monkeypatch.setattr(sweeping, "_TREE_SETTLE_S", 0.0)
    return asked


def _comparisons(monkeypatch: pytest.MonkeyPatch, *scripts: list[Facts]) -> None:
    """Each comparison yields one step for each facts of its script."""
    left = list(scripts)

    async def compared(over: Comparison) -> AsyncGenerator[Step, None]:
        for number, facts in enumerate(left.pop(0)):
            yield Step(facts, gone=(number,))

    monkeypatch.setattr(sweeping, "compared", compared)


async def test_a_tree_must_stand_still_before_partitions_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _listing(monkeypatch, "t0", "t1", "t")
    _comparisons(monkeypatch, [FACTS])
    store = MemoryStore()
    await _batches(_sweep_lane(ScriptedPoller(), store), store, 2)
    assert asked == ["t0", "t1", "t", "t"]


async def test_the_h_of_a_comparison_is_that_of_its_first_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    _listing(monkeypatch, "t")
    _comparisons(monkeypatch, [FACTS, replace(FACTS, horizon=150), replace(FACTS, horizon=170)])
    store = MemoryStore()
    batches = await _batches(_sweep_lane(ScriptedPoller(), store), store, 4)
    assert [batch.gone for batch in batches] == [(0,), (1,), (2,), ()]
    assert [batch.cursor is not None for batch in batches] == [False, False, False, True]
    assert store.lane_cursors[PART.lane] == Cursor(
        PART.lane, 100, "e", "db/7/0of1/execution_id:0..9", "p", FACTS.server_now
    )


@pytest.mark.parametrize(
    "moved", [replace(FACTS, tree="t2"), replace(FACTS, epoch="e2")], ids=["tree", "epoch"]
)
async def test_a_comparison_in_which_the_world_moved_leaves_no_cursor(
    monkeypatch: pytest.MonkeyPatch, moved: Facts
) -> None:
    _listing(monkeypatch, "t")
    _comparisons(monkeypatch, [FACTS, moved], [FACTS])
    store = MemoryStore()
    batches = await _batches(_sweep_lane(ScriptedPoller(), store), store, 3)
    # One step of the first comparison, then the second one, which ends.
    assert [batch.cursor is not None for batch in batches] == [False, False, True]
    assert [batch.gone for batch in batches] == [(0,), (0,), ()]


def _cursor(**changes: Any) -> Cursor:
    return replace(Cursor(PART.lane, 90, "e", "db/7/0of1/execution_id:0..9", "p", 4), **changes)


@pytest.mark.parametrize(
    "changes",
    [{"tree": "p0"}, {"epoch": "e0"}, {"scope": "s0"}, {"horizon": None}, {"horizon": 111}],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_partition_whose_cursor_does_not_hold_is_compared(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    _listing(monkeypatch, "t")
    _comparisons(monkeypatch, [FACTS])
    store = MemoryStore()
    store.lane_cursors[PART.lane] = _cursor(**changes)
    poller = ScriptedPoller()
    await _batches(_sweep_lane(poller, store), store, 2)
    assert poller.requests == []
    assert store.gone == [0]


async def test_a_partition_whose_cursor_holds_is_polled_with_its_h(monkeypatch: pytest.MonkeyPatch) -> None:
    _listing(monkeypatch, "t")
    store, poller = MemoryStore(), ScriptedPoller(FACTS)
    store.lane_cursors[PART.lane] = _cursor()
    await _batches(_sweep_lane(poller, store), store, 1)
    assert [request.horizon for request in poller.requests] == [90]
    assert store.horizon(PART.lane) == 100


@pytest.mark.parametrize(
    "moved", [replace(FACTS, tree="t2"), replace(FACTS, epoch="e2")], ids=["tree", "epoch"]
)
async def test_a_partition_poll_in_another_tree_or_epoch_is_discarded(
    monkeypatch: pytest.MonkeyPatch, moved: Facts
) -> None:
    _listing(monkeypatch, "t")
    store, poller = MemoryStore(), ScriptedPoller(moved, FACTS)
    store.lane_cursors[PART.lane] = _cursor()
    (batch,) = await _batches(_sweep_lane(poller, store), store, 1)
    assert len(poller.requests) == 2
    assert batch.epoch == "e"


async def test_cursors_of_partitions_that_left_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    _listing(monkeypatch, "t")
    store, poller = MemoryStore(), ScriptedPoller(FACTS)
    store.lane_cursors = {PART.lane: _cursor(), "sweep:12:6": _cursor(lane="sweep:12:6"), "live": _cursor()}
    first, _ = await _batches(_sweep_lane(poller, store), store, 2)
    assert first.dropped_lanes == ("sweep:12:6",)
    assert set(store.lane_cursors) == {PART.lane, "live"}
