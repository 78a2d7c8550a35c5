"""JSON as values and back: nothing lost, nothing raised, no depth too deep."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.jsonvalue import ABSENT, Number, _built, _pieces, at, int_at, parsed, rendered
from tests.unit.core.told import DEEP, TEXT, VALUES

BRACKETS = "[" * DEEP + "]" * DEEP


@pytest.mark.parametrize(
    "number",
    [
        "12345678901234567890123",
        "-12345678901234567890123",
        "1.10",
        "1e400",
        "0.1234567890123456789",
        "9223372036854775808",
        "1" * 4_301,
        "1" * 100_000,
        "-" + "1" * 5_000 + ".5",
        "100000000000000000000",
        "0.0",
    ],
)
def test_a_number_comes_out_as_it_was_spelled(number: str) -> None:
    body = f'{{"event_id":1,"n":[{number}]}}'
    assert rendered(parsed(body)) == body.encode()


def test_an_integer_is_an_int_and_every_other_number_is_its_text() -> None:
    assert parsed('{"a":1,"b":1.0,"c":1E2}') == {"a": 1, "b": Number("1.0"), "c": Number("1E2")}


@pytest.mark.parametrize("text", ["0.0", "-0.00", "0e5", "0E5"])
def test_zero_is_falsy_in_every_spelling(text: str) -> None:
    assert not Number(text)
    assert not ABSENT


@pytest.mark.parametrize("text", ["0.1", "1e0", "-10.0", "1E-9"])
def test_other_numbers_are_not(text: str) -> None:
    assert Number(text)


def test_keys_come_in_code_point_order_without_spaces() -> None:
    body = '{"\U0001f680":1,"\uffff":2,"aa":3,"a":4,"é":5}'
    assert rendered(parsed(body)).decode() == '{"a":4,"aa":3,"é":5,"\uffff":2,"\U0001f680":1}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "1",
        "null",
        '"{}"',
        '{"a":}',
        '{"a":1}}',
        "{'a':1}",
        '{"a":NaN}',
        '{"a":"\\ud800"}',
        "\ud800",
        f'{{"event_id":1,"a":{BRACKETS}',
        BRACKETS,
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_what_is_no_object_is_no_value(text: str) -> None:
    assert parsed(text) is None


def test_a_body_of_any_depth_is_read_and_printed() -> None:
    opening = '{"k":' * DEEP
    numbers = "[" * DEEP + "1.10" + "]" * DEEP
    body = f'{{"context":{numbers},"event_id":1,"x":{opening}"é"{"}" * DEEP}}}'
    value = parsed(body)
    assert value is not None
    assert rendered(value).decode() == body
    assert at(value, "x", *["k"] * DEEP) == "é"


@pytest.mark.parametrize("string", ['"\\ud800"', '"a\\udfffb"'])
def test_half_a_surrogate_pair_is_no_value_in_a_deep_body_either(string: str) -> None:
    deep = f'{{"event_id":1,"x":{"[" * DEEP}{string}{"]" * DEEP}}}'
    keyed = f'{{"event_id":1,{string}:{BRACKETS}}}'
    assert parsed(deep) is None
    assert parsed(keyed) is None


def test_a_pair_is_a_character_in_a_deep_body() -> None:
    value = parsed(f'{{"event_id":1,"x":"\\ud83d\\ude80","y":{BRACKETS}}}')
    assert at(value, "x") == "\U0001f680"


def test_the_path_ends_where_something_is_no_object() -> None:
    assert at({"a": [1]}, "a", "b") is ABSENT
    assert at({"a": None}, "a") is None
    assert at({"a": None}, "b") is ABSENT
    assert at(ABSENT) is ABSENT


@given(VALUES)
def test_the_slow_ways_agree_with_the_fast_ones(value: Any) -> None:
    whole = {"event_id": 1, "v": value}
    text = rendered(whole).decode()
    assert "".join(_pieces(whole)) == text
    assert parsed(text) == whole == _built(text)


@given(
    st.recursive(
        st.none() | st.integers() | TEXT, lambda x: st.lists(x) | st.dictionaries(TEXT, x), max_leaves=8
    )
)
def test_the_canonical_text_is_what_the_standard_library_prints(value: Any) -> None:
    expected = json.dumps({"v": value}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert json.loads(rendered({"v": value})) == json.loads(expected)
    if "\x7f" not in expected:
        assert rendered({"v": value}).decode() == expected


@pytest.mark.parametrize(("number", "read"), [(2**63 - 1, True), (2**63, False), (-(2**63), True)])
def test_an_integer_of_64_bits_is_read_and_no_longer_one(number: int, read: bool) -> None:
    assert int_at({"n": number}, "n") == (number if read else None)
    assert int_at({"n": -(2**63) - 1}, "n") is None
