"""The canonical body in Python, where no Postgres is needed to know the answer."""

from __future__ import annotations

import pytest

from sidecar.core.body import BODY_KEYS, canonical_body, jsonb_text, timestamp_text
from sidecar.errors import Invalid


def test_keys_stand_in_code_point_order() -> None:
    assert list(BODY_KEYS) == sorted(BODY_KEYS)


def test_null_and_absent_columns_are_left_out() -> None:
    row = {"execution_id": 1, "event_id": 2, "prev_event_id": None, "context": "null", "error": ""}
    assert canonical_body(row) == '{"context":null,"error":"","event_id":2,"execution_id":1}'


def test_columns_outside_the_list_never_show() -> None:
    assert canonical_body({"event_id": 1, "tenant_id": "default", "ingest_time": "x"}) == '{"event_id":1}'


def test_ids_beyond_two_to_the_53_are_exact() -> None:
    assert canonical_body({"event_id": 2**63 - 1}) == '{"event_id":9223372036854775807}'


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("2026-11-30T01:02:03", "2026-11-30T01:02:03"),
        ("2026-11-30 01:02:03.120000", "2026-11-30T01:02:03.12"),
        ("2026-11-30T01:02:03.123456789Z", "2026-11-30T01:02:03.123456"),
        ("2026-11-30T01:02:03.999999999+00:00", "2026-11-30T01:02:03.999999"),
        ("2026-11-30T01:02:03.000000999", "2026-11-30T01:02:03"),
        ("10000-01-01 00:00:00", "10000-01-01T00:00:00"),
        ("0044-03-15 00:00:00 BC", "0044-03-15T00:00:00 BC"),
        ("infinity", "infinity"),
        ("-infinity", "-infinity"),
    ],
)
def test_i39_an_instant_is_truncated_to_whole_microseconds(given: str, printed: str) -> None:
    assert timestamp_text(given) == printed


def test_i39_nine_and_six_digits_of_one_instant_give_one_body() -> None:
    nine = canonical_body({"timestamp": "2026-11-30T01:02:03.123456789Z"})
    six = canonical_body({"created_at": "2026-11-30T01:02:03.123456"})
    assert nine == six == '{"timestamp":"2026-11-30T01:02:03.123456"}'


def test_a_difference_of_a_microsecond_shows() -> None:
    assert timestamp_text("2026-11-30T01:02:03.000001") != timestamp_text("2026-11-30T01:02:03.000002")


@pytest.mark.parametrize("text", ["2026-11-30", "2026-11-30T01:02:03+02:00", "yesterday", ""])
def test_an_instant_in_no_known_form_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        timestamp_text(text)


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("1E2", "100"),
        ("1.10", "1.10"),
        ("1.10e5", "110000"),
        ("-0", "0"),
        ("-0.00", "0.00"),
        ("0e5", "0"),
        ("0e-3", "0.000"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("1e400", "1" + "0" * 400),
        ("1e-3", "0.001"),
        ("0.1234567890123456789", "0.1234567890123456789"),
    ],
)
def test_numbers_are_decimal_text(given: str, printed: str) -> None:
    assert jsonb_text(given) == printed


def test_keys_of_jsonb_stand_by_length_then_by_bytes_and_the_last_of_equals_stays() -> None:
    assert jsonb_text('{"aaa":0,"bb":1,"é":2,"a":3,"b":4,"a":5}') == (
        '{"a": 5, "b": 4, "bb": 1, "é": 2, "aaa": 0}'
    )


def test_strings_are_escaped_as_postgres_escapes_them() -> None:
    given = r'"\u0001\u001f\b\f\n\r\t\"\\\/\u2028\ud83d\ude00"' + " "
    assert jsonb_text(given) == '"\\u0001\\u001f\\b\\f\\n\\r\\t\\"\\\\/\u2028\U0001f600"'


@pytest.mark.parametrize("text", ["", "{", "NaN", "[1,]", "'a'"])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        jsonb_text(text)


@pytest.mark.parametrize("row", [{"event_id": "1"}, {"event_id": True}, {"context": {}}, {"error": 1}])
def test_a_value_of_the_wrong_kind_is_refused(row: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        canonical_body(row)


@pytest.mark.parametrize(
    ("row", "message", "hint"),
    [
        ({"event_type": 7}, "column event_type holds a int", "pass ids as int, all else as text"),
        (
            {"created_at": "yesterday"},
            "created_at is not an ISO instant in UTC",
            "pass YYYY-MM-DDTHH:MM:SS[.fraction]",
        ),
        ({"context": "{"}, "a jsonb column holds no JSON text", "pass the column as JSON text"),
    ],
)
def test_a_row_that_has_no_body_is_refused_with_what_to_do(
    row: dict[str, object], message: str, hint: str
) -> None:
    with pytest.raises(Invalid) as caught:
        canonical_body(row)
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_a_whole_number_of_any_length_is_kept() -> None:
    assert jsonb_text("1" * 5_000) == "1" * 5_000
