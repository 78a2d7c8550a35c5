"""populate_from_log: every row of its table, what each writes, and when a read is too old."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.authority import Coverage, Partition, Reason, Watermark, guarded_read, labelled, revoked
from sidecar.core.event import Event
from sidecar.core.links import Ordered, order_by_links
from sidecar.core.populate import (
    Diverged,
    InSync,
    LogRead,
    Outcome,
    Refused,
    StaleLog,
    difference,
    may_write,
    plan,
    populated,
)
from tests.support.changing import replace
from tests.unit.core.build import EPOCH, E, chain, covered, ev, placed

A, B, C, D = chain(10, 30, 20, 40)
READ = LogRead(began_at=1_000, epoch=EPOCH, anchor=777)


def after(
    partition: Partition, stored: Sequence[Event], log: Sequence[Event], read: LogRead = READ
) -> tuple[Outcome, Partition]:
    outcome = plan(stored, order_by_links(log), delivered=partition.first_seen_at is not None)
    return outcome, populated(partition, outcome, log, read)


# -- the table, row by row


@pytest.mark.parametrize(
    ("log", "label"),
    [
        ([A, ev(99)], "multiple_roots"),
        ([B], "dangling_prev"),
        ([ev(1, 1)], "no_root"),
        ([A, B, ev(31, 10)], "fork"),
        ([A, ev(2, 2)], "unreachable"),
        ([A, A], "duplicate_event"),
    ],
)
@pytest.mark.parametrize("stored", [(), (A,), (A, B)])
def test_row_1_a_refused_order_writes_and_withdraws_nothing(
    log: list[Event], label: str, stored: tuple[Event, ...]
) -> None:
    partition = covered(stored)
    outcome, then = after(partition, stored, log)
    assert outcome == Refused(label)
    assert then is partition


def test_row_1_is_decided_before_a_gap() -> None:
    assert plan([A], order_by_links([B]), gap=True) == Refused("dangling_prev")


def test_row_2_c03_an_empty_log_never_delivered_is_authoritative_and_empty() -> None:
    outcome, then = after(Partition(E), (), ())
    assert outcome == InSync(0, 0)
    assert outcome.label == "in_sync"
    assert (then.watermark, then.coverage) == (Watermark(0, 0), Coverage(None, 0))
    assert guarded_read(then, (), held_back=False).events == ()


def test_row_2b_an_empty_log_of_a_delivered_execution_is_pruned() -> None:
    partition = Partition(E, first_seen_at=5)
    outcome, then = after(partition, (), ())
    assert outcome == Refused("log_pruned")
    assert then is partition
    assert guarded_read(then, (), held_back=False).reason is Reason.NOT_POPULATED


def test_row_3_c27_i25_an_empty_log_over_a_full_store_writes_nothing() -> None:
    partition = covered((A, B))
    outcome, then = after(partition, (A, B), ())
    assert outcome == StaleLog(2, 0)
    assert then is partition


def test_row_4_c20_i21_a_conflict_withdraws_coverage_and_nothing_else() -> None:
    partition = covered((A, B))
    other = ev(31, 10)
    outcome, then = after(partition, (A, B), (A, other))
    assert outcome == Diverged(1, "conflict", B, other)
    assert outcome.label == "diverged"
    assert then == replace(partition, coverage=None)
    assert guarded_read(then, placed((A, B)), held_back=False).reason is Reason.NO_COVERAGE


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (ev(31, 10), "conflict"),
        (replace(B, execution_id=8), "conflict"),
        (replace(B, parent_execution_id=5), "parent"),
        (replace(B, prev_event_id=11), "edge"),
        (replace(B, body="{}"), "payload"),
        (replace(B, event_type="other"), "payload"),
    ],
)
def test_row_4_every_kind(stored: Event, kind: str) -> None:
    assert plan([A, stored], Ordered((A, B, C))) == Diverged(1, kind, stored, B)  # type: ignore[arg-type]


def test_row_4_the_first_kind_that_applies() -> None:
    other = Event(E, 31, 11, 5, "other", "{}")
    assert difference(other, B) == "conflict"
    assert difference(replace(other, event_id=30), B) == "parent"
    assert difference(replace(other, event_id=30, parent_execution_id=None), B) == "edge"
    assert difference(replace(other, event_id=30, parent_execution_id=None, prev_event_id=10), B) == "payload"
    assert difference(B, B) is None


@pytest.mark.parametrize("parents", [(None, 5), (5, None)])
def test_row_4_one_side_null_is_a_difference(parents: tuple[int | None, int | None]) -> None:
    ours, log = (replace(A, parent_execution_id=parent) for parent in parents)
    assert difference(ours, log) == "parent"


def test_row_4_the_first_position_that_differs_decides() -> None:
    changed = (replace(A, body="{}"), ev(31, 10))
    assert plan(changed, Ordered((A, B))) == Diverged(0, "payload", changed[0], A)


def test_row_4_c24_i22_a_shorter_log_with_a_conflicting_prefix_is_not_stale() -> None:
    log = (A, ev(31, 10))
    assert plan((A, B, C), Ordered(log)) == Diverged(1, "conflict", B, log[1])


def test_row_4_comes_before_length_when_the_log_is_longer() -> None:
    changed = replace(B, body="{}")
    assert plan((A, changed), Ordered((A, B, C))) == Diverged(1, "payload", changed, B)


def test_row_5_c23_c25_i23_a_snapshot_behind_the_store_changes_nothing() -> None:
    events = chain(1, 2, 3, 4, 5)
    partition = covered(events)
    outcome, then = after(partition, events, events[:2])
    assert outcome == StaleLog(5, 2)
    assert outcome.label == "stale_log"
    assert then is partition
    assert guarded_read(then, placed(events), held_back=False).events == events


def test_row_6_c19_equal_content_is_in_sync() -> None:
    outcome, then = after(covered((A, B), coverage=None), (A, B), (A, B))
    assert outcome == InSync(2, 0)
    assert outcome.label == "in_sync"
    assert (then.watermark, then.coverage) == (Watermark(1, 2), Coverage(10, 2))


def test_row_7_a_first_populate_takes_everything() -> None:
    child = tuple(replace(event, parent_execution_id=3) for event in (A, B, C))
    outcome, then = after(Partition(E), (), child)
    assert outcome == InSync(3, 3)
    assert outcome.label == "extended"
    assert then == Partition(
        E,
        parent_execution_id=3,
        head_seq=3,
        head_event_id=20,
        watermark=Watermark(1, 3),
        coverage=Coverage(10, 3),
        head_anchor=777,
        head_epoch=EPOCH,
        last_change_at=1_000,
    )
    assert guarded_read(then, placed(child), held_back=False).events == child


def test_row_8_c19_a_longer_log_extends() -> None:
    outcome, then = after(covered((A, B)), (A, B), (A, B, C))
    assert outcome == InSync(3, 1)
    assert outcome.label == "extended"
    assert (then.head_seq, then.head_event_id) == (3, 20)
    assert (then.watermark, then.coverage) == (Watermark(1, 3), Coverage(10, 3))


def test_row_10_a_hole_is_refused_before_positions_are_compared() -> None:
    assert plan((A, C), Ordered((A, B, C)), gap=True) == Refused("store_gap")
    assert plan((A, B, C), Ordered((A,)), gap=True) == Refused("store_gap")
    assert populated(covered((A, C)), Refused("store_gap"), (A, B, C), READ) == covered((A, C))


def test_c21_labels_are_pinned_and_only_diverged_withdraws() -> None:
    outcomes: list[Outcome] = [InSync(2, 0), InSync(3, 1), Diverged(0, "conflict", A, B), StaleLog(2, 1)]
    assert [outcome.label for outcome in outcomes] == ["in_sync", "extended", "diverged", "stale_log"]
    kept = [
        populated(covered((A, B)), outcome, (A, B, C)[: max(2, n)], READ).coverage
        for n, outcome in enumerate(outcomes, start=2)
    ]
    assert [coverage is None for coverage in kept] == [False, False, True, False]


# -- what the record says afterwards


def test_i24_c26_coverage_is_monotone_under_one_root() -> None:
    events = chain(1, 2, 3, 4)
    planted = covered(events[:3], coverage=Coverage(1, 9))
    outcome, then = after(planted, events[:3], events)
    assert outcome == InSync(4, 1)
    assert then.coverage == Coverage(1, 9)
    assert guarded_read(then, placed(events), held_back=False).reason is Reason.COVERAGE_TOTAL_MISMATCH


@pytest.mark.parametrize(
    "planted", [Coverage(99, 9), Coverage(None, 9), Coverage(1, 3), Coverage(1, 4), None]
)
def test_coverage_of_another_root_or_a_smaller_one_is_overwritten(planted: Coverage | None) -> None:
    events = chain(1, 2, 3, 4)
    _, then = after(covered(events[:3], coverage=planted), events[:3], events)
    assert then.coverage == Coverage(1, 4)


def test_c28_a_clean_repopulate_after_a_conflict_serves_again() -> None:
    _, conflicted = after(covered((A, B)), (A, B), (A, ev(31, 10)))
    _, then = after(conflicted, (A, B), (A, B, C))
    assert guarded_read(then, placed((A, B, C)), held_back=False).events == (A, B, C)


@pytest.mark.parametrize("log", [(A, B), (A, B, C)])
def test_rows_6_and_8_clear_revocation_and_label(log: tuple[Event, ...]) -> None:
    _, then = after(labelled(covered((A, B)), "fork", 900), (A, B), log)
    assert (then.label, then.labelled_at, then.revoked_reason, then.revoked_at) == (None, None, None, None)
    assert then.coverage == Coverage(10, len(log))


def test_row_7_clears_revocation_and_label() -> None:
    _, then = after(labelled(Partition(E), "fork", 900), (), (A,))
    assert (then.label, then.labelled_at, then.revoked_reason, then.revoked_at) == (None, None, None, None)


def test_row_2_clears_revocation_and_label() -> None:
    _, then = after(labelled(Partition(E), "fork", 900), (), ())
    assert (then.label, then.labelled_at, then.revoked_reason, then.revoked_at) == (None, None, None, None)


@pytest.mark.parametrize(("began_at", "young"), [(899, False), (900, False), (901, True)])
def test_a_read_that_began_before_the_bar_may_not_write(began_at: int, young: bool) -> None:
    read = LogRead(began_at)
    assert may_write(revoked(covered((A,)), "divergent", 900), read) is young
    assert may_write(replace(covered((A,)), label="fork", labelled_at=900), read) is young
    assert may_write(covered((A,)), read)


def test_both_bars_hold_on_their_own() -> None:
    labelled_later = replace(covered((A,)), revoked_at=10, labelled_at=900)
    revoked_later = replace(covered((A,)), revoked_at=900, labelled_at=10)
    assert not may_write(labelled_later, LogRead(500))
    assert not may_write(revoked_later, LogRead(500))


def test_an_in_sync_read_confirms_the_head_in_its_epoch_with_its_own_anchor() -> None:
    stored = covered((A, B), head_epoch="before", head_anchor=100)
    _, then = after(stored, (A, B), (A, B))
    assert (then.head_epoch, then.head_anchor) == (EPOCH, 777)


def test_a_known_anchor_of_the_same_head_and_epoch_is_stronger() -> None:
    _, then = after(covered((A, B), head_anchor=100), (A, B), (A, B))
    assert (then.head_epoch, then.head_anchor) == (EPOCH, 100)


def test_the_position_of_the_heads_commit_stays_with_the_head() -> None:
    same, other = (
        covered((A, B), head_commit_lsn=70),
        covered((A, B), head_commit_lsn=70, head_epoch="before"),
    )
    assert after(same, (A, B), (A, B))[1].head_commit_lsn == 70
    assert after(same, (A, B), (A, B, C))[1].head_commit_lsn is None, "another row is the head"
    assert after(other, (A, B), (A, B))[1].head_commit_lsn is None, "positions begin anew with an epoch"


def test_an_unknown_anchor_of_the_same_head_takes_the_reads() -> None:
    _, then = after(covered((A, B), head_anchor=None), (A, B), (A, B))
    assert (then.head_epoch, then.head_anchor) == (EPOCH, 777)


def test_a_new_head_never_keeps_the_old_ones_anchor() -> None:
    _, then = after(covered((A, B), head_anchor=100), (A, B), (A, B, C))
    assert (then.head_epoch, then.head_anchor) == (EPOCH, 777)
    _, then = after(covered((A, B), head_anchor=100), (A, B), (A, B, C), LogRead(1_000, EPOCH, None))
    assert (then.head_epoch, then.head_anchor) == (EPOCH, None)


def test_a_read_without_epoch_proves_no_anchor() -> None:
    stored = covered((A, B), head_epoch=None, head_anchor=100)
    _, then = after(stored, (A, B), (A, B), LogRead(1_000))
    assert (then.head_epoch, then.head_anchor) == (None, None)


def test_terminal_is_noted_and_stays() -> None:
    end = ev(20, 30, kind="playbook.completed")
    _, then = after(covered((A, B)), (A, B), (A, B, end))
    assert then.terminal
    _, later = after(replace(then, head_event_id=20), (A, B, end), (A, B, end, ev(40, 20)))
    assert later.terminal
    _, running = after(covered((A, B)), (A, B), (A, B, C))
    assert not running.terminal


def test_last_change_moves_only_with_new_events() -> None:
    _, same = after(covered((A, B), last_change_at=5), (A, B), (A, B))
    _, grown = after(covered((A, B), last_change_at=5), (A, B), (A, B, C))
    assert (same.last_change_at, grown.last_change_at) == (5, 1_000)


def test_held_is_the_feeds_to_say() -> None:
    _, then = after(covered((A, B), held=4), (A, B), (A, B, C))
    assert then.held == 4


def test_i08_the_penultimate_row_comes_last() -> None:
    events = chain(*range(1, 74))
    late = [*events[:71], events[72]]
    partition = Partition(E)
    outcome, then = after(partition, (), late)
    assert outcome == Refused("dangling_prev")
    assert then is partition
    outcome, then = after(partition, (), events)
    assert outcome == InSync(73, 73)
    assert guarded_read(then, placed(events), held_back=False).events == events


# -- properties


@given(st.lists(st.integers(0, 6), max_size=8))
def test_any_sequence_of_prefix_reads_ends_like_the_longest_and_never_loses(reads: list[int]) -> None:
    """Snapshots of any age, in any order: only longer ones append; what is served never shrinks."""
    events = chain(6, 2, 5, 1, 4, 3)
    partition, stored = Partition(E), 0
    for number, length in enumerate(reads):
        outcome, partition = after(partition, events[:stored], events[:length], LogRead(number, EPOCH))
        if isinstance(outcome, InSync):
            stored = outcome.total
        served = guarded_read(partition, placed(events[:stored]), held_back=False)
        assert served.events == events[:stored]
    assert stored == max(reads, default=0)


@given(st.data())
def test_one_changed_field_anywhere_is_diverged_there(data: st.DataObject) -> None:
    events = chain(6, 2, 5, 1, 4, 3)
    at = data.draw(st.integers(0, 5))
    field, value = data.draw(
        st.sampled_from([("event_id", 9), ("parent_execution_id", 9), ("prev_event_id", 9), ("body", "x")])
    )
    stored = [*events]
    stored[at] = replace(events[at], **{field: value})  # one field of several types
    log = events[: data.draw(st.integers(at + 1, 6))]
    outcome = plan(stored, Ordered(log))
    assert isinstance(outcome, Diverged)
    assert outcome.position == at
