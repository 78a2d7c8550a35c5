"""One execution in one transaction: what a refusal, a label and a populate do to run and pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from sidecar.core.authority import Partition
from sidecar.core.due import News
from sidecar.core.event import Event
from sidecar.core.horizon import TailRow
from sidecar.core.links import Forked, MultipleRoots, NoRoot, Ordered
from sidecar.core.populate import InSync, Refused
from sidecar.core.ports import Populated
from sidecar.core.rejoin import NOTHING_KEPT
from sidecar.core.settle import Arrival, Limits, Settled, settle
from tests.unit.core.build import EPOCH, OLD_EPOCH, E, by_id, chain, covered, ev, placed, pool_of, tail


def _arrival(partition: Partition, **changes: Any) -> Arrival:
    stored = placed(chain(1, 2))
    fields: dict[str, Any] = {
        "rows": (),
        "pool": {},
        "stored": by_id(stored),
        "stored_rows": 2,
        "max_seq": 2,
        "reread": False,
        "room": 100,
        **changes,
    }
    return Arrival(partition, **fields)


@pytest.mark.parametrize("order", [Forked(1, (2, 9)), MultipleRoots((1, 9))])
def test_step_3_a_refused_log_read_labels_and_nothing_of_the_pool_is_appended(order: Any) -> None:
    """Row 3 stands right behind the head, and the read says that the chain is none."""
    partition = covered(chain(1, 2))
    refused = Populated(Refused(order.label), order, partition, (), written=False, cleared_bar=False)
    arrival = _arrival(partition, pool=pool_of(ev(3, 2)), populated=refused)
    settled = settle(arrival, epoch=EPOCH, now=9, limits=Limits())
    assert settled.run == ()
    assert settled.pool == {}
    assert settled.news.labelled
    assert (settled.partition.label, settled.partition.coverage) == (order.label, None)
    assert (settled.partition.head_seq, settled.partition.held) == (2, 1)


def test_step_4_without_a_refusal_the_same_row_is_appended() -> None:
    arrival = _arrival(covered(chain(1, 2)), pool=pool_of(ev(3, 2)))
    settled = settle(arrival, epoch=EPOCH, now=9, limits=Limits())
    assert [row.event.event_id for row in settled.run] == [3]
    assert (settled.partition.head_seq, settled.partition.held) == (3, 0)


@pytest.mark.parametrize("label", ["dangling_prev", "no_root", "store_gap"])
def test_2_4_c_rows_that_a_refused_log_read_has_shown_are_held(label: str) -> None:
    """No lane has handed them over, so no pool has them; the chain is short all the same."""
    partition = covered(chain(1, 2))
    shown = frozenset({7, 8, 9})
    refused = Populated(Refused(label), NoRoot(5), partition, (), False, False, unstored=shown)
    settled = settle(_arrival(partition, populated=refused, log_rows=5), epoch=EPOCH, now=9, limits=Limits())
    assert (settled.partition.held, settled.partition.label, settled.shown) == (3, None, 3)


def test_2_4_c_a_truncated_log_read_holds_what_it_has_more() -> None:
    settled = settle(_arrival(covered(chain(1, 2)), log_rows=10), epoch=EPOCH, now=9, limits=Limits(read=10))
    assert settled.partition.held == 8


@pytest.mark.parametrize(("seen_before", "new"), [(0, 5), (3, 2), (5, 0), (9, 0)])
def test_rows_of_a_log_read_are_new_as_far_as_nobody_has_counted_them(seen_before: int, new: int) -> None:
    partition = replace(covered(chain(1, 2)), rows_seen=seen_before)
    refused = Populated(Refused("no_root"), NoRoot(5), partition, (), False, False, unstored=frozenset({7}))
    settled = settle(_arrival(partition, populated=refused, log_rows=5), epoch=EPOCH, now=9, limits=Limits())
    assert settled.seen == new


def test_held_rows_end_with_a_populate_that_was_written() -> None:
    partition = replace(covered(chain(1, 2)), held=3)
    synced = Populated(InSync(2, 0), Ordered(chain(1, 2)), partition, (), written=True, cleared_bar=False)
    settled = settle(_arrival(partition, populated=synced, log_rows=2), epoch=EPOCH, now=9, limits=Limits())
    assert settled.partition.held == 0


# -- every field of the record and the news, and how much a pool takes


def _settled(partition: Partition, *events: Event, limits: Limits | None = None, **changes: Any) -> Settled:
    rows = tuple(tail(event) for event in events)
    return settle(_arrival(partition, rows=rows, **changes), epoch=EPOCH, now=9, limits=limits or Limits())


def ids(rows: Iterable[TailRow]) -> list[int]:
    return [row.event.event_id for row in rows]


def test_a_new_row_behind_the_head_moves_counts_and_times() -> None:
    before = replace(covered(chain(1, 2)), rows_seen=2, first_seen_at=3, last_change_at=4)
    settled = _settled(before, ev(3, 2))
    after = settled.partition
    assert (after.rows_seen, after.first_seen_at, after.last_change_at) == (3, 3, 9)
    assert (ids(settled.run), ids(settled.fresh), settled.news) == ([3], [3], News(rows=1))


def test_nothing_new_moves_nothing() -> None:
    before = replace(covered(chain(1, 2)), rows_seen=2, first_seen_at=None, last_change_at=4)
    settled = _settled(before)
    assert (settled.partition, settled.news, settled.fresh) == (before, News(), ())


def test_the_first_row_of_all_and_a_log_read_alone_begin_the_record() -> None:
    empty: dict[str, Any] = {"stored": {}, "stored_rows": 0, "max_seq": None}
    assert _settled(Partition(E), ev(1), **empty).partition.first_seen_at == 9
    shown = _settled(Partition(E), log_rows=4, **empty).partition
    assert (shown.first_seen_at, shown.last_change_at, shown.rows_seen) == (9, 9, 4)
    assert _settled(Partition(E), **empty).partition.first_seen_at is None


def test_a_terminal_row_is_news_of_its_own() -> None:
    assert _settled(covered(chain(1, 2)), ev(3, 2, kind="playbook.completed")).news == News(
        rows=1, terminal=True
    )


def test_a_row_that_is_stored_with_another_body_is_a_change_and_no_new_row() -> None:
    settled = _settled(covered(chain(1, 2)), ev(2, 1, note="other"))
    assert (settled.news.changed, settled.news.rows, settled.fresh) == (True, 0, ())


def test_a_pooled_row_that_is_stored_with_another_body_is_a_change() -> None:
    same = _settled(covered(chain(1, 2)), pool=pool_of(ev(2, 1)))
    other = _settled(covered(chain(1, 2)), pool=pool_of(ev(2, 1, note="other")))
    assert (same.news.changed, other.news.changed) == (False, True)


def test_with_a_populate_all_rows_of_the_batch_are_fresh() -> None:
    partition = covered(chain(1, 2))
    synced = Populated(InSync(2, 1), Ordered(chain(1, 2)), partition, (), written=True, cleared_bar=False)
    settled = _settled(partition, ev(2, 1), populated=synced, log_rows=2)
    assert (ids(settled.fresh), settled.news.rows) == ([2], 1)


def test_a_head_that_a_poll_of_the_new_epoch_shows_is_of_that_epoch() -> None:
    before = covered(chain(1, 2), head_epoch=OLD_EPOCH, head_anchor=100)
    after = _settled(before, ev(2, 1)).partition
    assert (after.head_epoch, after.head_anchor) == (EPOCH, 500)
    same = _settled(covered(chain(1, 2)), ev(2, 1)).partition
    assert (same.head_epoch, same.head_anchor) == (EPOCH, 100)


def test_the_position_of_a_heads_commit_comes_with_the_row_that_shows_it() -> None:
    shown = replace(tail(ev(2, 1)), commit_lsn=70)
    for before in (covered(chain(1, 2)), covered(chain(1, 2), head_epoch=OLD_EPOCH, head_commit_lsn=60)):
        after = settle(_arrival(before, rows=(shown,)), epoch=EPOCH, now=9, limits=Limits()).partition
        assert (after.head_epoch, after.head_commit_lsn) == (EPOCH, 70)


def test_the_position_of_another_rows_commit_is_not_the_heads() -> None:
    other = replace(tail(ev(1)), commit_lsn=60)
    for rows in ((other,), (other, replace(tail(ev(2, 1)), commit_lsn=70))):
        arrival = _arrival(covered(chain(1, 2)), rows=rows)
        after = settle(arrival, epoch=EPOCH, now=9, limits=Limits()).partition
        assert after.head_commit_lsn == (70 if len(rows) == 2 else None)


# What only a log read has shown


def _refused(partition: Partition, *shown: int) -> Populated:
    return Populated(Refused("no_root"), NoRoot(5), partition, (), False, False, unstored=frozenset(shown))


@pytest.mark.parametrize("held", [0, 1, 5])
def test_rows_that_a_whole_log_read_shows_and_nobody_has_are_news(held: int) -> None:
    """However many were held before: what a refused read shows may be other rows."""
    partition = replace(covered(chain(1, 2)), held=held, rows_seen=9, last_change_at=4)
    some = _settled(partition, populated=_refused(partition, 7), log_rows=3)
    none = _settled(partition, populated=_refused(partition), log_rows=2)
    assert (some.partition.last_change_at, none.partition.last_change_at) == (9, 4)


@pytest.mark.parametrize(("held", "changed_at"), [(7, 9), (8, 4), (9, 4)])
def test_a_cut_log_is_news_when_it_shows_more_than_is_held(held: int, changed_at: int) -> None:
    partition = replace(covered(chain(1, 2)), held=held, rows_seen=10, last_change_at=4)
    assert _settled(partition, log_rows=10).partition.last_change_at == changed_at


def test_a_row_of_the_batch_is_a_change_whatever_was_shown_before() -> None:
    partition = replace(covered(chain(1, 2)), held=1, last_change_at=4)
    assert _settled(partition, ev(3, 2), reread=True).partition.last_change_at == 9


# Joins


def _root_behind(partition: Partition, **changes: Any) -> Settled:
    """A root arrives whose transaction began after the head was seen: the proof is there."""
    root = replace(tail(ev(9)), xid=150, xmin=150)
    arrival = _arrival(partition, rows=(root,), kept=NOTHING_KEPT, **changes)
    return settle(arrival, epoch=EPOCH, now=9, limits=Limits())


def test_a_root_without_its_proof_has_no_place_and_labels() -> None:
    proven = _root_behind(covered(chain(1, 2), head_anchor=100))
    assert (ids(proven.run), proven.partition.label, len(proven.joins)) == ([9], None, 1)
    unproven = _root_behind(covered(chain(1, 2), head_anchor=200))
    assert (unproven.run, unproven.partition.label, unproven.joins) == ((), "multiple_roots", ())
    barred = covered(chain(1, 2), head_anchor=200, coverage=None, revoked_at=1)
    assert _root_behind(barred).partition.label == "multiple_roots", "nothing waits that would say so later"


def test_rows_that_are_known_of_and_nowhere_forbid_a_join_until_a_read_has_ended_them() -> None:
    partition = covered(chain(1, 2), head_anchor=100, held=3, last_change_at=5)
    assert _root_behind(partition).joins == ()
    synced = Populated(InSync(2, 0), Ordered(chain(1, 2)), partition, (), written=True, cleared_bar=False)
    assert len(_root_behind(partition, populated=synced, log_rows=2, log_began_at=6).joins) == 1
    assert _root_behind(partition, populated=synced, log_rows=2, log_began_at=4).joins == ()


def test_a_pool_takes_what_its_own_bound_and_the_bound_of_all_allow() -> None:
    partition, gap = covered(chain(1, 2)), (ev(5, 4), ev(6, 5), ev(7, 6))
    for limits, room, pooled in (
        (Limits(pool=3), 3, [5, 6, 7]),
        (Limits(pool=2), 3, [5, 6]),
        (Limits(pool=3), 2, [5, 6]),
        (Limits(pool=3), 0, []),
    ):
        settled = _settled(partition, *gap, limits=limits, room=room)
        assert sorted(settled.pool) == pooled
        assert (settled.partition.held, settled.news.reread) == (3, len(pooled) < 3)
        assert all(settled.pool[key].event.event_id == key for key in pooled)


def test_a_row_that_waits_already_takes_its_newer_version_whatever_the_room() -> None:
    settled = _settled(covered(chain(1, 2)), ev(5, 4, note="new"), pool=pool_of(ev(5, 4)), room=0)
    assert (settled.pool[5].event.body, settled.partition.held) == (ev(5, 4, note="new").body, 1)
    waiting = _settled(
        covered(chain(1, 2)), ev(6, 5), pool=pool_of(ev(5, 4), ev(7, 6)), room=1, limits=Limits(pool=3)
    )
    assert sorted(waiting.pool) == [5, 6, 7]


def test_rows_of_an_epoch_that_ended_wait_no_more_and_the_log_is_read() -> None:
    settled = _settled(covered(chain(1, 2)), pool=pool_of(ev(5, 4), epoch=OLD_EPOCH))
    assert (settled.pool, settled.partition.held, settled.news.reread) == ({}, 1, True)


@pytest.mark.parametrize("bar", [{"label": "fork", "labelled_at": 1}, {"revoked_at": 1}])
def test_a_barred_partition_pools_nothing_holds_all_and_asks_for_no_read(bar: dict[str, Any]) -> None:
    settled = _settled(covered(chain(1, 2), **bar), ev(5, 4), pool=pool_of(ev(6, 5)))
    assert (settled.pool, settled.run, settled.partition.held) == ({}, (), 2)
    assert not settled.news.reread


@pytest.mark.parametrize(
    ("came_at", "began_at", "held"), [(5, 5, 0), (5, 6, 0), (5, 4, 3), (None, 4, 0), (5, None, 0)]
)
def test_held_rows_end_with_a_read_that_began_after_they_came(
    came_at: int | None, began_at: int | None, held: int
) -> None:
    partition = replace(covered(chain(1, 2)), held=3, last_change_at=came_at)
    synced = Populated(InSync(2, 0), Ordered(chain(1, 2)), partition, (), written=True, cleared_bar=False)
    settled = _settled(partition, populated=synced, log_rows=2, log_began_at=began_at)
    assert settled.partition.held == held


def test_a_second_root_labels_now_and_is_news_once() -> None:
    settled = _settled(covered(chain(1, 2)), ev(9))
    assert (settled.partition.label, settled.partition.labelled_at) == ("multiple_roots", 9)
    assert settled.news.labelled
    again = _settled(settled.partition, ev(10))
    assert (again.news.labelled, again.partition.labelled_at) == (False, 9)


def test_a_contradiction_is_due_as_a_change() -> None:
    settled = _settled(covered(chain(1, 2)), ev(3, 2), stored_rows=3, max_seq=3)
    assert (settled.news.changed, settled.run) == (True, ())


def test_while_the_log_is_to_be_read_again_nothing_is_extended() -> None:
    settled = _settled(covered(chain(1, 2)), ev(3, 2), reread=True)
    assert (settled.run, sorted(settled.pool), settled.partition.held) == ((), [3], 1)
