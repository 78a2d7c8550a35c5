"""Single events: per-event populate, the follower's calls, the walk, the apply cursor.

Over every implementation.  Source: spec 2.3, 2.4, 6.1.
"""

from __future__ import annotations

import pytest

from sidecar.core.authority import Authoritative, GuardedRead, NotPopulated, Reason, Watermark
from sidecar.errors import Forked, GapAt, Invalid, NotHead
from tests.contract.backends import Backend, Contract
from tests.contract.events import E, chain
from tests.contract.test_populate import A, B, C, reason
from tests.support.changing import replace

FIRST, SECOND, THIRD = chain(A, B, C)
RESTART = replace(chain(77)[0], prev_event_id=None)
"""A second root, as a restart writes it."""


async def served(store: Contract) -> bool:
    return (await store.chain_if_authoritative(E)).events is not None


# Per event: append, then mark; or mark, then append


async def test_c06_the_head_is_enforced_through_populate(store: Contract) -> None:
    assert [await store.populate(event) for event in (FIRST, SECOND)] == [1, 2]
    with pytest.raises(NotHead) as caught:
        await store.populate(replace(THIRD, prev_event_id=A))
    assert (caught.value.expected, caught.value.got) == (B, A)
    assert await store.chain(E) == chain(A, B)


async def test_c11_i03_a_first_populate_that_fails_leaves_nothing(store: Contract) -> None:
    with pytest.raises(NotHead):
        await store.populate(SECOND)
    assert await store.authority(E) == NotPopulated()
    assert await store.chain_if_authoritative(E) == GuardedRead(None, Reason.NOT_POPULATED)
    assert await store.partition(E) is None


async def test_c12_a_first_populate_that_succeeds_claims_and_is_not_served(store: Contract) -> None:
    await store.populate(FIRST)
    assert await store.authority(E) == Authoritative(1, 1)
    assert await reason(store) is Reason.NO_COVERAGE


@pytest.mark.parametrize(
    "refused", [RESTART, replace(FIRST, prev_event_id=B)], ids=["not_head", "write_once"]
)
async def test_c13_i02_a_refusal_on_a_claim_leaves_the_marker_ahead(store: Contract, refused: object) -> None:
    await store.populate_from_log(E, chain(A, B))
    assert await served(store)
    with pytest.raises((NotHead, Invalid)):
        await store.populate(refused)  # type: ignore[arg-type]
    assert await store.authority(E) == Authoritative(1, 3)
    assert await reason(store) is Reason.WATERMARK_MISMATCH
    assert await store.chain(E) == chain(A, B)
    assert await store.populate(THIRD) == 3  # the partition is not wedged
    assert await store.authority(E) == Authoritative(1, 3)


async def test_c13_the_marker_survives_a_reopen(backend: Backend) -> None:
    async with backend.open() as store:
        await store.populate_from_log(E, chain(A, B))
        with pytest.raises(NotHead):
            await store.populate(RESTART)
    async with backend.open() as store:
        assert await store.authority(E) == Authoritative(1, 3)
        assert not await served(store)


async def test_i02_a_restart_after_six_covered_events(store: Contract) -> None:
    await store.populate_from_log(E, chain(*range(1, 7)))
    with pytest.raises(NotHead):
        await store.populate(RESTART)
    assert await store.authority(E) == Authoritative(1, 7)
    assert await store.chain_if_authoritative(E) == GuardedRead(None, Reason.WATERMARK_MISMATCH)
    assert await store.chain(E) == chain(*range(1, 7))


async def test_a_refusal_on_an_empty_execution_ends_its_true_negative(store: Contract) -> None:
    await store.populate_from_log(E, ())
    assert await served(store)
    with pytest.raises(NotHead):
        await store.populate(SECOND)
    assert await store.authority(E) == Authoritative(1, 1)
    assert await reason(store) is Reason.WATERMARK_MISMATCH


