"""What a batch proves: each clause alone decides between a join and the label of before.

The store holds 1 and 2; the head was seen in a poll with anchor 100.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.core.authority import Partition, StoredEvent, Torn, guarded_read, revoked
from sidecar.core.event import Event
from sidecar.core.horizon import TailRow
from sidecar.core.links import MultipleRoots
from sidecar.core.populate import LogRead, Refused, plan, populated
from sidecar.core.ports import Populated
from sidecar.core.proofs import asks
from sidecar.core.rejoin import Join, Kept, chain_order, predecessors
from sidecar.core.settle import Arrival, Limits, Settled, settle
from tests.unit.core.build import EPOCH, OLD_EPOCH, E, by_id, chain, covered, ev, placed

ANCHOR = 100
NEXT = 200
"""The anchor of the poll at hand."""
STORED = chain(1, 2)
JOIN = Join(E, 2, 9, xid=150, anchor=ANCHOR, epoch=EPOCH, joined_at=9)


def row(event: Event, xid: int | None = 150, **changes: Any) -> TailRow:
    return replace(TailRow(event, 1, xid, EPOCH, NEXT, seen_at=5), **changes)


def arrival(*rows: TailRow, **changes: Any) -> Arrival:
    stored: tuple[StoredEvent, ...] = changes.pop("rows_stored", placed(STORED))
    fields: dict[str, Any] = {
        "partition": covered([each.event for each in stored], head_anchor=ANCHOR),
        "rows": rows,
        "pool": {},
        "stored": by_id(stored),
        "stored_rows": len(stored),
        "max_seq": len(stored),
        "reread": False,
        "room": 100,
        "kept": Kept(),
        **changes,
    }
    return Arrival(**fields)


def settled(*rows: TailRow, **changes: Any) -> Settled:
    return settle(arrival(*rows, **changes), epoch=EPOCH, now=9, limits=Limits())


def run(found: Settled) -> list[int]:
    return [each.event.event_id for each in found.run]


def refused(found: Settled) -> bool:
    assert (found.run == ()) == (found.partition.label is not None)
    return found.partition.label == "multiple_roots"


def test_a_proven_root_stands_behind_the_tip_with_what_follows_it() -> None:
    found = settled(row(ev(8, 9)), row(ev(9)))
    assert (run(found), found.joins, found.pool) == ([9, 8], (JOIN,), {})
    assert (found.partition.label, found.partition.held) == (None, 0)
    assert (found.partition.head_event_id, found.partition.head_seq) == (8, 4)
    assert found.partition.head_anchor == NEXT
    stored = placed((*STORED, ev(9), ev(8, 9)))
    joined = predecessors(found.joins)
    read = guarded_read(found.partition, stored, held_back=False, joined=joined)
    assert read.events == tuple(each.event for each in stored)
    assert guarded_read(found.partition, stored, held_back=False).events is None


def test_with_the_gate_off_nothing_is_proven_and_the_label_is_that_of_before() -> None:
    found = settled(row(ev(9)), kept=None)
    assert refused(found)
    assert found.joins == ()


def test_the_tip_that_came_with_the_root_counts_not_the_stored_head() -> None:
    assert refused(settled(row(ev(3, 2), 120), row(ev(9))))


def test_a_tip_that_waited_counts_by_its_own_poll() -> None:
    """3 was delivered by an earlier poll and could not be stored then."""
    waiting = row(ev(3, 2), 120, anchor=140)
    found = settled(row(ev(9)), pool={3: waiting}, partition=covered(STORED, held=1, head_anchor=ANCHOR))
    assert run(found) == [3, 9]
    assert found.joins == (replace(JOIN, tip_event_id=3, anchor=140),)
    late = replace(waiting, anchor=151)
    assert refused(settled(row(ev(9)), pool={3: late}, partition=covered(STORED, held=1)))


BY_POSITIONS = Join(E, 3, 9, 150, None, EPOCH, 9, tip_lsn=500, root_lsn=501)


def test_what_positions_order_in_one_batch_is_kept_and_a_log_read_decides() -> None:
    """No anchor can: both rows were seen together.  Whoever wrote the tip may be writing still."""
    root, tip = row(ev(9), first_lsn=501), row(ev(3, 2), 120, commit_lsn=500)
    found = settled(root, tip)
    assert refused(found)
    assert found.joins == (BY_POSITIONS,)
    assert found.news.labelled, "the read is asked for"
    log = (*(each.event for each in placed(STORED)), ev(3, 2), ev(9))
    assert chain_order(log, found.joins).label == "rejoined"
    assert chain_order((*log, ev(4, 3)), found.joins).label == "multiple_roots", "it was the tip no more"
    for other in (row(ev(9), first_lsn=499), row(ev(9), first_lsn=501, epoch=OLD_EPOCH)):
        assert settled(other, tip).joins == ()
    assert settled(root, replace(tip, commit_lsn=None)).joins == ()


def test_the_commit_of_a_stored_head_is_known_by_its_position() -> None:
    """Its anchor, of a log read or of a peek while the root was being written, lies behind the root."""
    late = covered(STORED, head_anchor=151, head_commit_lsn=500)
    by_head = replace(BY_POSITIONS, tip_event_id=2)
    assert settled(row(ev(9), first_lsn=501), partition=late).joins == (by_head,)
    assert settled(row(ev(9), first_lsn=499), partition=late).joins == ()
    assert settled(row(ev(9), first_lsn=501), partition=replace(late, head_commit_lsn=None)).joins == ()
    assert settled(row(ev(9), first_lsn=501), partition=replace(late, head_epoch=OLD_EPOCH)).joins == ()


@pytest.mark.parametrize("pooled", [True, False])
def test_a_head_that_a_log_read_was_first_to_store_gets_its_position_from_the_wal(*, pooled: bool) -> None:
    shown = row(STORED[1], 120, commit_lsn=500)

    def position(row: TailRow, **changes: Any) -> int | None:
        found = settled(pool={2: row}, **changes) if pooled else settled(row, **changes)
        return found.partition.head_commit_lsn

    assert position(shown) == 500
    assert position(replace(shown, event=ev(2, 1, note="other"))) is None
    stood = covered(STORED, head_commit_lsn=400)
    assert position(shown, partition=stood) == 400
    if pooled:
        assert position(replace(shown, epoch=OLD_EPOCH)) is None


def test_a_new_epoch_and_a_new_head_forget_the_position() -> None:
    stood = covered(STORED, head_commit_lsn=400, head_epoch=OLD_EPOCH)
    assert settled(row(STORED[1]), partition=stood).partition.head_commit_lsn is None
    stood = covered(STORED, head_commit_lsn=400)
    assert settled(row(ev(3, 2)), partition=stood).partition.head_commit_lsn is None
    assert settled(row(ev(3, 2), commit_lsn=600), partition=stood).partition.head_commit_lsn == 600


@pytest.mark.parametrize(
    "root",
    [
        row(ev(9), ANCHOR - 1),
        row(ev(9), None),
        row(ev(9), anchor=None),
    ],
    ids=["before the anchor", "unknown xid", "a part of a poll"],
)
def test_a_root_without_a_proof_is_refused(root: TailRow) -> None:
    found = settled(root)
    assert refused(found)
    assert found.joins == ()


@pytest.mark.parametrize("head", [{"head_anchor": None}, {"head_epoch": OLD_EPOCH}])
def test_a_head_that_bounds_nothing_proves_nothing(head: dict[str, Any]) -> None:
    found = settled(row(ev(9)), partition=covered(STORED, **{"head_anchor": ANCHOR, **head}))
    assert found.partition.label == "multiple_roots"
    assert found.joins == ()


def test_roots_of_one_poll_refuse_each_other_and_roots_of_two_polls_do_not() -> None:
    assert refused(settled(row(ev(9)), row(ev(8), 160)))
    waiting = row(ev(9), 130, anchor=155)
    partition = covered(STORED, held=1, head_anchor=ANCHOR)
    found = settled(row(ev(4), 160), pool={9: waiting}, partition=partition)
    assert run(found) == [9, 4]
    assert [(each.tip_event_id, each.root_event_id) for each in found.joins] == [(2, 9), (9, 4)]


@pytest.mark.parametrize("prev", [1, 9])
def test_a_fork_beside_the_root_refuses(prev: int) -> None:
    rows = (row(ev(9)), row(ev(3, prev), 120), row(ev(4, 9), 120))
    found = settled(*rows)
    assert refused(found)
    assert found.joins == ()


def test_a_row_whose_predecessor_is_not_there_refuses_and_keeps_what_it_proves() -> None:
    """When the predecessor comes, a log read shows that 3 was the tip."""
    waiting = row(ev(3, 77), 120, anchor=140)
    partition = covered(STORED, held=1, head_anchor=ANCHOR)
    found = settled(row(ev(9)), pool={3: waiting}, partition=partition)
    assert refused(found)
    assert found.joins == (replace(JOIN, tip_event_id=3, anchor=140),)
    whole = (*STORED, ev(77, 2), ev(3, 77), ev(9))
    assert [each.event_id for each in getattr(chain_order(whole, found.joins), "events", ())] == [
        1,
        2,
        77,
        3,
        9,
    ]


def test_two_ends_that_wait_prove_nothing() -> None:
    pool = {3: row(ev(3, 77), 120, anchor=140), 4: row(ev(4, 78), 120, anchor=140)}
    found = settled(row(ev(9)), pool=pool, partition=covered(STORED, held=2, head_anchor=ANCHOR))
    assert refused(found)
    assert found.joins == ()


def test_a_row_that_is_known_of_and_not_at_hand_may_be_the_tip() -> None:
    partition = covered(STORED, held=2, head_anchor=ANCHOR)
    assert settled(row(ev(9)), partition=partition).joins == ()
    # One of them is this one: a log read has shown it before the tail did.
    assert settled(row(ev(9)), partition=replace(partition, held=1)).joins == (JOIN,)


def test_a_proof_is_kept_also_where_a_log_read_met_the_root_first() -> None:
    """The read refused and labelled; the next one orders by what the tail has proven since."""
    barred = replace(revoked(covered(STORED, head_anchor=ANCHOR), "x", 7), label="multiple_roots", held=1)
    found = settled(row(ev(9)), partition=barred)
    assert (found.run, found.joins) == ((), (JOIN,))
    assert found.partition.label == "multiple_roots"


def test_a_head_found_by_a_log_read_has_the_anchor_read_after_it_and_not_the_polls() -> None:
    """The poll at hand has anchor 200, and the log read that found 3 began after it."""
    log = (*STORED, ev(3, 2))
    order = chain_order(log, ())
    outcome = plan(STORED, order)
    for anchor, proven in ((900, False), (None, False), (700, True)):
        read = LogRead(8, EPOCH, anchor)
        after = populated(covered(STORED, head_anchor=ANCHOR), outcome, log, read)
        assert after.head_anchor == anchor
        found = settled(row(ev(9), 800, anchor=1000), partition=after, rows_stored=placed(log))
        assert bool(found.joins) == proven


def test_rows_that_may_not_be_stored_now_wait_joined_and_without_a_label() -> None:
    found = settled(row(ev(9)), reread=True)
    assert (found.run, found.partition.label, found.partition.held) == ((), None, 1)
    assert found.joins == (JOIN,)


# Contradictions


JOINED = placed((*STORED, ev(9), ev(8, 9)))


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([row(ev(3, 2))], True),
        ([row(ev(3, 1))], True),
        ([row(ev(3, 9))], True),
        ([row(ev(3, 8)), row(ev(4, 8))], True),
        ([row(ev(3, 77)), row(ev(4, 77))], True),
        ([row(ev(3, 8))], False),
        ([row(ev(3, 77))], False),
        ([row(ev(3), 50)], False),
    ],
    ids=["behind the tip", "earlier piece", "later piece", "fork", "fork far off", "head", "waits", "a root"],
)
def test_a_row_that_speaks_against_a_join_withdraws_it(rows: list[TailRow], named: bool) -> None:
    found = settled(*rows, rows_stored=JOINED, kept=Kept((JOIN,)))
    assert found.against.used == ((JOIN,) if named else ())
    if named:
        partition = found.partition
        assert (partition.label, partition.revoked_reason) == ("multiple_roots", "rejoin_withdrawn")
        assert (partition.coverage, found.run, found.news.labelled) == (None, (), True)


def test_a_label_does_not_keep_a_join_from_being_withdrawn() -> None:
    barred = replace(revoked(covered([each.event for each in JOINED]), "x", 7), label="multiple_roots")
    found = settled(row(ev(3, 2)), partition=barred, rows_stored=JOINED, kept=Kept((JOIN,)))
    assert found.against.used == (JOIN,)
    assert found.news.labelled, "a verdict is asked for"


def test_a_log_read_that_speaks_against_a_join_withdraws_it() -> None:
    partition = covered([each.event for each in JOINED])
    order = MultipleRoots((1, 9))
    done = Populated(Refused(order.label), order, partition, (), False, False, against=Kept((JOIN,)))
    found = settled(partition=partition, rows_stored=JOINED, kept=Kept((JOIN,)), populated=done)
    assert found.against.used == (JOIN,)
    assert found.partition.revoked_reason == "rejoin_withdrawn"


def test_a_contradiction_beside_a_gap_labels_though_2_7_names_the_gap() -> None:
    partition = covered([each.event for each in JOINED])
    events = (*(each.event for each in JOINED), ev(3, 2), ev(4, 77))
    order = chain_order(events, (JOIN,))
    assert order.label == "dangling_prev"
    done = Populated(Refused(order.label), order, partition, (), False, False, against=Kept((JOIN,)))
    found = settled(partition=partition, rows_stored=JOINED, kept=Kept((JOIN,)), populated=done)
    assert found.partition.label == "multiple_roots"


UNUSED = replace(JOIN, tip_event_id=4, root_event_id=30)
"""Kept while its root could not be stored."""


@pytest.mark.parametrize(
    ("rows", "against"),
    [
        ([row(ev(3, 2))], Kept((JOIN,))),
        ([row(ev(3, 4))], Kept((), (UNUSED,))),
        ([row(ev(3, 2)), row(ev(5, 4))], Kept((JOIN,), (UNUSED,))),
        ([row(ev(3, 1))], Kept((JOIN,), (UNUSED,))),
        ([row(ev(3, 77)), row(ev(5, 77))], Kept((JOIN,), (UNUSED,))),
        ([row(ev(3, 77))], Kept()),
    ],
    ids=["the joined tip", "the unused tip", "both", "fork", "fork far off", "waits"],
)
def test_a_row_withdraws_what_was_in_use_and_ends_what_was_not(rows: list[TailRow], against: Kept) -> None:
    stored = placed((*STORED, ev(9), ev(4, 9)))
    barred = covered([each.event for each in stored], held=1)
    found = settled(*rows, rows_stored=stored, kept=Kept((JOIN,), (UNUSED,)), partition=barred)
    assert found.against == against
    withdrawn = found.partition.revoked_reason == "rejoin_withdrawn"
    assert withdrawn == bool(against.used)


def test_an_unused_proof_whose_tip_is_named_hides_no_fork_from_a_join() -> None:
    """1 was its tip once; that a row names it forks the chain, so every join falls."""
    unused = replace(UNUSED, tip_event_id=1)
    found = settled(row(ev(3, 1)), rows_stored=JOINED, kept=Kept((JOIN,), (unused,)))
    assert found.against == Kept((JOIN,), (unused,))
    assert found.partition.revoked_reason == "rejoin_withdrawn"


@pytest.mark.parametrize("changes", [{"held": 1}, {"label": "multiple_roots"}, {"revoked_at": 3}])
def test_what_is_refused_or_held_asks_with_every_new_row(changes: dict[str, Any]) -> None:
    """Beside it a proof may be kept, and this row may name its tip."""
    stored = by_id(placed(STORED))
    partition = replace(covered(STORED), **changes)
    assert asks(partition, [row(ev(3, 2))], stored)
    assert not asks(partition, [row(STORED[1])], stored)


def test_who_holds_nothing_or_brings_neither_root_nor_fork_asks_nothing() -> None:
    stored = by_id(placed(STORED))
    at_head, root, fork = row(ev(3, 2)), row(ev(9)), row(ev(3, 1))
    assert not asks(covered(STORED), [at_head], stored)
    assert asks(covered(STORED), [at_head, root], stored)
    assert asks(covered(STORED), [fork], stored)
    assert asks(covered(STORED), [at_head, row(ev(4, 2))], stored)
    assert not asks(Partition(E), [root], {})
    assert not asks(covered(STORED, torn=Torn("coverage", (1, 2, None, None))), [root], stored)
    assert not asks(covered(STORED), [row(STORED[0])], stored), "a stored root is nothing new"


@pytest.mark.parametrize(("since", "joins"), [(5, (JOIN,)), (6, ()), (None, (JOIN,))])
def test_a_label_from_before_what_is_remembered_keeps_a_root_unproven(
    since: int | None, joins: tuple[Join, ...]
) -> None:
    """The root may have set it, and what comes now may be an UPDATE of it."""
    partition = replace(covered(STORED, head_anchor=ANCHOR), label="multiple_roots", labelled_at=5, held=1)
    assert settled(row(ev(9)), partition=partition, remembered_since=since).joins == joins
