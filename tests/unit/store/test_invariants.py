"""What `store check` says of one partition: each contradiction by its kind and its words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from sidecar.core.rejoin import Join
from sidecar.store.invariants import ChainSeen, Contradiction, of_due, of_partition

E = 7
RECORD: dict[str, Any] = {
    "execution_id": E,
    "parent_execution_id": None,
    "head_seq": 3,
    "head_event_id": 30,
    "wm_first": 1,
    "wm_through": 3,
    "cov_root": 10,
    "cov_total": 3,
    "held": 0,
    "rows_seen": 3,
    "label": None,
    "labelled_at": None,
    "revoked_reason": None,
    "revoked_at": None,
    "terminal": 0,
    "verdict": None,
    "verdict_at": None,
    "verdict_rows": 0,
    "counted_kinds": "",
}
Row = tuple[int, int, int | None, int | None, str]
ROWS: tuple[Row, ...] = (
    (1, 10, None, None, "log"),
    (2, 20, 10, None, "log"),
    (3, 30, 20, None, "log"),
)
UNCOVERED: dict[str, Any] = {"cov_root": None, "cov_total": None}
EMPTY = {"head_seq": 0, "head_event_id": None, "wm_first": 0, "wm_through": 0, "rows_seen": 0}


def seen(rows: Iterable[Row] = ROWS, *joins: Join) -> ChainSeen:
    chain = ChainSeen(joins=joins)
    for row in rows:
        chain.add(*row)
    return chain


def said(rows: Iterable[Row] = ROWS, *joins: Join, **changed: Any) -> list[Contradiction]:
    return list(of_partition({**RECORD, **changed}, seen(rows, *joins)))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"terminal": 1, "verdict": "match", "verdict_at": 0, "counted_kinds": "count,edge"},
        {"verdict": "excluded", "verdict_at": 1},
        {**UNCOVERED, "wm_through": 4},
        {**UNCOVERED, "label": "fork", "labelled_at": 0, "revoked_reason": "x", "revoked_at": 0},
    ],
)
def test_what_is_legal_is_not_told(changed: dict[str, Any]) -> None:
    assert said(**changed) == []


@pytest.mark.parametrize("marks", [{"wm_first": 1, "wm_through": 1}, {"wm_first": 0, "wm_through": 0}])
def test_a_mark_may_name_one_row_or_none(marks: dict[str, Any]) -> None:
    assert said(**UNCOVERED, **marks) == []


def test_an_empty_execution_is_covered_by_nothing() -> None:
    assert said((), **EMPTY, cov_root=None, cov_total=0) == []


CANNOT = "covered, and cannot be served: "


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"head_event_id": 99},
            [("head", "the head is 3:99, the last row 3:30")],
        ),
        (
            {"head_seq": 2},
            [
                ("head", "the head is 2:30, the last row 3:30"),
                ("coverage", f"{CANNOT}watermark_mismatch"),
            ],
        ),
        ({"parent_execution_id": 5}, [("parent", "the partition and its first row name different parents")]),
        (
            {"wm_first": None},
            [("watermark", "half of it is missing"), ("coverage", f"{CANNOT}not_populated")],
        ),
        (
            {"wm_through": None},
            [("watermark", "half of it is missing"), ("coverage", f"{CANNOT}not_populated")],
        ),
        ({"wm_first": 4}, [("watermark", "4:3 is none")]),
        ({"wm_first": 0}, [("watermark", "0:3 is none")]),
        ({**UNCOVERED, "wm_first": -1, "wm_through": -1}, [("watermark", "-1:-1 is none")]),
        ({"cov_total": None}, [("coverage", "a total of None is none")]),
        ({**UNCOVERED, "cov_root": 0}, [("coverage", "a total of None is none")]),
        (
            {"cov_root": None, "cov_total": -1},
            [("coverage", "a total of -1 is none"), ("coverage", f"{CANNOT}coverage_total_mismatch")],
        ),
        ({"cov_root": 99}, [("coverage", f"{CANNOT}coverage_root_mismatch")]),
        ({"revoked_reason": "x", "revoked_at": 0}, [("coverage", "it was revoked and is there")]),
        ({"label": "fork", "labelled_at": 0}, [("coverage", "it was revoked and is there")]),
        (
            {**UNCOVERED, "label": "fork"},
            [("bar", "only one of label and labelled_at is set")],
        ),
        ({"revoked_reason": "x"}, [("bar", "only one of revoked_reason and revoked_at is set")]),
        (
            {"held": -1, "rows_seen": -2, "verdict_rows": -3},
            [("count", "held is -1"), ("count", "rows_seen is -2"), ("count", "verdict_rows is -3")],
        ),
        ({"terminal": 2}, [("word", "terminal is 2")]),
        ({"verdict": "fine", "verdict_at": 1}, [("word", "the verdict is none")]),
        ({"verdict": "match"}, [("word", "only one of verdict and verdict_at is set")]),
        ({"verdict_at": 0}, [("word", "only one of verdict and verdict_at is set")]),
        ({"counted_kinds": "count,x"}, [("word", "the counted kinds are none")]),
        ({"counted_kinds": "count edge"}, [("word", "the counted kinds are none")]),
    ],
)
def test_what_a_record_contradicts_is_told_in_words(
    changed: dict[str, Any], told: list[tuple[str, str]]
) -> None:
    assert [(each.kind, each.detail) for each in said(**changed)] == told


def test_a_negative_head_is_a_count_that_is_none() -> None:
    assert Contradiction("count", "head_seq is -1") in said((), **UNCOVERED, head_seq=-1)


def test_rows_without_a_record_belong_to_none() -> None:
    assert list(of_partition(None, seen())) == [
        Contradiction("no_partition", "3 rows belong to no partition")
    ]


def test_a_missing_row_is_told_once_and_what_follows_it_is_not_unlinked() -> None:
    rows = (ROWS[0], (3, 30, 20, None, "log"), (5, 50, 40, None, "log"))
    chain = seen(rows)
    assert (chain.missing_seq, chain.unlinked, chain.incomplete) == (2, None, False)
    found = said(rows, **UNCOVERED, head_seq=5, head_event_id=50, wm_through=5)
    assert found == [Contradiction("sequence", "exec_seq 2 is missing")]
    found = said(rows, head_seq=5, head_event_id=50, wm_through=5)
    assert found[1:] == [Contradiction("coverage", f"{CANNOT}chain_gap")]


def test_a_missing_beginning_names_no_parent() -> None:
    rows = ((2, 20, 10, 5, "log"), (3, 30, 20, 5, "log"))
    assert said(rows, **UNCOVERED) == [Contradiction("sequence", "exec_seq 1 is missing")]


def test_replicated_rows_may_have_holes_and_one_that_is_not_ends_that() -> None:
    holes = ((1, 10, None, None, "replicated"), (3, 30, 20, None, "replicated"))
    assert seen(holes).incomplete
    assert not seen(ROWS).incomplete
    assert said(holes, **UNCOVERED) == []
    for at in (0, 1):
        mixed = list(holes)
        mixed[at] = (*holes[at][:4], "log")
        assert not seen(mixed).incomplete
        assert said(mixed, **UNCOVERED) == [Contradiction("sequence", "exec_seq 2 is missing")]


def test_the_first_row_out_of_line_is_named() -> None:
    rows = (ROWS[0], (2, 20, 99, None, "log"), (3, 30, 98, None, "log"))
    assert said(rows) == [
        Contradiction("link", "event 20 does not name the event before it"),
        Contradiction("coverage", f"{CANNOT}chain_gap"),
    ]


JOIN = Join(E, 20, 30, xid=5, anchor=5, epoch="e", joined_at=1)
OVER = (*ROWS[:2], (3, 30, None, None, "log"))


def test_a_root_may_stand_behind_the_tip_that_it_was_joined_to() -> None:
    assert said(OVER, JOIN) == []
    assert said(OVER, Join(E, 10, 20, 5, 5, "e", 1), JOIN) == []


@pytest.mark.parametrize("other", [(), (Join(E, 10, 30, 5, 5, "e", 1),), (Join(E, 20, 10, 5, 5, "e", 1),)])
def test_a_root_behind_another_event_is_out_of_line(other: tuple[Join, ...]) -> None:
    assert [each.kind for each in said(OVER, *other)] == ["link", "coverage"]


def test_a_row_that_names_another_event_is_not_joined() -> None:
    rows = (*ROWS[:2], (3, 30, 10, None, "log"))
    assert [each.kind for each in said(rows, JOIN)] == ["link", "coverage"]


def test_over_a_withdrawn_join_nothing_may_be_served() -> None:
    first = Join(E, 10, 20, 5, 5, "e", 1, withdrawn_at=2)
    second = Join(E, 20, 30, 5, 5, "e", 1, withdrawn_at=2)
    rows = (ROWS[0], (2, 20, None, None, "log"), (3, 30, None, None, "log"))
    assert seen(rows, first, second).over_withdrawn == 20
    assert said(rows, first, second) == [Contradiction("coverage", f"{CANNOT}chain_gap")]
    assert said(rows, first, second, **UNCOVERED) == []


def test_a_join_that_its_numbers_do_not_prove_is_told() -> None:
    forged = Join(E, 20, 30, xid=4, anchor=5, epoch="e", joined_at=1)
    assert said(OVER, forged)[0] == Contradiction("join", "root 30 is not proven by its own numbers")


DUE: dict[str, Any] = {
    **dict.fromkeys(
        ("due_at", "reread", "changed", "labelled", "first_seen_at", "last_row_at", "terminal_seen"), 0
    ),
    "tries": 0,
    "pending_key": None,
    "pending_since": None,
}


def test_an_entry_of_the_work_list_in_words() -> None:
    assert list(of_due(DUE)) == []
    assert list(of_due({**DUE, "reread": None, "pending_key": "", "pending_since": 0})) == []
    for name in ("due_at", "reread", "changed", "labelled", "first_seen_at", "last_row_at", "terminal_seen"):
        assert list(of_due({**DUE, name: -1})) == [Contradiction("due", f"no time: {name}")]
    both = {**DUE, "due_at": -1, "changed": -1}
    assert list(of_due(both)) == [Contradiction("due", "no time: due_at, changed")]
    assert list(of_due({**DUE, "tries": -1})) == [Contradiction("due", "tries is -1")]
    half = Contradiction("due", "only one of pending_key and pending_since is set")
    assert list(of_due({**DUE, "pending_key": "k"})) == [half]
    assert list(of_due({**DUE, "pending_since": 0})) == [half]