async def test_c15_fed_event_by_event_nothing_is_ever_served(store: Contract) -> None:
    for event in (FIRST, SECOND, THIRD):
        await store.populate(event)
        assert await reason(store) is Reason.NO_COVERAGE
    assert await store.authority(E) == Authoritative(1, 3)
    await store.populate_from_log(E, chain(A, B, C))
    assert (await store.chain_if_authoritative(E)).events == chain(A, B, C)


async def test_populate_keeps_where_the_marker_begins(backend: Backend, store: Contract) -> None:
    for event in (FIRST, SECOND):
        await store.append(event)
    backend.plant_watermark(E, 2, 2)
    await store.populate(THIRD)
    assert await store.authority(E) == Authoritative(2, 3)


async def test_a_bad_argument_moves_no_marker(store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    with pytest.raises(Invalid):
        await store.populate(replace(THIRD, event_id=2**63))
    with pytest.raises(Invalid):
        await store.populate_replicated(THIRD, 0)
    assert await served(store)


async def test_i01_the_third_event_alone_is_not_an_answer(store: Contract) -> None:
    await store.populate(replace(THIRD, prev_event_id=None))
    assert await store.authority(E) == Authoritative(1, 1)
    assert await reason(store) is Reason.NO_COVERAGE
    outcome = await store.populate_from_log(E, chain(A, B, C))
    assert outcome.label == "diverged"  # the edge that it had to invent is not the log's

    other = chain(A, B, C, execution_id=5)
    with pytest.raises(NotHead):
        await store.populate(other[2])
    assert (await store.populate_from_log(5, other)).label == "extended"
    partition = await store.partition(5)
    assert partition is not None
    assert partition.coverage is not None
    assert (await store.chain_if_authoritative(5)).events == other
    assert partition.coverage.root_event_id == A


async def test_i04_armed_in_the_middle_of_fifty_executions(store: Contract) -> None:
    refused = 0
    for e in range(50):
        try:
            await store.populate(chain(A, B, C, execution_id=e)[2])
        except NotHead:
            refused += 1
    assert refused == 50
    assert {(await store.authority(e)).label for e in range(50)} == {"not_populated"}


# Replicated


@pytest.mark.parametrize(("first", "second"), [(3, 1), (1, 3)], ids=["c07", "c08"])
async def test_c07_c08_the_replicated_marker_widens_both_ways(
    store: Contract, first: int, second: int
) -> None:
    events = dict(enumerate(chain(A, B, C), 1))
    await store.populate_replicated(events[first], first)
    assert await store.authority(E) == Authoritative(first, first)
    await store.populate_replicated(events[second], second)
    assert await store.authority(E) == Authoritative(1, 3)
    assert await reason(store) is Reason.NO_COVERAGE


async def test_the_marker_of_an_empty_execution_begins_with_its_first_event(store: Contract) -> None:
    for e in (1, 2):
        await store.populate_from_log(e, ())
    await store.populate_replicated(chain(A, B, execution_id=1)[1], 2)
    await store.populate(chain(A, execution_id=2)[0])
    assert [await store.authority(e) for e in (1, 2)] == [Authoritative(2, 2), Authoritative(1, 1)]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 1, 3)])
async def test_the_record_has_the_parent_of_the_first_row(store: Contract, order: tuple[int, ...]) -> None:
    parents = {1: 4, 2: 5, 3: None}
    for seq in order:
        event = replace(chain(A, B, C)[seq - 1], parent_execution_id=parents[seq])
        await store.apply_replicated(event, seq)
    partition = await store.partition(E)
    assert partition is not None
    assert partition.parent_execution_id == await store.parent_execution_of(E) == 4


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
async def test_a_terminal_event_is_remembered_whatever_comes_after(
    store: Contract, order: tuple[int, ...]
) -> None:
    events = {1: FIRST, 2: replace(SECOND, event_type="playbook.completed")}
    for seq in order:
        await store.apply_replicated(events[seq], seq)
    partition = await store.partition(E)
    assert partition is not None
    assert partition.terminal


async def test_c14_a_first_replicated_event_that_fails_claims_nothing(store: Contract) -> None:
    await store.append(FIRST)
    with pytest.raises(Forked):
        await store.populate_replicated(replace(FIRST, body="{}"), 1)
    assert await store.authority(E) == NotPopulated()


