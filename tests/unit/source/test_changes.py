"""Messages come to what stands after them: a key once, with its last version."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.ports import Key
from sidecar.errors import SourceContractError
from sidecar.source.changes import Changes, Decoder
from sidecar.source.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Update,
    Values,
)
from tests.unit.source.messages import written

TABLE: Final = 7
COLUMNS: Final = ("execution_id", "catalog_id", "event_id", "status")
TEXT: Final = (25, -1)
RELATION: Final = Relation(TABLE, "noetl", "event", COLUMNS, (TEXT,) * 4)
NEEDED: Final = {"execution_id": TEXT, "event_id": TEXT, "status": TEXT}


def _decoder(*messages: Message) -> Decoder:
    decoder = Decoder(TABLE, NEEDED)
    for message in messages:
        data = written(message)
        decoder.take(data, len(data), 1)
    return decoder


def _insert(event_id: int, status: str = "a") -> Insert:
    return Insert(TABLE, ("1", "1", str(event_id), status))


def _update(event_id: int, status: str, *, before: int | None = None) -> Update:
    old = None if before is None else ("1", None, str(before), None)
    return Update(TABLE, old, ("1", "1", str(event_id), status))


def _delete(event_id: int) -> Delete:
    return Delete(TABLE, ("1", None, str(event_id), None))


OPERATIONS: Final = st.one_of(
    st.tuples(st.just("insert"), st.integers(1, 4)),
    st.tuples(st.just("update"), st.integers(1, 4)),
    st.tuples(st.just("move"), st.integers(1, 4)),
    st.tuples(st.just("delete"), st.integers(1, 4)),
    st.tuples(st.just("truncate"), st.just(0)),
)


@dataclass
class _Table:
    """A table, and what a reader of the stream is told of it."""

    rows: dict[int, str] = field(default_factory=dict)
    inserted: dict[int, bool] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    truncated: bool = False
    _versions = itertools.count()

    def does(self, what: str, event_id: int) -> Message | None:
        match what:
            case "insert" if event_id not in self.rows:
                version = self._stands(event_id, inserted=event_id not in self.gone)
                return _insert(event_id, version)
            case "update" if event_id in self.rows:
                return _update(event_id, self._stands(event_id, inserted=False))
            case "move" if event_id in self.rows and event_id + 10 not in self.rows:
                self._leaves(event_id)
                return _update(event_id + 10, self._stands(event_id + 10, inserted=False), before=event_id)
            case "delete" if event_id in self.rows:
                self._leaves(event_id)
                return _delete(event_id)
            case "truncate":
                self.rows.clear()
                self.inserted.clear()
                self.truncated = True
                return Truncate((3, TABLE))
        return None

    def _stands(self, event_id: int, *, inserted: bool) -> str:
        self.rows[event_id] = f"v{next(self._versions)}"
        self.inserted[event_id] = inserted
        self.gone.discard(event_id)
        return self.rows[event_id]

    def _leaves(self, event_id: int) -> None:
        del self.rows[event_id], self.inserted[event_id]
        self.gone.add(event_id)


@settings(deadline=None)
@given(st.lists(st.lists(OPERATIONS, max_size=6), max_size=5))
def test_any_stream_leaves_what_the_table_holds(transactions: list[list[tuple[str, int]]]) -> None:
    table, messages = _Table(), list[Message]([RELATION])
    for number, operations in enumerate(transactions, start=1):
        messages.append(Begin(100 * number, number))
        messages += [m for what, event_id in operations if (m := table.does(what, event_id)) is not None]
        messages.append(Commit(100 * number, 100 * number + 8))
    decoder = _decoder(*messages)
    changes = decoder.cut()
    assert {c.key[1]: c.texts[2] for c in changes.rows if c.texts is not None} == table.rows
    assert {c.key[1]: c.inserted for c in changes.rows} == table.inserted
    assert {event_id for _, event_id in changes.gone} == table.gone
    assert (changes.truncated, changes.unreadable) == (table.truncated, 0)
    assert decoder.end_lsn == (100 * len(transactions) + 8 if transactions else 0)
    assert all(c.commit_lsn == 100 * c.xid for c in changes.rows)
    assert [c.commit_lsn for c in changes.rows] == sorted(c.commit_lsn for c in changes.rows)
    assert decoder.cut() == Changes()


def test_a_piece_may_end_inside_a_transaction() -> None:
    decoder = _decoder(RELATION, Begin(100, 9), _insert(1))
    assert (decoder.open, decoder.rows, decoder.xids, decoder.end_lsn) == (True, 1, frozenset({9}), 0)
    assert [c.key for c in decoder.cut().rows] == [(1, 1)]
    assert (decoder.rows, decoder.xids) == (0, frozenset())
    for message in (_insert(2), Commit(100, 108)):
        data = written(message)
        decoder.take(data, len(data), 1)
    assert (decoder.open, decoder.end_lsn) == (False, 108)
    (change,) = decoder.cut().rows
    assert (change.key, change.xid, change.commit_lsn) == ((1, 2), 9, 100)


def test_a_row_bears_the_first_position_of_its_transaction_and_none_behind_its_own() -> None:
    """A savepoint's rows may stand before the first record that decoding knows of the whole."""
    decoder = Decoder(TABLE, NEEDED)
    for message, lsn in ((Begin(100, 9), 70), (RELATION, 80), (_insert(1), 80), (_insert(2), 60)):
        data = written(message)
        decoder.take(data, len(data), lsn)
    assert [(c.key[1], c.first_lsn, c.commit_lsn) for c in decoder.cut().rows] == [(1, 70, 100), (2, 60, 100)]


