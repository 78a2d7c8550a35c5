"""Whether a stored row's columns say what its body says."""

from __future__ import annotations

from typing import Any

from sidecar.core.body import canonical_body
from sidecar.core.sums import StoredRow, stored_sums

E = 5
AT = "2026-01-02T03:04:05"


def _row(prev: int | None, parent: int | None, **columns: Any) -> StoredRow:
    row = {"event_id": 1, "event_type": "x", "execution_id": E, "created_at": AT, **columns}
    return 1, E, 1, prev, parent, b"x", canonical_body(row).encode()


def test_a_link_named_inside_a_value_is_no_link_of_the_row() -> None:
    nested = {"context": '{"prev_event_id": 7, "parent_execution_id": null}'}
    assert stored_sums([_row(None, None, **nested)]).whole
    assert stored_sums([_row(None, 9, parent_execution_id=9, **nested)]).whole


def test_a_column_that_was_emptied_is_seen_beside_its_body() -> None:
    nested = {"meta": '{"parent_execution_id": 7}'}
    assert not stored_sums([_row(None, None, prev_event_id=7)]).whole
    assert not stored_sums([_row(None, None, parent_execution_id=7, **nested)]).whole
    assert not stored_sums([_row(None, 7, **nested)]).whole