async def test_a_replicated_refusal_on_a_claim_leaves_the_wider_marker(store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    with pytest.raises(Forked):
        await store.populate_replicated(replace(FIRST, body="{}"), 4)
    assert await store.authority(E) == Authoritative(1, 4)
    assert await reason(store) is Reason.WATERMARK_MISMATCH
    assert await store.chain(E) == chain(A, B)


async def test_apply_moves_no_marker_and_no_coverage(store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    await store.apply_replicated(THIRD, 3)
    partition = await store.partition(E)
    assert partition is not None
    assert partition.watermark == Watermark(1, 2)
    assert partition.coverage is not None
    assert partition.coverage.total == 2
    assert await reason(store) is Reason.WATERMARK_MISMATCH


async def test_d02_replication_is_write_once(store: Contract) -> None:
    await store.apply_replicated(FIRST, 1)
    with pytest.raises(Forked):
        await store.apply_replicated(replace(FIRST, body='{"other":1}'), 1)
    assert await store.chain(E) == (FIRST,)


@pytest.mark.parametrize(
    ("came", "seq", "first", "second"),
    [
        (replace(SECOND, body="{}"), 2, B, B),
        (replace(SECOND, parent_execution_id=4), 2, B, B),
        (SECOND, 3, B, B),
        (chain(A, 77)[1], 2, B, 77),
    ],
    ids=["other body", "other parent", "other place", "place taken"],
)
async def test_d07_a_replicated_event_that_conflicts_is_forked(
    store: Contract, came: object, seq: int, first: int, second: int
) -> None:
    for place, event in enumerate((FIRST, SECOND), 1):
        await store.apply_replicated(event, place)
    before = await store.partition(E)
    with pytest.raises(Forked) as caught:
        await store.apply_replicated(came, seq)  # type: ignore[arg-type]
    assert (caught.value.prev, caught.value.first, caught.value.second) == (A, first, second)
    assert await store.chain(E) == (FIRST, SECOND)
    assert await store.partition(E) == before


async def test_d08_the_writer_is_strict_after_replication(store: Contract) -> None:
    await store.apply_replicated(SECOND, 2)
    for wrong in (FIRST, replace(THIRD, prev_event_id=A)):
        with pytest.raises(NotHead) as caught:
            await store.append(wrong)
        assert caught.value.expected == B
    assert await store.append(THIRD) == 3
    assert [row.origin for row in await store.stored_chain(E)] == ["replicated", "append"]


async def test_d09_identical_redelivery_changes_nothing(store: Contract) -> None:
    for place, event in enumerate((FIRST, SECOND), 1):
        await store.apply_replicated(event, place)
    before = await store.partition(E), await store.stored_chain(E)
    for place, event in enumerate((FIRST, SECOND), 1):
        await store.apply_replicated(event, place)
    assert (await store.partition(E), await store.stored_chain(E)) == before


async def test_the_head_of_a_replica_moves_only_forward(store: Contract) -> None:
    heads = []
    for seq in (2, 1, 3):
        await store.apply_replicated(chain(A, B, C)[seq - 1], seq)
        partition = await store.partition(E)
        assert partition is not None
        heads.append((partition.head_seq, partition.head_event_id))
    assert heads == [(2, B), (2, B), (3, C)]


@pytest.mark.parametrize("seq", [0, -1, 2**63, True, "1"])
async def test_a_place_that_is_no_sequence_is_invalid(store: Contract, seq: int) -> None:
    for call in (store.apply_replicated, store.populate_replicated):
        with pytest.raises(Invalid):
            await call(FIRST, seq)
    with pytest.raises(Invalid):
        await store.apply_replicated(replace(FIRST, event_id=""), 1)
    assert await store.partition(E) is None


# The walk


async def test_d04_a_gap_is_named(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B, C))
    backend.drop_event(E, 2)
    with pytest.raises(GapAt) as caught:
        await store.walk_from_head(E)
    assert (caught.value.execution_id, caught.value.missing) == (E, B)
    with pytest.raises(GapAt) as caught:
        await store.parent_of(THIRD)
    assert caught.value.missing == B
    assert not await store.chain_is_complete(E)


async def test_d04_a_missing_head_is_a_gap_too(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B, C))
    backend.drop_event(E, 3)
    with pytest.raises(GapAt) as caught:
        await store.walk_from_head(E)
    assert caught.value.missing == C
    assert not await store.chain_is_complete(E)