def test_a_change_from_before_a_column_had_its_type_is_read_by_its_key() -> None:
    before = Relation(TABLE, "noetl", "event", COLUMNS, (TEXT, TEXT, TEXT, (1043, 54)))
    other = Relation(TABLE, "noetl", "event", COLUMNS, (TEXT, (20, -1), TEXT, TEXT))
    messages = (before, Begin(1, 2), _insert(5), RELATION, _insert(6), other, _insert(7), Commit(1, 9))
    found = _decoder(*messages).cut().rows
    assert [(c.key[1], c.texts is None) for c in found] == [(5, True), (6, False), (7, False)]


def test_the_end_before_a_transaction_is_that_of_the_commit_before_it() -> None:
    other = Relation(8, "noetl", "other", ("id",), (TEXT,))
    messages: list[Message] = [RELATION, other]
    for number in (1, 2, 3):
        row = Insert(8, ("5",)) if number == 2 else _insert(number)
        messages += [Begin(100 * number, number), row, Commit(100 * number, 100 * number + 8)]
    decoder = _decoder(*messages)
    assert decoder.xids == {1, 3}
    assert [decoder.end_before(xids) for xids in ({1}, {3}, {1, 3})] == [0, 208, 0]


def test_other_tables_of_the_publication_are_of_no_interest() -> None:
    other = Relation(8, "noetl", "other", ("id",), (TEXT,))
    decoder = _decoder(Begin(1, 2), other, Insert(8, ("5",)), Delete(8, ("5",)), Truncate((8,)), Commit(1, 9))
    assert decoder.cut() == Changes()
    assert (decoder.xids, decoder.end_lsn) == (frozenset(), 9)


@pytest.mark.parametrize("value", [UNCHANGED, "missing"])
def test_a_row_that_is_not_all_there_is_read_by_its_key(value: object) -> None:
    new: Values = ("1", "1", "5", UNCHANGED)
    relation = RELATION
    if value == "missing":  # the column is younger than the change
        relation, new = Relation(TABLE, "noetl", "event", COLUMNS[:3], (TEXT,) * 3), ("1", "1", "5")
    (change,) = _decoder(relation, Begin(1, 2), Update(TABLE, None, new)).cut().rows
    assert (change.key, change.texts) == ((1, 5), None)


@pytest.mark.parametrize(
    "row", [_insert(5, "x" * 900), _update(5, "x" * 900), Delete(TABLE, ("1", None, "5", "x" * 900))]
)
def test_of_a_row_that_is_too_large_the_key_suffices(row: Insert | Update | Delete) -> None:
    decoder = _decoder(RELATION, Begin(1, 2))
    data = written(row)
    decoder.take(data[:100], len(data), 1)
    changes = decoder.cut()
    keys: set[Key] = {c.key for c in changes.rows} | changes.gone
    assert keys == {(1, 5)}
    assert all(c.texts is None for c in changes.rows)


@pytest.mark.parametrize("cut", [12, 20])
def test_a_row_whose_key_is_cut_away_is_counted(cut: int) -> None:
    decoder = _decoder(RELATION, Begin(1, 2))
    data = written(_insert(5, "x" * 900))
    decoder.take(data[:cut], len(data), 1)
    assert decoder.cut() == Changes(unreadable=1)


@pytest.mark.parametrize(
    "messages",
    [
        (RELATION, _insert(1)),
        (Begin(1, 2), _insert(1)),
        (RELATION, Begin(1, 2), Insert(TABLE, ("1", "1", "no number", "a"))),
        (RELATION, Truncate((TABLE,))),
    ],
    ids=["outside a transaction", "before its relation", "a key that is none", "a truncate outside"],
)
def test_a_stream_out_of_order_is_refused(messages: tuple[Message, ...]) -> None:
    with pytest.raises(SourceContractError, match="cannot be read"):
        _decoder(*messages)
