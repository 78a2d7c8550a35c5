"""Steps 1, 3 and 4 of the feed: each condition of extending has a test that fails without it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from sidecar.core.authority import (
    Coverage,
    Partition,
    StoredEvent,
    Watermark,
    guarded_read,
    labelled,
    revoked,
)
from sidecar.core.event import Event
from sidecar.core.horizon import TailRow
from sidecar.core.intake import Admitted, Advance, Pool, admit, advance, extended
from tests.support.changing import replace
from tests.unit.core.build import EPOCH, OLD_EPOCH, E, by_id, chain, covered, ev, placed, pool_of, tail

STORED = chain(10, 30)
NEXT, AFTER = ev(20, 30), ev(40, 20)


def step(
    pool: Pool,
    partition: Partition | None = None,
    stored: Iterable[StoredEvent] | None = None,
    **changes: Any,
) -> Advance:
    """`advance` for a served partition of two rows, with `changes` to its arguments."""
    rows = placed(STORED) if stored is None else tuple(stored)
    facts: dict[str, Any] = {
        "stored_rows": len(rows),
        "max_seq": len(rows),
        "epoch": EPOCH,
        "reread": False,
        "read_limit": 100,
        **changes,
    }
    return advance(covered(STORED) if partition is None else partition, pool, by_id(rows), **facts)


def ids(rows: Iterable[TailRow]) -> list[int]:
    return [row.event.event_id for row in rows]


def refused(pool: Pool, partition: Partition | None = None, **changes: Any) -> Advance:
    """The step, proved to extend nothing and to keep the pool."""
    done = step(pool, partition, **changes)
    assert done.run == ()
    assert done.label is None
    assert ids(done.left) == list(pool)
    return done


# -- step 1


def test_step_1_stored_rows_are_dropped_changed_ones_named_and_new_ones_kept() -> None:
    new, same, other = tail(NEXT), tail(STORED[0]), tail(replace(STORED[1], body="{}"))
    admitted = admit(covered(STORED), [new, same, other], by_id(placed(STORED)))
    assert admitted == Admitted(fresh=(new,), changed=(other,), confirmed_head=None)


def test_step_1_the_head_seen_again_unchanged_is_confirmed() -> None:
    head = tail(STORED[1], epoch="epoch-2", anchor=900)
    admitted = admit(covered(STORED), [head, tail(STORED[0])], by_id(placed(STORED)))
    assert admitted == Admitted((), (), head)


def test_step_1_a_changed_head_confirms_nothing() -> None:
    head = tail(replace(STORED[1], body="{}"))
    assert admit(covered(STORED), [head], by_id(placed(STORED))).confirmed_head is None


@pytest.mark.parametrize("field", ["prev_event_id", "parent_execution_id", "body", "event_type"])
def test_step_1_any_field_makes_a_stored_row_changed(field: str) -> None:
    value: Any = "x" if field in ("body", "event_type") else 99
    row = tail(replace(STORED[0], **{field: value}))
    assert admit(covered(STORED), [row], by_id(placed(STORED))).changed == (row,)


# -- step 3


def test_step_3_c_a_second_root_is_a_label_at_once() -> None:
    done = step(pool_of(ev(99)))
    assert (done.label, done.run) == ("multiple_roots", ())
    assert ids(done.left) == [99]


def test_step_3_a_second_root_beside_a_single_stored_one() -> None:
    done = step(pool_of(ev(99)), covered(STORED[:1]), placed(STORED[:1]))
    assert done.label == "multiple_roots"


def test_step_3_the_first_root_is_none_while_nothing_is_stored() -> None:
    assert step(pool_of(ev(99)), Partition(E), ()).label is None


def test_step_3_a_successor_of_an_inner_row_is_a_fork() -> None:
    done = step(pool_of(ev(99, 10)))
    assert (done.label, done.run) == ("fork", ())
    assert ids(done.left) == [99]


def test_step_3_the_first_successor_of_the_head_is_no_fork() -> None:
    assert step(pool_of(NEXT)).label is None


@pytest.mark.parametrize("prev", [30, 77])
def test_step_3_two_pooled_successors_of_one_row_are_a_fork(prev: int) -> None:
    assert step(pool_of(ev(98, prev), ev(99, prev))).label == "fork"


def test_step_3_two_pooled_successors_are_a_fork_when_nothing_is_stored() -> None:
    done = step(pool_of(ev(98, 77), ev(99, 77)), Partition(E), ())
    assert (done.label, done.wants_read) == ("fork", False)


@pytest.mark.parametrize(
    "partition",
    [
        covered(STORED, coverage=None),
        covered(STORED, watermark=None),
        covered(STORED, head_epoch=OLD_EPOCH),
        revoked(covered(STORED), "divergent", 5),
    ],
)
@pytest.mark.parametrize(("row", "label"), [(ev(99), "multiple_roots"), (ev(99, 10), "fork")])
def test_step_3_labels_whatever_step_4_allows(partition: Partition, row: Event, label: str) -> None:
    assert step(pool_of(row), partition, reread=True).label == label


def test_step_3_the_order_of_arrival_does_not_choose_the_label() -> None:
    rows = (ev(99), ev(98, 10), NEXT)
    for arrival in itertools.permutations(rows):
        assert step(pool_of(*arrival)).label == "multiple_roots"


def test_step_3_a_label_comes_before_a_conflict() -> None:
    done = step(pool_of(ev(99)), stored_rows=9)
    assert (done.label, done.conflict) == ("multiple_roots", False)


# -- step 4


def test_step_4_the_run_is_taken_from_the_head_and_the_rest_waits() -> None:
    pool = pool_of(AFTER, ev(60, 50), NEXT)
    done = step(pool)
    assert done == Advance(run=(pool[20], pool[40]), left=(pool[60],))


def test_step_4_the_order_of_arrival_does_not_matter() -> None:
    rows = (NEXT, AFTER, ev(50, 40), ev(70, 60))
    for arrival in itertools.permutations(rows):
        done = step(pool_of(*arrival))
        assert (ids(done.run), ids(done.left)) == ([20, 40, 50], [70])


def test_step_4_an_empty_pool_is_nothing_to_do() -> None:
    assert step({}) == Advance()


def test_step_4_without_a_row_at_the_head_everything_waits() -> None:
    assert refused(pool_of(AFTER)) == Advance(left=tuple(pool_of(AFTER).values()))


def test_step_4_condition_watermark_exists() -> None:
    refused(pool_of(NEXT), covered(STORED, watermark=None))


@pytest.mark.parametrize("through", [1, 3])
def test_step_4_condition_watermark_is_at_the_head(through: int) -> None:
    refused(pool_of(NEXT), covered(STORED, watermark=Watermark(1, through)))


def test_step_4_condition_coverage_exists() -> None:
    refused(pool_of(NEXT), covered(STORED, coverage=None))


@pytest.mark.parametrize("total", [1, 3])
def test_step_4_condition_coverage_total_is_at_the_head(total: int) -> None:
    refused(pool_of(NEXT), covered(STORED, coverage=Coverage(10, total)))


@pytest.mark.parametrize(("stored_rows", "max_seq"), [(1, 2), (3, 2), (2, 1), (2, 3), (3, 3), (1, 1)])
def test_step_4_condition_the_counts_agree_or_it_is_a_conflict(stored_rows: int, max_seq: int) -> None:
    assert refused(pool_of(NEXT), stored_rows=stored_rows, max_seq=max_seq).conflict


def test_step_4_no_conflict_is_named_while_nothing_would_be_appended() -> None:
    assert not refused(pool_of(AFTER), stored_rows=9).conflict


def test_step_4_condition_not_revoked_though_coverage_stands() -> None:
    done = refused(pool_of(NEXT), covered(STORED, revoked_at=5))
    assert done == Advance(left=done.left)


def test_step_4_condition_no_label_though_coverage_stands() -> None:
    done = refused(pool_of(NEXT), covered(STORED, label="fork"))
    assert done == Advance(left=done.left)


@pytest.mark.parametrize(
    "partition", [revoked(covered(STORED), "x", 5), labelled(covered(STORED), "fork", 5)]
)
def test_step_4_a_revoked_partition_is_no_conflict_of_counts(partition: Partition) -> None:
    assert not refused(pool_of(NEXT), partition, stored_rows=9).conflict


def test_step_4_condition_no_reread_is_owed() -> None:
    assert not refused(pool_of(NEXT), reread=True).wants_read


@pytest.mark.parametrize("head_epoch", [OLD_EPOCH, None])
def test_step_4_condition_the_head_was_confirmed_in_this_epoch(head_epoch: str | None) -> None:
    done = refused(pool_of(NEXT), covered(STORED, head_epoch=head_epoch))
    assert done.wants_read
    assert not done.conflict


def test_step_4_condition_the_epoch_is_known() -> None:
    assert refused(pool_of(NEXT), covered(STORED, head_epoch=None), epoch=None).wants_read


def test_step_4_a_row_of_an_ended_epoch_does_not_extend() -> None:
    pool = {**pool_of(NEXT), **pool_of(AFTER, epoch=OLD_EPOCH), **pool_of(ev(50, 40))}
    done = step(pool)
    assert (ids(done.run), ids(done.left), done.wants_read) == ([20], [40, 50], True)


@pytest.mark.parametrize(("limit", "taken"), [(5, 2), (4, 1), (3, 0), (2, 0), (1, 0)])
def test_step_4_stops_one_row_below_the_read_limit(limit: int, taken: int) -> None:
    done = step(pool_of(AFTER, NEXT), read_limit=limit)
    assert ids(done.run) == [20, 40][:taken]
    assert sorted(ids(done.left)) == [20, 40][taken:]
    assert not done.wants_read


def test_step_4_a_cycle_behind_the_head_ends() -> None:
    """The head's own id in the pool: a caller's mistake that must not hang."""
    done = step(pool_of(NEXT, ev(30, 20)))
    assert ids(done.run) == [20, 30]


def test_step_4_an_empty_covered_partition_is_read_and_not_extended() -> None:
    done = step(pool_of(ev(10)), covered(()), ())
    assert (done.run, done.wants_read) == ((), True)


# -- step 6


@pytest.mark.parametrize(
    ("pool", "fills"),
    [
        (pool_of(ev(15, 14)), False),
        (pool_of(ev(15, 14), ev(17, 16)), False),
        (pool_of(ev(15, 14), ev(14, 13)), True),
        (pool_of(ev(15, 14), ev(10)), True),
    ],
)
def test_step_6_the_log_is_read_again_only_when_a_row_fills_a_gap(pool: Pool, fills: bool) -> None:
    done = step(pool, Partition(E), ())
    assert (done.run, done.label, done.wants_read) == ((), None, fills)
    assert done.left == tuple(pool.values())


# -- extended


def test_extended_moves_head_watermark_and_coverage_by_the_run() -> None:
    before = covered(STORED, held=3, rows_seen=9)
    run = (tail(NEXT, anchor=600), tail(AFTER, epoch="epoch-2", anchor=700))
    after = extended(before, run, 44)
    assert after == replace(
        before,
        head_seq=4,
        head_event_id=40,
        watermark=Watermark(1, 4),
        coverage=Coverage(10, 4),
        head_anchor=700,
        head_epoch="epoch-2",
        last_change_at=44,
    )
    assert guarded_read(after, placed((*STORED, NEXT, AFTER)), held_back=False).events is not None


def test_extended_creates_no_coverage_no_watermark_and_clears_no_revocation() -> None:
    before = covered(STORED, coverage=None, watermark=None, revoked_at=5, revoked_reason="x", label="fork")
    after = extended(before, (tail(NEXT),), 44)
    assert (after.coverage, after.watermark) == (None, None)
    assert (after.revoked_at, after.revoked_reason, after.label) == (5, "x", "fork")


def test_extended_notes_a_terminal_event_anywhere_in_the_run() -> None:
    end = tail(ev(20, 30, kind="execution.failed"))
    assert extended(covered(STORED), (end, tail(AFTER)), 1).terminal
    assert not extended(covered(STORED), (tail(NEXT),), 1).terminal
    assert extended(covered(STORED, terminal=True), (tail(NEXT),), 1).terminal
