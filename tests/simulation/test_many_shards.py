"""The recorded log a hundred times at once over several shards, on a virtual clock: see docs/scale.md."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from benchmarks.shardmodel import COPIES, Costs, Lane, copied, play
from sidecar.demo.recording import bundled, whole

FREE = Costs(0, 0, 0, 0, 0, 0, 0)


@cache
def arrivals(copies: int = COPIES) -> list[tuple[int, int]]:
    """Twenty seconds of the log, so many times."""
    return copied(whole(bundled("noetl-rust-clean"), 20.0), copies)


def test_every_copy_of_an_execution_is_another_execution() -> None:
    single = whole(bundled("noetl-rust-clean"), 20.0)
    assert len({execution_id for _, execution_id in arrivals()}) == COPIES * len(single.executions)
    assert len(arrivals()) == COPIES * single.rows
    assert all(-(2**63) <= execution_id < 2**63 for _, execution_id in arrivals())


@pytest.mark.parametrize("count", [1, 3, 8])
def test_every_event_is_stored_by_exactly_one_shard_and_none_is_much_fuller(count: int) -> None:
    played = play(arrivals(), count, Costs(), sample=1)
    assert played.events == len(arrivals()) == sum(len(shard.lags) for shard in played.shards)
    assert min(lag for shard in played.shards for lag in shard.lags) >= 0
    assert played.imbalance < 1.2


def test_without_costs_an_event_waits_for_the_next_poll_only() -> None:
    played = play(arrivals(), 2, FREE, sample=1)
    assert played.lag(1.0) <= 150
    assert 60 < played.lag(0.5) < 90
    assert (played.postgres, played.late_s <= 0.15) == (0, True)


def test_what_does_not_fit_into_one_sidecar_fits_into_several() -> None:
    twice = arrivals(2 * COPIES)
    one, four = play(twice, 1, Costs()), play(twice, 4, Costs())
    assert not one.keeps_up
    assert four.keeps_up
    assert four.lag(0.99) < 1000 < one.lag(0.99)


def test_every_shard_looks_at_the_rows_of_all() -> None:
    """What Postgres does for the range of a poll grows with the count; what it hands over does not."""
    looking = replace(FREE, looked=1.0)
    by_count = [play(arrivals(), count, looking).postgres for count in (1, 4)]
    assert by_count[1] == pytest.approx(4 * by_count[0], rel=0.05)
    reading = replace(FREE, read=1.0)
    assert play(arrivals(), 4, reading).postgres == pytest.approx(
        play(arrivals(), 1, reading).postgres, rel=0.05
    )
    narrow = play(arrivals(), 4, looking, Lane(window=1.0))
    assert narrow.postgres < by_count[1] / 4
