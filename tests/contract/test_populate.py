"""populate_from_log, the guarded read, append and revoke, over every implementation."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.core.authority import (
    Authoritative,
    Coverage,
    GuardedRead,
    NotPopulated,
    Partition,
    Reason,
    Watermark,
    labelled,
)
from sidecar.core.due import Due
from sidecar.core.event import Event
from sidecar.core.populate import Diverged, InSync, LogRead, Outcome, Refused, StaleLog
from sidecar.core.ports import ExecutionLog
from sidecar.errors import Invalid, NotHead, StoreCorrupt, StoreError
from tests.contract.backends import Backend, Contract, ContractUnit
from tests.contract.events import E, chain, populated
from tests.support.changing import replace

A, B, C = 90, 10, 50
"""Link order is not id order."""


async def reason(store: Contract) -> Reason | None:
    return (await store.chain_if_authoritative(E)).reason


async def test_c01_never_populated_is_empty_but_not_answered(store: Contract) -> None:
    assert await store.chain(E) == ()
    assert await store.chain_if_authoritative(E) == GuardedRead(None, Reason.NOT_POPULATED)
    assert await store.authority(E) == NotPopulated()


async def test_c02_populated_is_authoritative_and_served_in_link_order(store: Contract) -> None:
    outcome = await store.populate_from_log(E, reversed(chain(A, B)))
    assert outcome == InSync(2, 2)
    assert outcome.label == "extended"
    assert await store.authority(E) == Authoritative(1, 2)
    assert await store.chain_if_authoritative(E) == GuardedRead(chain(A, B), None)


async def test_c03_empty_log_is_a_true_negative(store: Contract) -> None:
    assert await store.populate_from_log(E, ()) == InSync(0, 0)
    assert await store.chain_if_authoritative(E) == GuardedRead((), None)
    assert await store.authority(E) == Authoritative(0, 0)


async def test_c04_three_states_are_distinct(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(1, chain(A, execution_id=1))
    await store.populate_from_log(2, ())
    await store.populate_from_log(3, chain(A, execution_id=3))
    backend.plant_watermark(3, 1, 2)
    answers = [await store.chain_if_authoritative(e) for e in (1, 2, 3)]
    assert answers == [
        GuardedRead(chain(A, execution_id=1), None),
        GuardedRead((), None),
        GuardedRead(None, Reason.WATERMARK_MISMATCH),
    ]


async def test_c05_c18_watermark_ahead_of_the_rows_refuses(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(E, chain(A))
    backend.plant_watermark(E, 1, 2)
    assert await store.authority(E) == Authoritative(1, 2)
    assert await reason(store) is Reason.WATERMARK_MISMATCH
    assert await store.chain(E) == chain(A)


async def test_c09_survives_reopen(backend: Backend) -> None:
    async with backend.open() as store:
        await store.populate_from_log(E, chain(A, B))
        before = await store.partition(E)
    async with backend.open() as store:
        assert await store.partition(E) == before
        assert await store.chain_if_authoritative(E) == GuardedRead(chain(A, B), None)


async def test_c16_coverage_total_ahead_refuses(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    backend.plant_coverage(E, A, 3)
    assert await reason(store) is Reason.COVERAGE_TOTAL_MISMATCH


async def test_c17_coverage_of_another_root_refuses(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    backend.plant_coverage(E, B, 2)
    assert await reason(store) is Reason.COVERAGE_ROOT_MISMATCH


async def test_c19_idempotent_and_incremental(store: Contract) -> None:
    outcomes = [await store.populate_from_log(E, chain(*ids)) for ids in ((A, B), (A, B), (A, B, C))]
    assert outcomes == [InSync(2, 2), InSync(2, 0), InSync(3, 1)]
    assert [outcome.label for outcome in outcomes] == ["extended", "in_sync", "extended"]
    assert await store.chain_if_authoritative(E) == GuardedRead(chain(A, B, C), None)


async def test_c20_i21_conflict_withdraws_trust_and_keeps_the_evidence(
    backend: Backend, store: Contract
) -> None:
    await store.populate_from_log(E, chain(A, B, C))
    outcome = await store.populate_from_log(E, chain(A, 77, C))
    assert outcome == Diverged(1, "conflict", chain(A, B)[1], chain(A, 77)[1])
    assert await store.chain(E) == chain(A, B, C)
    assert await store.authority(E) == Authoritative(1, 3)
    assert await reason(store) is Reason.NO_COVERAGE
    async with backend.open_readonly() as other:
        assert (await other.chain_if_authoritative(E)).events is None


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("payload", {"body": '{"event_id":10,"x":1}'}),
        ("parent", {"parent_execution_id": 5}),
        ("payload", {"event_type": "other"}),
    ],
)
async def test_a_changed_row_under_known_ids_diverges(
    store: Contract, kind: str, changed: dict[str, object]
) -> None:
    await store.populate_from_log(E, chain(A, B))
    first, second = chain(A, B)
    outcome = await store.populate_from_log(E, (first, replace(second, **changed)))
    assert isinstance(outcome, Diverged)
    assert (outcome.position, outcome.kind) == (1, kind)
    assert await reason(store) is Reason.NO_COVERAGE


async def test_c21_labels_of_the_outcomes(store: Contract) -> None:
    labels = [
        (await store.populate_from_log(E, chain(*ids))).label
        for ids in ((A, B), (A, B), (A,), (A, C))
    ]  # fmt: skip
    assert labels == ["extended", "in_sync", "stale_log", "diverged"]


@pytest.mark.parametrize(
    "bad",
    [
        {"event_id": 2**63},
        {"event_id": "10"},
        {"event_id": True},
        {"prev_event_id": -(2**63) - 1},
        {"parent_execution_id": 1.0},
        {"execution_id": E + 1},
        {"body": "a\ud800b"},
        {"event_type": "\udfff"},
    ],
)
async def test_c22_a_bad_event_in_the_middle_writes_nothing(store: Contract, bad: dict[str, object]) -> None:
    first, second, third = chain(A, B, C)
    with pytest.raises(Invalid, match=rf"{next(iter(bad))}|belongs to"):
        await store.populate_from_log(E, (first, replace(second, **bad), third))
    assert await store.chain(E) == ()
    assert await store.authority(E) == NotPopulated()


@pytest.mark.parametrize("execution_id", [2**63, -(2**63) - 1, True, "7"])
async def test_c22_a_bad_execution_id_is_refused(store: Contract, execution_id: int) -> None:
    with pytest.raises(Invalid):
        await store.populate_from_log(execution_id, ())
    with pytest.raises(Invalid):
        await store.revoke(execution_id, "x")


async def test_c23_i23_a_stale_snapshot_changes_nothing(store: Contract) -> None:
    await store.populate_from_log(E, chain(1, 2, 3, 4, 5))
    before = await store.partition(E)
    assert await store.populate_from_log(E, chain(1, 2)) == StaleLog(5, 2)
    assert await store.partition(E) == before  # C25: coverage too
    assert await store.chain_if_authoritative(E) == GuardedRead(chain(1, 2, 3, 4, 5), None)


async def test_c24_i22_a_shorter_log_that_conflicts_diverges(store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B, C))
    assert (await store.populate_from_log(E, chain(A, 77))).label == "diverged"
    assert await reason(store) is Reason.NO_COVERAGE


async def test_c26_i24_coverage_ahead_under_the_same_root_stays(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(E, chain(1, 2, 3))
    backend.plant_coverage(E, 1, 9)
    assert await store.populate_from_log(E, chain(1, 2, 3, 4)) == InSync(4, 1)
    partition = await store.partition(E)
    assert partition is not None
    assert partition.coverage == Coverage(1, 9)
    assert await reason(store) is Reason.COVERAGE_TOTAL_MISMATCH


async def test_c27_i25_an_empty_log_over_stored_rows_is_an_open_question(store: Contract) -> None:
    await store.populate_from_log(E, chain(1, 2, 3, 4, 5))
    before = await store.partition(E)
    assert await store.populate_from_log(E, ()) == StaleLog(5, 0)
    assert await store.partition(E) == before


async def test_row_2b_a_delivered_execution_with_an_empty_log_was_pruned(store: Contract) -> None:

    async def seen(unit: ContractUnit) -> None:
        unit.put_partition(Partition(E, first_seen_at=store.clock.now()))

    await store.transact(seen)
    assert await store.populate_from_log(E, ()) == Refused("log_pruned")
    assert await reason(store) is Reason.NOT_POPULATED


async def test_c28_a_clean_populate_after_a_conflict_serves_again(store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    await store.populate_from_log(E, chain(A, C))
    assert await store.populate_from_log(E, chain(A, B)) == InSync(2, 0)
    assert await store.chain_if_authoritative(E) == GuardedRead(chain(A, B), None)


async def test_c29_revoked_until_populated_from_a_younger_read(store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    older = LogRead(store.clock.now())
    assert await store.revoke(E, "second_writer")
    partition = await store.partition(E)
    assert partition is not None
    assert (partition.coverage, partition.revoked_reason) == (None, "second_writer")
    assert partition.watermark == Watermark(1, 2)
    assert await reason(store) is Reason.NO_COVERAGE

    old = await populated(store, chain(A, B, C), older)
    assert (old.outcome, old.written) == (InSync(3, 1), False)
    assert await store.partition(E) == partition
    assert await store.chain(E) == chain(A, B)

    new = await populated(store, chain(A, B, C))
    assert (new.written, new.cleared_bar) == (True, True)
    assert await store.chain_if_authoritative(E) == GuardedRead(chain(A, B, C), None)


async def test_an_older_read_that_conflicts_with_a_revoked_partition_writes_nothing(
    store: Contract,
) -> None:
    older = LogRead(store.clock.now())
    await store.populate_from_log(E, chain(A, B))
    await store.revoke(E, "x")
    before = await store.partition(E)
    answer = await populated(store, chain(A, C), older)
    assert (answer.outcome.label, answer.written) == ("diverged", False)
    assert await store.partition(E) == before


async def test_a_label_refuses_older_reads_by_its_name_and_younger_ones_clear_it(store: Contract) -> None:

    older = LogRead(store.clock.now())
    await store.populate_from_log(E, chain(A, B))

    async def label(unit: ContractUnit) -> None:
        partition = (await unit.partitions((E,)))[E]
        unit.put_partition(labelled(partition, "fork", store.clock.now()))

    await store.transact(label)
    answer = await populated(store, chain(A, B, C), older)
    assert (answer.outcome, answer.written) == (Refused("fork"), False)
    assert (await populated(store, chain(A, B, C))).cleared_bar
    assert (await store.chain_if_authoritative(E)).events == chain(A, B, C)


async def test_revoking_the_unknown_writes_nothing(store: Contract) -> None:
    assert not await store.revoke(E, "x")
    assert await store.partition(E) is None


@pytest.mark.parametrize(
    ("label", "events"),
    [
        ("multiple_roots", (*chain(A), *chain(B))),
        ("fork", (*chain(A, B), *chain(A, C)[1:])),
        ("dangling_prev", chain(A, B)[1:]),
        ("duplicate_event", (*chain(A), *chain(A))),
    ],
)
async def test_row_1_a_refused_order_changes_nothing(
    store: Contract, label: str, events: tuple[Event, ...]
) -> None:
    await store.populate_from_log(E, chain(1, 2))
    before = await store.partition(E)
    assert await store.populate_from_log(E, events) == Refused(label)
    assert await store.partition(E) == before
    assert (await store.chain_if_authoritative(E)).events == chain(1, 2)


async def test_row_10_a_hole_is_a_store_gap_not_a_divergence(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(E, chain(1, 2, 3, 4))
    backend.drop_event(E, 2)
    assert await store.populate_from_log(E, chain(1, 2, 3, 4)) == Refused("store_gap")
    backend.plant_coverage(E, 1, 3)
    assert await reason(store) is Reason.CHAIN_GAP


async def test_i02_an_edge_changed_in_the_store_is_not_served(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(E, chain(1, 2, 3))
    backend.drop_event(E, 3)
    backend.plant_event(3, replace(chain(1, 2, 3)[2], prev_event_id=1))
    assert await reason(store) is Reason.CHAIN_GAP


async def test_absent_names_the_stored_rows_that_the_read_lacks(store: Contract) -> None:
    await store.populate_from_log(E, chain(1, 2, 3, 4))
    answer = await populated(store, chain(1, 2))
    assert [(row.exec_seq, row.event.event_id) for row in answer.absent] == [(3, 3), (4, 4)]


async def test_a_foreign_row_has_no_origin_and_does_not_move_the_head(
    backend: Backend, store: Contract
) -> None:
    await store.populate_from_log(E, chain(1, 2))
    backend.plant_event(3, chain(1, 2, 3)[2])
    assert [row.origin for row in await store.stored_chain(E)] == ["log", "log", None]
    assert await store.populate_from_log(E, chain(1, 2)) == StaleLog(3, 2)
    assert await reason(store) is Reason.COVERAGE_TOTAL_MISMATCH


async def test_a_truncated_log_is_not_populated(store: Contract) -> None:
    logs = (
        ExecutionLog(1, None, LogRead(store.clock.now())),
        ExecutionLog(2, chain(A, execution_id=2), LogRead(store.clock.now())),
    )
    assert set(await store.transact(lambda unit: unit.populate(logs))) == {2}
    assert await store.authority(1) == NotPopulated()


async def test_rows_held_back_refuse_every_reader_but_the_comparator(store: Contract) -> None:
    await store.populate_from_log(E, chain(1, 2))

    async def hold(unit: ContractUnit) -> tuple[GuardedRead, GuardedRead]:
        unit.put_partition(replace((await unit.partitions((E,)))[E], held=1))
        return await unit.guarded_read(E), await unit.guarded_read(E, ignore_held=True)

    theirs, own = await store.transact(hold)
    assert (theirs.reason, own.events) == (Reason.ROWS_HELD_BACK, chain(1, 2))
    assert await reason(store) is Reason.ROWS_HELD_BACK


@pytest.mark.parametrize("flag", ["reread", "changed"])
async def test_a_flag_that_waits_for_a_read_refuses_too(store: Contract, flag: str) -> None:

    await store.populate_from_log(E, chain(1, 2))

    async def put(unit: ContractUnit, due: Due) -> Reason | None:
        unit.put_due(due)
        return (await unit.guarded_read(E)).reason

    flagged = Due(E, 1, reread=5) if flag == "reread" else Due(E, 1, changed=5)
    assert await store.transact(lambda unit: put(unit, flagged)) is Reason.ROWS_HELD_BACK
    assert await reason(store) is Reason.ROWS_HELD_BACK
    assert await store.transact(lambda unit: put(unit, Due(E, due_at=1, labelled=5))) is None
    assert await reason(store) is None


# Append


async def test_c06_append_enforces_the_head(store: Contract) -> None:
    first, second, third = chain(A, B, C)
    assert await store.append(first) == 1
    assert await store.append(second) == 2
    for wrong in (first, replace(third, prev_event_id=None), replace(third, prev_event_id=A)):
        with pytest.raises(NotHead) as caught:
            await store.append(wrong)
        assert (caught.value.expected, caught.value.got) == (B, wrong.prev_event_id)
    assert await store.append(third) == 3
    assert await store.chain(E) == chain(A, B, C)


async def test_append_to_an_empty_partition_wants_a_root(store: Contract) -> None:
    with pytest.raises(NotHead):
        await store.append(chain(A, B)[1])
    assert await store.partition(E) is None


async def test_append_claims_nothing(store: Contract) -> None:
    await store.append(chain(A)[0])
    assert await store.authority(E) == NotPopulated()
    await store.populate_from_log(E, chain(A))
    await store.append(chain(A, B)[1])
    partition = await store.partition(E)
    assert partition is not None
    assert (partition.watermark, partition.coverage, partition.head_seq) == (
        Watermark(1, 1),
        Coverage(A, 1),
        2,
    )
    assert await reason(store) is Reason.WATERMARK_MISMATCH
    assert [row.origin for row in await store.stored_chain(E)] == ["append", "append"]


async def test_append_forgets_the_anchor_of_the_old_head(store: Contract) -> None:
    read = LogRead(store.clock.now(), epoch="e", anchor=77)
    await store.populate_from_log(E, chain(A), read=read)
    before = await store.partition(E)
    assert before is not None
    assert (before.head_epoch, before.head_anchor) == ("e", 77)
    await store.append(chain(A, B)[1])
    after = await store.partition(E)
    assert after is not None
    assert (after.head_epoch, after.head_anchor) == (None, None)


async def test_d01_a_duplicate_id_with_the_right_predecessor_is_refused(store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    before = await store.partition(E)
    with pytest.raises(Invalid, match="write-once"):
        await store.append(replace(chain(A)[0], prev_event_id=B, body='{"other":1}'))
    assert await store.partition(E) == before
    assert await store.chain(E) == chain(A, B)


async def test_append_refuses_a_place_that_somebody_took(backend: Backend, store: Contract) -> None:
    await store.append(chain(A)[0])
    backend.plant_event(2, chain(A, 77)[1])
    with pytest.raises(Invalid, match="write-once"):
        await store.append(chain(A, B)[1])
    assert [event.event_id for event in await store.chain(E)] == [A, 77]


# One hold


class Race:
    """A log that grows, its feed, and comparisons of a read of it with the store."""

    def __init__(self, store: Contract) -> None:
        self.store = store
        self.length = 1
        self.compared = 0
        self.overtaken = 0
        self.disagreed = 0

    def log(self) -> ExecutionLog:
        return ExecutionLog(E, chain(*range(1, self.length + 1)), LogRead(self.store.clock.now()))

    async def grow(self) -> None:
        self.length += 1
        log = self.log()
        await self.store.transact(lambda unit: unit.populate((log,)))

    def compare(self, log: ExecutionLog, outcome: Outcome, answer: GuardedRead) -> None:
        if outcome.label == "stale_log":
            self.overtaken += 1
            return
        self.compared += 1
        assert log.events is not None
        if answer.events is None or len(answer.events) != len(log.events):
            self.disagreed += 1

    async def in_one_hold(self, *, slow: bool = False) -> None:
        log = self.log()
        if slow:
            await asyncio.sleep(0)  # what grows now overtakes this read

        async def work(unit: ContractUnit) -> tuple[Outcome, GuardedRead]:
            outcome = (await unit.populate((log,)))[E].outcome
            return outcome, await unit.guarded_read(E, ignore_held=True)

        self.compare(log, *await self.store.transact(work))

    async def in_two_holds(self) -> None:
        log = self.log()
        populated = (await self.store.transact(lambda unit: unit.populate((log,))))[E]
        answer = await self.store.transact(lambda unit: unit.guarded_read(E, ignore_held=True))
        self.compare(log, populated.outcome, answer)


async def test_i20_two_holds_disagree(store: Contract) -> None:
    race = Race(store)
    for _ in range(30):
        await asyncio.gather(race.in_two_holds(), race.grow())
    assert race.disagreed > 0


async def test_i20_one_hold_never_disagrees_in_2000(store: Contract) -> None:
    race = Race(store)
    # A transaction over several servers takes a hundred times as long as one in a file.
    wanted = 2000 if getattr(store, "path", True) is not None else 400
    while race.compared < wanted:
        reads = [race.in_one_hold(slow=turn % 10 == 0) for turn in range(60)]
        await asyncio.gather(*reads[:30], race.grow(), *reads[30:])
    assert race.overtaken > wanted // 20  # the reads did race the feed
    assert race.disagreed == 0


# Failures


async def test_i05_an_unreadable_head_is_a_failure_never_absent(backend: Backend, store: Contract) -> None:
    await store.populate_from_log(E, chain(A, B))
    backend.break_head()
    for call in (
        store.authority(E),
        store.chain_if_authoritative(E),
        store.append(chain(A, B, C)[2]),
        store.populate_from_log(E, chain(A, B, C)),
        store.revoke(E, "x"),
    ):
        with pytest.raises(StoreError):
            await call
    assert await store.chain(E) == chain(A, B)


@pytest.mark.parametrize("half", [(1, None), (None, 2), (-1, 2)])
async def test_row_2_a_malformed_watermark_is_damage(
    backend: Backend, store: Contract, half: tuple[int | None, int | None]
) -> None:
    await store.populate_from_log(E, chain(A, B))
    backend.plant_watermark(E, *half)
    for call in (
        store.authority(E),
        store.chain_if_authoritative(E),
        store.populate_from_log(E, chain(A, B)),
    ):
        with pytest.raises(StoreCorrupt):
            await call


@pytest.mark.parametrize("half", [(A, None), (A, -1)])
async def test_row_5_a_malformed_coverage_is_damage(
    backend: Backend, store: Contract, half: tuple[int | None, int | None]
) -> None:
    await store.populate_from_log(E, chain(A, B))
    backend.plant_coverage(E, *half)
    with pytest.raises(StoreCorrupt):
        await store.chain_if_authoritative(E)


async def test_i06_a_torn_append_can_be_repaired_by_populate(backend: Backend) -> None:
    async with backend.open() as store:
        await store.append(chain(A)[0])
        backend.plant_event(2, chain(A, B)[1])  # the event is there, the head is not
    async with backend.open() as store:
        assert await store.populate_from_log(E, chain(A, B, C)) == InSync(3, 1)
        assert await store.chain_if_authoritative(E) == GuardedRead(chain(A, B, C), None)
        assert await store.append(chain(A, B, C, 99)[3]) == 4
