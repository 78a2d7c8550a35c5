"""The guarded read's truth table, its reasons in order, and revocation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sidecar.core import authority
from sidecar.core.authority import (
    Authoritative,
    Authority,
    Coverage,
    GuardedRead,
    NotPopulated,
    Partition,
    Reason,
    StoredEvent,
    Torn,
    Watermark,
    check_whole,
    guarded_read,
    labelled,
    revoked,
)
from sidecar.core.event import Event
from sidecar.errors import PartitionUnreadable
from tests.support.changing import replace
from tests.unit.core.build import E, chain, covered, ev, placed

EVENTS = chain(10, 30, 20)


def read(
    partition: Partition | None, events: Sequence[Event] = EVENTS, *, held_back: bool = False
) -> GuardedRead:
    return guarded_read(partition, placed(events), held_back=held_back)


def test_row_1_an_unknown_execution_cannot_be_answered() -> None:
    assert read(None, ()) == GuardedRead(None, Reason.NOT_POPULATED)


@pytest.mark.parametrize("coverage", [None, Coverage(10, 3)])
def test_row_1_no_watermark_whatever_the_coverage(coverage: Coverage | None) -> None:
    partition = covered(EVENTS, watermark=None, coverage=coverage)
    assert read(partition) == GuardedRead(None, Reason.NOT_POPULATED)


@pytest.mark.parametrize("through", [2, 4])
@pytest.mark.parametrize("coverage", [None, Coverage(10, 3)])
def test_row_3_c18_a_watermark_ahead_or_behind_trips(through: int, coverage: Coverage | None) -> None:
    partition = covered(EVENTS, watermark=Watermark(1, through), coverage=coverage)
    assert read(partition) == GuardedRead(None, Reason.WATERMARK_MISMATCH)


def test_row_3_c05_a_planted_watermark_over_one_event() -> None:
    partition = covered(chain(10), watermark=Watermark(1, 2), coverage=None)
    assert partition.authority == Authoritative(1, 2)
    assert read(partition, chain(10)).reason is Reason.WATERMARK_MISMATCH


def test_after_row_3_rows_that_are_held_back_refuse() -> None:
    assert read(covered(EVENTS), held_back=True) == GuardedRead(None, Reason.ROWS_HELD_BACK)


def test_row_4_c15_no_coverage_is_not_served() -> None:
    assert read(covered(EVENTS, coverage=None)) == GuardedRead(None, Reason.NO_COVERAGE)


def test_i01_one_event_of_three_fed_without_the_log_is_not_served() -> None:
    partition = Partition(E, head_seq=1, head_event_id=30, watermark=Watermark(1, 1))
    assert read(partition, [ev(30, 20)]) == GuardedRead(None, Reason.NO_COVERAGE)


@pytest.mark.parametrize("total", [2, 4])
def test_row_6_c16_a_coverage_total_that_differs(total: int) -> None:
    assert read(covered(EVENTS, coverage=Coverage(10, total))).reason is Reason.COVERAGE_TOTAL_MISMATCH


def test_row_6_counts_the_rows_and_not_the_head() -> None:
    partition = covered(EVENTS)
    assert read(partition, EVENTS[:2]).reason is Reason.COVERAGE_TOTAL_MISMATCH


def test_row_7_c03_an_empty_log_is_a_true_negative() -> None:
    assert read(covered(()), ()) == GuardedRead((), None)


def test_row_8_an_empty_chain_with_a_root_is_refused() -> None:
    partition = covered((), coverage=Coverage(10, 0))
    assert read(partition, ()) == GuardedRead(None, Reason.COVERAGE_ROOT_MISMATCH)


@pytest.mark.parametrize("root", [None, 30])
def test_row_9_c17_another_root_is_refused(root: int | None) -> None:
    partition = covered(EVENTS, coverage=Coverage(root, 3))
    assert read(partition).reason is Reason.COVERAGE_ROOT_MISMATCH


def test_row_10_c02_the_chain_is_served() -> None:
    assert read(covered(EVENTS)) == GuardedRead(EVENTS, None)


def test_before_row_10_a_hole_in_the_sequences_is_refused() -> None:
    shifted = tuple(replace(row, exec_seq=row.exec_seq + (row.exec_seq > 1)) for row in placed(EVENTS))
    assert guarded_read(covered(EVENTS), shifted, held_back=False).reason is Reason.CHAIN_GAP


def test_before_row_10_sequences_start_at_one() -> None:
    shifted = tuple(replace(row, exec_seq=row.exec_seq - 1) for row in placed(EVENTS))
    assert guarded_read(covered(EVENTS), shifted, held_back=False).reason is Reason.CHAIN_GAP


@pytest.mark.parametrize("position", [0, 1, 2])
def test_before_row_10_an_edge_that_names_another_row_is_refused(position: int) -> None:
    events = list(EVENTS)
    events[position] = replace(events[position], prev_event_id=999)
    assert read(covered(EVENTS), events).reason is Reason.CHAIN_GAP


def test_reasons_stand_in_the_order_of_the_table() -> None:
    """Everything is wrong at once; mending one thing after another shows each reason in turn."""
    rows: tuple[StoredEvent, ...] = tuple(replace(row, exec_seq=row.exec_seq + 1) for row in placed(EVENTS))
    partition = covered(EVENTS, watermark=None, coverage=None)
    seen = [guarded_read(partition, rows, held_back=True).reason]
    partition = replace(partition, watermark=Watermark(1, 9))
    seen.append(guarded_read(partition, rows, held_back=True).reason)
    partition = replace(partition, watermark=Watermark(1, 3))
    seen.append(guarded_read(partition, rows, held_back=True).reason)
    seen.append(guarded_read(partition, rows, held_back=False).reason)
    partition = replace(partition, coverage=Coverage(99, 9))
    seen.append(guarded_read(partition, rows, held_back=False).reason)
    partition = replace(partition, coverage=Coverage(99, 3))
    seen.append(guarded_read(partition, rows, held_back=False).reason)
    partition = replace(partition, coverage=Coverage(10, 3))
    seen.append(guarded_read(partition, rows, held_back=False).reason)
    seen.append(guarded_read(partition, placed(EVENTS), held_back=False).reason)
    assert seen == [
        Reason.NOT_POPULATED,
        Reason.WATERMARK_MISMATCH,
        Reason.ROWS_HELD_BACK,
        Reason.NO_COVERAGE,
        Reason.COVERAGE_TOTAL_MISMATCH,
        Reason.COVERAGE_ROOT_MISMATCH,
        Reason.CHAIN_GAP,
        None,
    ]


def test_reason_labels_are_pinned() -> None:
    assert [reason.value for reason in Reason] == [
        "not_populated",
        "watermark_mismatch",
        "no_coverage",
        "coverage_total_mismatch",
        "coverage_root_mismatch",
        "chain_gap",
        "rows_held_back",
    ]


def test_c04_three_states_are_pairwise_distinct() -> None:
    never = read(None, ())
    empty = read(covered(()), ())
    ahead = read(covered((), watermark=Watermark(0, 1)), ())
    assert len({(answer.events, answer.reason) for answer in (never, empty, ahead)}) == 3
    assert never.events is None
    assert ahead.events is None
    assert empty.events == ()


@pytest.mark.parametrize(
    ("watermark", "authority", "label"),
    [
        (None, NotPopulated(), "not_populated"),
        (Watermark(0, 0), Authoritative(0, 0), "authoritative"),
        (Watermark(1, 4), Authoritative(1, 4), "authoritative"),
    ],
)
def test_authority_has_two_labels(watermark: Watermark | None, authority: Authority, label: str) -> None:
    partition = Partition(E, watermark=watermark)
    assert partition.authority == authority
    assert partition.authority.label == label
    bounds = (None, None) if watermark is None else (watermark.first, watermark.through)
    assert (partition.authority.first, partition.authority.through) == bounds


def test_c29_i21_revoking_withdraws_coverage_and_keeps_the_rest() -> None:
    before = covered(EVENTS)
    after = revoked(before, "divergent", 40)
    assert after == replace(before, coverage=None, revoked_reason="divergent", revoked_at=40)
    assert read(after).reason is Reason.NO_COVERAGE


def test_a_later_revocation_moves_the_bar() -> None:
    after = revoked(revoked(covered(EVENTS), "divergent", 40), "second_writer", 50)
    assert (after.revoked_reason, after.revoked_at) == ("second_writer", 50)


def test_a_label_revokes_with_the_label_as_reason() -> None:
    after = labelled(covered(EVENTS), "fork", 40)
    assert (after.label, after.labelled_at) == ("fork", 40)
    assert (after.coverage, after.revoked_reason, after.revoked_at) == (None, "fork", 40)


def test_the_first_label_stays() -> None:
    first = labelled(covered(EVENTS), "fork", 40)
    assert labelled(first, "multiple_roots", 50) is first


def test_a_new_record_claims_nothing() -> None:
    new = Partition(E)
    assert (new.head_seq, new.head_event_id, new.watermark, new.coverage) == (0, None, None, None)
    assert (new.held, new.rows_seen, new.terminal, new.counted_kinds) == (0, 0, False, frozenset())


@pytest.mark.parametrize("what", ["watermark", "coverage"])
def test_rows_2_and_5_a_torn_record_is_an_error_whatever_else_it_says(what: Any) -> None:
    torn = covered(EVENTS, torn=Torn(what, (1, None, None, None)))
    for held_back in (True, False):
        with pytest.raises(PartitionUnreadable, match=f"{what} of execution 7"):
            read(torn, held_back=held_back)
    with pytest.raises(PartitionUnreadable):
        _ = torn.authority


def test_a_torn_label_is_asked_for_by_no_row_of_the_guarded_read() -> None:
    torn = covered(EVENTS, torn=Torn("label", (1, 3, 10, 3)), label="nobody's")
    assert read(torn) == GuardedRead(EVENTS, None)
    with pytest.raises(PartitionUnreadable):
        _ = torn.authority


def test_a_torn_record_is_refused_with_what_to_do() -> None:
    torn = Partition(E, torn=Torn("coverage", (1, 2, None, -1)))
    with pytest.raises(PartitionUnreadable) as caught:
        check_whole(torn)
    assert str(caught.value) == f"the coverage of execution {E} is malformed"
    assert caught.value.hint == (
        "somebody else wrote into the store: keep the file, rebuild this partition from the log"
    )
    check_whole(Partition(E))


def test_an_event_put_behind_the_head_has_no_position_of_the_head_before() -> None:
    before = Partition(E, head_seq=1, head_event_id=1, head_commit_lsn=500, head_anchor=9, head_epoch="e")
    after = authority.placed(before, ev(2, 1), 2, 5)
    assert (after.head_event_id, after.head_commit_lsn, after.head_anchor) == (2, None, None)
