"""Which shard an execution falls to is the same in Postgres and in Python."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.shards import Shard, hashint8extended, shard_of
from tests.support.databases import Database

HOSTILE = sorted(
    {
        near + step
        for near in (0, 2**31, -(2**31), 2**32, -(2**32), 2**33, 2**53, -(2**53), 2**62, -(2**62))
        for step in range(-3, 4)
    }
    | {ID_MIN, ID_MIN + 1, ID_MAX - 1, ID_MAX, (2**31 - 1) << 32, -1 << 32, 0x00000001_FFFFFFFF}
)
IDS = st.one_of(st.integers(ID_MIN, ID_MAX), st.sampled_from(HOSTILE), st.integers(-(2**34), 2**34))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(IDS, min_size=1, max_size=200), count=st.one_of(st.integers(2, 7), st.just(1024)))
@example(ids=HOSTILE, count=3)
async def test_postgres_and_python_agree_on_every_shard(pg: Database, ids: list[int], count: int) -> None:
    """The numbers, and the condition that stands in every statement: each id falls to exactly one shard."""
    conn = await pg.connect()
    sql = "select i.id, hashint8extended(i.id, 0) from unnest($1::bigint[]) as i(id)"
    hashed = {row[0]: row[1] for row in await conn.fetch(sql, ids)}
    assert hashed == {each: hashint8extended(each) for each in ids}
    claimed: dict[int, list[int]] = {each: [] for each in ids}
    for index in sorted({shard_of(each, count) for each in ids} | {0, count - 1}):
        shard = Shard(index, count)
        mine = "select distinct i.id from unnest($1::bigint[]) as i(id) where true" + shard.filter_sql("i.id")
        found = {row[0] for row in await conn.fetch(mine, ids)}
        assert found == {each for each in ids if shard.owns(each)}
        for each in found:
            claimed[each].append(index)
    await conn.close()
    assert claimed == {each: [shard_of(each, count)] for each in ids}
