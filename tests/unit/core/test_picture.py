"""Every set of events has a picture, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.event import Event
from sidecar.core.picture import AtCircle, AtFork, AtGap, AtJoin, AtRoot, Fold, Node, Picture, folded, picture
from sidecar.core.rejoin import Join
from tests.support.changing import replace
from tests.unit.core.build import chain, ev, placed


def ids(drawing: Picture) -> list[tuple[object, list[int]]]:
    return [(run.entry, [node.event_id for node in run.nodes]) for run in drawing.runs]


def test_a_chain_is_one_run_whatever_the_order_of_the_rows() -> None:
    drawing = picture(tuple(reversed(chain(10, 30, 20))), None)
    assert ids(drawing) == [(AtRoot(), [10, 30, 20])]
    assert (drawing.roots, drawing.gaps, drawing.forks, drawing.circles) == ((10,), (), (), ())


def test_nothing_is_an_empty_picture() -> None:
    assert ids(picture((), ())) == ids(picture(None, None)) == []


def test_i11_every_root_has_its_run() -> None:
    drawing = picture((*chain(2001, 2002, 2003, 2004), ev(2005), ev(2006), ev(2007, 2006)), None)
    assert drawing.roots == (2001, 2005, 2006)
    assert ids(drawing) == [
        (AtRoot(), [2001, 2002, 2003, 2004]),
        (AtRoot(), [2005]),
        (AtRoot(), [2006, 2007]),
    ]


def test_i15_the_branches_of_a_fork_stand_behind_the_event_they_name() -> None:
    drawing = picture((ev(1), ev(2, 1), ev(3, 2), ev(4, 3), ev(5, 2), ev(6, 4), ev(7, 4)), None)
    assert drawing.forks == ((2, (3, 5)), (4, (6, 7)))
    assert ids(drawing) == [
        (AtRoot(), [1, 2]),
        (AtFork(2), [3, 4]),
        (AtFork(4), [6]),
        (AtFork(4), [7]),
        (AtFork(2), [5]),
    ]
    assert [run.rails for run in drawing.runs] == [(), (True,), (True, True), (True, False), (False,)]


def test_a_gap_names_what_is_missing_and_who_names_it() -> None:
    drawing = picture((*chain(11, 12, 13), ev(15, 14), ev(16, 15), ev(17, 14)), None)
    assert drawing.gaps == ((14, (15, 17)),)
    assert ids(drawing) == [(AtRoot(), [11, 12, 13]), (AtGap(14), [15, 16]), (AtGap(14), [17])]


def test_a_circle_is_drawn_from_its_smallest_event_with_what_hangs_on_it() -> None:
    drawing = picture((ev(3, 9), ev(7, 9), ev(9, 8), ev(8, 7), ev(5, 5)), None)
    assert drawing.circles == (7, 5)
    assert ids(drawing) == [
        (AtCircle(9), [7, 8, 9]),
        (AtFork(9), [3]),
        (AtCircle(5), [5]),
    ]


def test_a_row_that_stands_twice_is_drawn_once_and_counted() -> None:
    drawing = picture((ev(1), ev(2, 1), ev(2, 1, note="other")), None)
    assert drawing.duplicates == (2,)
    assert [node.marks for node in drawing.nodes] == [(), ("2 times in the log",)]


def test_both_sides_are_marked_and_a_side_that_was_not_read_is_not() -> None:
    log = (ev(1), ev(2, 1), ev(3, 2), ev(4, 3))
    stored = placed((ev(1, note="x"), ev(2, 1, parent=5), ev(3, 1), ev(9, 3)))
    marks = {node.event_id: node.marks for node in picture(log, stored).nodes}
    assert marks == {
        1: ("payload differs",),
        2: ("parent differs",),
        3: ("edge differs",),
        4: ("log only",),
        9: ("store only",),
    }
    assert {node.in_store for node in picture(log, None).nodes} == {None}
    assert {node.marks for node in picture(log, None).nodes} == {()}
    assert {node.marks for node in picture(None, stored).nodes} == {()}
    assert {node.in_store for node in picture(log, ()).nodes} == {False}


def test_the_name_of_a_step_is_read_from_the_body_and_a_broken_body_has_none() -> None:
    log = (
        replace(ev(1), body='{"node_name":"first"}'),
        replace(ev(2, 1), body='{"node_name":null}'),
        replace(ev(3, 2), body="no json"),
        replace(ev(4, 3), body='{"node_name":7}'),
        replace(ev(5, 4), body="[" * 5000),
    )
    assert [node.name for node in picture(log, None).nodes] == ["first", "", "", "", ""]


def fold_of(count: int, **last: str) -> list[int]:
    """Events shown, a fold as the negative number of what it leaves out."""
    rows = chain(*range(1, count + 1))
    run = picture((*rows[:-1], replace(rows[-1], **last)) if last else rows, None).runs[0]
    return [-len(each.nodes) if isinstance(each, Fold) else each.event_id for each in folded(run.nodes)]


def test_a_long_linear_run_is_folded_to_its_ends() -> None:
    assert fold_of(2) == [1, 2]
    assert fold_of(10) == list(range(1, 11))
    assert fold_of(73) == [1, 2, 3, 4, 5, -64, 70, 71, 72, 73]
    assert fold_of(500)[5] == -491
    assert fold_of(73, event_type="playbook.completed") == [1, 2, 3, 4, 5, -63, 69, 70, 71, 72, 73]


def test_what_is_marked_is_never_folded_among_what_is_not() -> None:
    rows = chain(*range(1, 51))
    stored = placed((*rows[:24], replace(rows[24], body="{}"), *rows[25:]))
    run = picture(rows, stored).runs[0]
    shown = [each.event_id for each in folded(run.nodes) if isinstance(each, Node)]
    assert 25 in shown
    assert [len(each.nodes) for each in folded(run.nodes) if isinstance(each, Fold)] == [15, 16]


def test_seventy_thousand_in_a_row_and_as_many_roots_need_no_recursion() -> None:
    assert len(picture(chain(*range(1, 70_001)), None).runs) == 1
    assert len(picture([ev(n) for n in range(1, 20_001)], None).runs) == 20_000


@given(st.lists(st.tuples(st.integers(1, 8), st.none() | st.integers(1, 9)), max_size=10))
def test_every_event_of_any_set_is_drawn_exactly_once(links: Sequence[tuple[int, int | None]]) -> None:
    events: list[Event] = [ev(event_id, prev) for event_id, prev in links]
    drawn = [node.event_id for node in picture(events, None).nodes]
    assert sorted(drawn) == sorted({event.event_id for event in events})
    assert picture(events, None) == picture(list(reversed(events)), None) or len(events) != len(drawn)


def test_three_of_one_gap_hang_on_it_and_the_last_closes_it() -> None:
    drawing = picture((*chain(11, 12), ev(15, 14), ev(16, 14), ev(17, 14)), None)
    assert [(run.entry, run.rails) for run in drawing.runs] == [
        (AtRoot(), ()),
        (AtGap(14), (True,)),
        (AtGap(14), (True,)),
        (AtGap(14), (False,)),
    ]


def test_a_node_says_its_type_and_where_it_stands_in_the_store() -> None:
    drawing = picture((ev(1, kind="playbook.started"),), placed((ev(1), ev(2, 1), ev(3, 2))))
    (run,) = drawing.runs
    assert [(node.event_type, node.position, node.in_log) for node in run.nodes] == [
        ("playbook.started", 0, True),
        ("step.exit", 1, False),
        ("step.exit", 2, False),
    ]
    only_log = picture((ev(1),), ())
    assert [node.position for node in only_log.runs[0].nodes] == [None]


def joined(tip: int, root: int, *, withdrawn_at: int | None = None) -> Join:
    return Join(1001, tip, root, 900, 870, "e", 1, withdrawn_at)


def test_a_joined_piece_stands_behind_its_tip_and_no_edge_is_made() -> None:
    rows = (*chain(50, 51), *chain(30, 31), *chain(40, 41))
    drawing = picture(rows, None, (joined(51, 30), joined(31, 40)))
    assert ids(drawing) == [(AtRoot(), [50, 51]), (AtJoin(51), [30, 31]), (AtJoin(31), [40, 41])]
    assert drawing.roots == (30, 40, 50)
    assert next(node for node in drawing.nodes if node.event_id == 30).prev_event_id is None
    assert len(drawing.joins) == 2


def test_a_join_that_no_longer_stands_or_is_contradicted_orders_nothing_and_is_kept_in_view() -> None:
    rows = (*chain(1, 2), *chain(3, 4))
    withdrawn = joined(2, 3, withdrawn_at=9)
    assert ids(picture(rows, None, (withdrawn,))) == ids(picture(rows, None))
    assert picture(rows, None, (withdrawn,)).joins == (withdrawn,)
    went_on = (*rows, ev(5, 2))
    assert ids(picture(went_on, None, (joined(2, 3),))) == ids(picture(went_on, None))
    twice = (*rows, ev(6))
    assert ids(picture(twice, None, (joined(2, 3), joined(2, 6)))) == ids(picture(twice, None))
    assert picture(rows, None, (joined(7, 3),)).joins == ()


def test_joins_in_a_circle_hide_no_event() -> None:
    drawing = picture((*chain(1, 2), *chain(3, 4)), None, (joined(2, 3), joined(4, 1)))
    assert sorted(node.event_id for node in drawing.nodes) == [1, 2, 3, 4]
