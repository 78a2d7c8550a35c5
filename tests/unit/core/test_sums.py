"""Whether a stored row's columns say what its body says."""

from __future__ import annotations

from typing import Any

from sidecar.core.body import canonical_body
from sidecar.core.event import Event
from sidecar.core.sums import MODULUS, StoredRow, StoredSums, agree, stored_sums, sums_of, word
from sidecar.core.verdict import Verdict

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


def _chain(*links: tuple[int, int | None]) -> list[StoredRow]:
    return [
        (seq, E, event_id, prev, None, b"x", _body(event_id, prev))
        for seq, (event_id, prev) in enumerate(links, start=1)
    ]


def _body(event_id: int, prev: int | None) -> bytes:
    link = {} if prev is None else {"prev_event_id": prev}
    row = {"event_id": event_id, "event_type": "x", "execution_id": E, "created_at": AT, **link}
    return canonical_body(row).encode()


def _event(row: StoredRow) -> Event:
    return Event(E, row[2], row[3], None, "x", row[6].decode())


def test_a_stored_chain_has_the_sums_of_its_log_in_any_order() -> None:
    rows = _chain((1, None), (3, 1), (2, 3))
    log = [_event(row) for row in reversed(rows)]
    assert stored_sums(rows) == StoredSums(sums_of(log), whole=True)
    assert agree(sums_of(log), stored_sums(rows))
    assert (sums_of(log).rows, sums_of(log).roots) == (3, 1)
    assert stored_sums(rows).sums.digest == sum(word(row[6]) for row in rows) % MODULUS
    assert not agree(None, stored_sums(rows)), "what could not be summed agrees with nothing"
    assert not agree(sums_of(log[1:]), stored_sums(rows))


def test_two_roots_are_two_and_the_chain_is_not_whole() -> None:
    stored = stored_sums(_chain((1, None), (2, None)))
    assert (stored.sums.rows, stored.sums.roots, stored.whole) == (2, 2, False)


def test_a_link_past_its_neighbour_and_a_number_that_is_left_out_are_seen() -> None:
    assert not stored_sums(_chain((1, None), (2, 1), (3, 1))).whole
    first, second = _chain((1, None), (2, 1))
    assert not stored_sums([first, (3, *second[1:])]).whole


def test_a_link_that_the_body_does_not_say_is_seen() -> None:
    first, second = _chain((1, None), (2, 1))
    assert not stored_sums([first, (*second[:6], _body(2, None))]).whole


def test_a_word_is_the_first_eight_bytes_of_the_hash_greatest_first() -> None:
    assert word(b"x") == 0x2D711642B726B044


def _placed(seq: int, event_id: int, prev: int | None) -> StoredRow:
    links = {} if prev is None else {"prev_event_id": prev}
    row = {"event_id": event_id, "event_type": "x", "execution_id": E, "created_at": AT, **links}
    return seq, E, event_id, prev, None, b"x", canonical_body(row).encode()


def test_a_root_behind_a_tip_is_whole_where_a_join_stands_for_it_and_nowhere_else() -> None:
    rows = [_placed(1, 1, None), _placed(2, 2, 1), _placed(3, 9, None), _placed(4, 4, 9)]
    assert stored_sums(rows, {9: 2}).whole
    assert stored_sums(rows, {9: 2}).verdict is Verdict.MATCH_REJOINED
    assert stored_sums(rows[:2], {9: 2}).verdict is Verdict.MATCH
    for joined in ({}, {9: 1}, {4: 2}):
        assert not stored_sums(rows, joined).whole
