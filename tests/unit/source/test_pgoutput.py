"""Messages of pgoutput: each is read whole or refused, wherever it is torn."""

from __future__ import annotations

import struct
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.source.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Malformed,
    Message,
    Other,
    Relation,
    Row,
    Truncate,
    Update,
    Values,
    leading,
    parse,
)
from tests.unit.source.messages import tuple_of, written

unhurried = settings(deadline=None)

OIDS: Final = st.integers(0, 2**32 - 1)
LSNS: Final = st.integers(0, 2**63 - 1)
TEXTS: Final = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
VALUES: Final = st.lists(st.none() | TEXTS | st.just(UNCHANGED), max_size=6).map(tuple)
ROWS: Final = (
    st.builds(Insert, OIDS, VALUES)
    | st.builds(Update, OIDS, st.none() | VALUES, VALUES)
    | st.builds(Delete, OIDS, VALUES)
)
COLUMNS: Final = st.tuples(TEXTS, st.tuples(OIDS, st.integers(-1, 2**31 - 1)))


def _relation(oid: int, namespace: str, name: str, columns: list[tuple[str, tuple[int, int]]]) -> Relation:
    return Relation(oid, namespace, name, tuple(c[0] for c in columns), tuple(c[1] for c in columns))


MESSAGES: Final = (
    ROWS
    | st.builds(Begin, LSNS, OIDS)
    | st.builds(Commit, LSNS, LSNS)
    | st.builds(_relation, OIDS, TEXTS, TEXTS, st.lists(COLUMNS, max_size=5))
    | st.builds(Truncate, st.lists(OIDS, max_size=4).map(tuple))
    | st.builds(Other, st.sampled_from("OY"))
)


@unhurried
@given(MESSAGES)
def test_a_whole_message_is_read(message: Message) -> None:
    assert parse(written(message)) == message


@unhurried
@given(MESSAGES, st.data())
def test_a_torn_message_is_refused(message: Message, data: st.DataObject) -> None:
    whole = written(message)
    with pytest.raises(Malformed):
        parse(whole[: data.draw(st.integers(0, len(whole) - 1))])


@unhurried
@given(MESSAGES, st.binary(min_size=1, max_size=4))
def test_what_is_left_over_is_refused(message: Message, more: bytes) -> None:
    with pytest.raises(Malformed):
        parse(written(message) + more)


@unhurried
@given(st.sampled_from("BCRIUDTOYMS") | st.characters(max_codepoint=255), st.binary(max_size=60))
def test_bytes_of_any_kind_are_read_or_refused(kind: str, rest: bytes) -> None:
    try:
        message = parse(kind.encode("latin-1") + rest)
    except Malformed:
        return
    if not isinstance(message, Other):
        # Bytes have one reading: what they were read as is written with as many.
        assert len(written(message)) == len(rest) + 1 or isinstance(message, Relation)


@unhurried
@given(ROWS, st.data())
def test_of_a_cut_message_the_values_before_the_cut_are_read(row: Row, data: st.DataObject) -> None:
    whole = written(row)
    cut = data.draw(st.integers(0, len(whole)))
    try:
        found = leading(whole[:cut])
    except Malformed:
        before = b"" if not isinstance(row, Update) or row.old is None else b"K" + tuple_of(row.old)
        assert cut < 1 + 4 + len(before) + 1
        return
    values, all_values = _last(found), _last(row)
    assert type(found) is type(row)
    assert values == all_values[: len(values)]
    if cut == len(whole):
        assert found == row


def _last(row: Row) -> Values:
    return row.old if isinstance(row, Delete) else row.new


@pytest.mark.parametrize("message", [Begin(1, 2), Commit(1, 2), Truncate(()), Relation(1, "n", "e", (), ())])
def test_only_rows_have_leading_values(message: Message) -> None:
    with pytest.raises(Malformed):
        leading(written(message))


def test_a_text_that_is_no_utf8_is_refused() -> None:
    data = b"I" + struct.pack(">I", 1) + b"N" + struct.pack(">H", 1) + b"t" + struct.pack(">I", 1) + b"\xff"
    with pytest.raises(Malformed):
        parse(data)
    with pytest.raises(Malformed):
        leading(data)
