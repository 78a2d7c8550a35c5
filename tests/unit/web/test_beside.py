"""Evidence side by side: which rows belong together, and where they first differ."""

from __future__ import annotations

from sidecar.core.event import Event
from sidecar.core.evidence import Rows, side
from sidecar.web.beside import AFTER, BEFORE, Pair, beside, cut
from tests.support.changing import replace
from tests.unit.core.build import chain, ev


def kept(log: tuple[Event, ...], store: tuple[Event, ...], *, ordered: bool = True) -> dict[str, object]:
    """Evidence as the comparator keeps it."""
    rows = Rows()
    return {
        "log": side(len(log), 1, [rows.row(e, i if ordered else None) for i, e in enumerate(log)]),
        "store": side(len(store), 2, [rows.row(e, i, origin="log") for i, e in enumerate(store)]),
    }


def differing(pair: Pair) -> list[str]:
    return [cell.name for each in (pair.log or pair.store,) if each for cell in each.cells if cell.differs]


def test_equal_rows_are_equal_and_the_first_difference_is_marked_once() -> None:
    rows = chain(1, 2, 3, 4)
    store = (rows[0], replace(rows[1], body="{}"), replace(rows[2], event_type="x"), rows[3])
    pairs = beside(kept(rows, store), payload=False)
    assert [(pair.position, pair.differs, pair.first) for pair in pairs] == [
        (0, False, False),
        (1, True, True),
        (2, True, False),
        (3, False, False),
    ]
    assert differing(pairs[1]) == ["bytes", "sha256"]
    assert differing(pairs[2]) == ["type"]


def test_without_the_token_no_body_is_there_in_any_form() -> None:
    rows = (replace(ev(1), body='{"secret":"s3cr3t"}'),)
    store = (replace(ev(1), body='{"secret":"other"}'),)
    for pair in beside(kept(rows, store), payload=False):
        assert pair.log is not None
        assert pair.log.body is None
        assert pair.at is None
    assert "s3cr3t" not in repr(beside(kept(rows, store), payload=False))


def test_with_it_both_bodies_are_cut_where_they_begin_to_differ() -> None:
    (pair,) = beside(kept((replace(ev(1), body="abcX"),), (replace(ev(1), body="abcY"),)), payload=True)
    assert pair.log is not None
    assert pair.store is not None
    assert pair.at == 3
    assert (pair.log.body, pair.store.body) == (cut("abcX", 3), cut("abcY", 3))
    assert pair.log.body is not None
    assert (pair.log.body.same, pair.log.body.other) == ("abc", "X")


def test_a_body_that_is_the_beginning_of_the_other_differs_at_its_end() -> None:
    (pair,) = beside(kept((replace(ev(1), body="abc"),), (replace(ev(1), body="abcd"),)), payload=True)
    assert pair.at == 3


def test_a_long_body_is_cut_around_the_difference_and_says_how_much_is_left_out() -> None:
    body = cut("a" * 100_000 + "b" * 100_000, 100_000)
    assert (body.cut_before, len(body.same)) == (100_000 - BEFORE, BEFORE)
    assert (len(body.other), body.cut_after) == (AFTER, 100_000 - AFTER)


def test_a_body_that_does_not_differ_is_not_marked() -> None:
    body = cut("a" * 1000, None)
    assert (body.cut_before, len(body.same), body.other, body.cut_after) == (0, AFTER, "", 1000 - AFTER)


def test_what_does_not_print_is_written_out() -> None:
    assert cut("\u202e\n", 0).other == "\\u202e\\u000a"


def test_a_body_that_was_too_long_to_keep_is_known_by_its_hash() -> None:
    rows = (replace(ev(1), body="x" * 300_000),)
    (pair,) = beside(kept(rows, (ev(1),)), payload=True)
    assert pair.log is not None
    assert pair.log.body is None
    assert "sha256" in differing(pair)


def test_a_row_that_one_side_lacks_stands_beside_nothing() -> None:
    pairs = beside(kept(chain(1, 2), chain(1, 2, 3)), payload=False)
    assert (pairs[2].log, pairs[2].absent, pairs[2].differs, pairs[2].first) == (None, True, True, True)
    assert differing(pairs[2]) == []


def test_a_row_that_was_only_not_kept_is_no_difference() -> None:
    told = kept(chain(1, 2, 3), chain(1, 2, 3))
    told["store"]["shown"] = told["store"]["shown"][:2]  # type: ignore[index]
    assert [pair.differs for pair in beside(told, payload=False)] == [False, False, False]
    told["only_log"] = {"count": 1, "first": ["3"]}
    assert [pair.first for pair in beside(told, payload=False)] == [False, False, True]


def test_rows_without_an_order_are_matched_by_their_ids_twins_included() -> None:
    log = (ev(1), ev(2, 1), ev(2, 1, note="again"))
    pairs = beside(kept(log, (ev(2, 1), ev(1)), ordered=False), payload=False)
    assert [(pair.log is None, pair.store is None) for pair in pairs] == [
        (False, False),
        (False, True),
        (False, False),
    ]


def test_evidence_that_had_to_go_and_one_without_sides_are_no_pairs() -> None:
    assert beside(None, payload=True) == ()
    assert beside({"log": None}, payload=True) == ()
