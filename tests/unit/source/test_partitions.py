"""Which lanes the sweep has, from what the catalog says."""

from __future__ import annotations

import pytest

from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.source.partitions import bounds_of, complement, parts_of


def _row(relid: int, bound: str | None, attached: str = "7", tree: str = "-") -> dict[str, object]:
    return {"relid": relid, "attached": attached, "bound": bound, "tree": tree}


@pytest.mark.parametrize(
    ("expression", "bounds"),
    [
        ("FOR VALUES FROM ('10') TO ('20')", (10, 19)),
        ("FOR VALUES FROM ('-5') TO ('20')", (-5, 19)),
        ("FOR VALUES FROM (MINVALUE) TO ('0')", (ID_MIN, -1)),
        ("FOR VALUES FROM ('0') TO (MAXVALUE)", (0, ID_MAX)),
        ("FOR VALUES FROM ('a') TO ('b')", None),
        ("FOR VALUES FROM ('1', '2') TO ('3', '4')", None),
        ("FOR VALUES IN ('1')", None),
        ("FOR VALUES WITH (modulus 4, remainder 0)", None),
        (None, None),
    ],
)
def test_bounds_are_ids_with_both_ends_included(expression: str | None, bounds: object) -> None:
    assert bounds_of(expression) == bounds


def test_default_is_what_the_others_leave() -> None:
    assert complement([(20, 29), (0, 9)]) == ((ID_MIN, -1), (10, 19), (30, ID_MAX))
    assert complement([]) == ((ID_MIN, ID_MAX),)
    assert complement([(ID_MIN, ID_MAX)]) == ()


def test_a_lane_is_a_partition_and_the_row_that_attached_it() -> None:
    rows = [_row(11, "FOR VALUES FROM ('0') TO ('10')", "5"), _row(12, "DEFAULT", "6")]
    first, rest = parts_of(1, rows, "tree")
    assert (first.lane, first.over.ranges) == ("sweep:11:5", ((0, 9),))
    assert (rest.lane, rest.over.ranges) == ("sweep:12:6", ((ID_MIN, -1), (10, ID_MAX)))


def test_attaching_changes_the_scope_of_default() -> None:
    before = parts_of(1, [_row(12, "DEFAULT")], "t")[0]
    attached = [_row(11, "FOR VALUES FROM ('0') TO ('10')"), _row(12, "DEFAULT")]
    after = next(part for part in parts_of(1, attached, "t") if part.lane == before.lane)
    assert before.over.predicate != after.over.predicate


def test_without_default_the_rest_is_a_lane_so_that_dropped_rows_are_missed() -> None:
    parts = parts_of(1, [_row(11, "FOR VALUES FROM ('0') TO ('10')")], "tree")
    assert [part.lane for part in parts] == ["sweep:11:7", "sweep:1:0"]
    assert parts[1].over.ranges == ((ID_MIN, -1), (10, ID_MAX))


@pytest.mark.parametrize("rows", [[], [_row(11, "FOR VALUES IN ('1')"), _row(12, "DEFAULT")]])
def test_a_table_without_ranges_of_execution_id_is_one_lane(rows: list[dict[str, object]]) -> None:
    (part,) = parts_of(1, rows, "tree")
    assert (part.lane, part.over.ranges, part.tree) == ("sweep:1:0", ((ID_MIN, ID_MAX),), "tree")