async def test_d04_the_walk_is_newest_first_and_ends_at_the_root(store: Contract) -> None:
    assert await store.walk_from_head(E) == ()
    await store.populate_from_log(E, chain(A, B, C))
    assert [row.event.event_id for row in await store.walk_from_head(E)] == [C, B, A]
    assert await store.parent_of(FIRST) is None
    parent = await store.parent_of(SECOND)
    assert parent is not None
    assert (parent.exec_seq, parent.event) == (1, FIRST)


async def test_a_circle_ends_the_walk(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    backend.drop_event(E, 1)
    backend.plant_event(1, replace(FIRST, prev_event_id=B))
    with pytest.raises(Invalid):
        await store.walk_from_head(E)
    assert not await store.chain_is_complete(E)


async def test_d05_a_gap_that_is_filled_is_complete(store: Contract) -> None:
    seen = []
    for seq in (1, 3, 2):
        await store.apply_replicated(chain(A, B, C)[seq - 1], seq)
        seen.append(await store.chain_is_complete(E))
    assert seen == [True, False, True]


async def test_d05_two_of_three_that_link_are_not_complete(store: Contract) -> None:
    """The span counts, not the number of rows."""
    await store.apply_replicated(FIRST, 1)
    await store.apply_replicated(SECOND, 3)
    assert len(await store.walk_from_head(E)) == len(await store.chain(E)) == 2
    assert not await store.chain_is_complete(E)


async def test_d06_a_prefix_is_complete_and_so_is_the_unknown(store: Contract) -> None:
    assert await store.chain_is_complete(E)
    for seq in (1, 2):
        await store.apply_replicated(chain(A, B, C)[seq - 1], seq)
        assert await store.chain_is_complete(E)


async def test_a_foreign_row_behind_the_head_is_not_complete(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    backend.plant_event(3, THIRD)
    assert not await store.chain_is_complete(E)


async def test_d10_the_parent_execution_is_one_hop(store: Contract) -> None:
    await store.populate_from_log(1, chain(A, execution_id=1))
    await store.populate_from_log(2, chain(A, execution_id=2, parent=1))
    await store.apply_replicated(chain(A, B, execution_id=3, parent=2)[1], 2)
    assert [await store.parent_execution_of(e) for e in (1, 2, 3, 4)] == [None, 1, 2, None]


async def test_get_is_by_both_ids(store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    row = await store.get(E, B)
    assert row is not None
    assert (row.exec_seq, row.event) == (2, SECOND)
    assert await store.get(E, C) is None
    assert await store.get(5, B) is None


# The apply cursor


async def test_a_cursor_that_was_never_set_is_0_for_each_shard(store: Contract) -> None:
    assert await store.advance_apply_cursor(1, 7) == 7
    assert [await store.load_apply_cursor(shard) for shard in (0, 1, 2)] == [0, 7, 0]


async def test_a_cursor_moves_only_forward(backend: Backend) -> None:
    async with backend.open() as store:
        answers = [await store.advance_apply_cursor(0, seq) for seq in (5, 5, 3, 9, 0)]
        assert answers == [5, 5, 5, 9, 9]
    async with backend.open() as store:
        assert await store.load_apply_cursor(0) == 9


@pytest.mark.parametrize(("shard", "seq"), [(-1, 1), (0, -1), (0, 2**63), (True, 1), (0, "1")])
async def test_a_cursor_takes_numbers_only(store: Contract, shard: int, seq: int) -> None:
    with pytest.raises(Invalid):
        await store.advance_apply_cursor(shard, seq)
    assert await store.load_apply_cursor(0) == 0
