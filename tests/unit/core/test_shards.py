"""The shard of an execution, without a server: numbers that PostgreSQL gave, and what they are used for."""

from __future__ import annotations

from collections import Counter

import pytest

from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.shards import Shard, hashint8extended, shard_of
from sidecar.errors import InvariantError

GIVEN = {
    0: 4154612158245552303,
    1: -3670598878359251130,
    -1: -1888257769727981238,
    -2: 495194309054116481,
    2**32: -3670598878359251130,
    5_000_000_000_000: -2913530835746903490,
    ID_MAX: 1977219185673256887,
    ID_MIN: -9109110466470504941,
}


def test_the_hash_is_postgres_s() -> None:
    assert {value: hashint8extended(value) for value in GIVEN} == GIVEN


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1024])
def test_every_execution_has_exactly_one_owner(count: int) -> None:
    shards = [Shard(index, count) for index in range(count)]
    for execution_id in (*GIVEN, *range(-50, 50)):
        (owner,) = [shard for shard in shards if shard.owns(execution_id)]
        assert owner.index == shard_of(execution_id, count)


@pytest.mark.parametrize("step", [1, 2**12, 2**22, 2**23], ids=lambda step: f"step_{step}")
def test_ids_that_were_minted_one_after_the_other_are_spread_evenly(step: int) -> None:
    """By machine, by millisecond of either layout of an id: no shard has more than a tenth above its part."""
    base = 319_000_000_000_000_000
    for count in (2, 3, 8):
        loads = Counter(shard_of(base + n * step, count) for n in range(20_000))
        assert set(loads) == set(range(count))
        assert max(loads.values()) <= 1.1 * 20_000 / count


def test_a_single_shard_adds_no_condition() -> None:
    assert Shard().filter_sql("l.execution_id") == ""
    assert "hashint8extended(l.execution_id, 0) % 3" in Shard(2, 3).filter_sql("l.execution_id")


@pytest.mark.parametrize(("index", "count"), [(1, 1), (-1, 2), (0, 0), (3, 3)])
def test_a_shard_that_is_none_is_refused(index: int, count: int) -> None:
    with pytest.raises(InvariantError):
        Shard(index, count)
