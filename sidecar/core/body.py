"""The canonical body in Python: the twin of the SQL expression in `source.body`.

The body of an event is one JSON object over a fixed list of columns, keys in code-point order,
NULL columns left out.  Postgres renders it in production; this twin renders the same bytes from
a decoded row, so that a second producer of an event (a WAL message, a test) can be compared with
the log.  A number is decimal text from end to end: no float ever touches it.

This module does not decide which columns a table has; a column that is absent counts as NULL.
Source: spec 1.3, 4.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from sidecar.errors import Invalid

JSONB_COLUMNS: Final = frozenset({"context", "meta", "payload_ref", "result"})
ID_COLUMNS: Final = frozenset(
    {
        "catalog_id",
        "command_id",
        "event_id",
        "execution_id",
        "frame_id",
        "parent_event_id",
        "parent_execution_id",
        "prev_event_id",
        "stage_id",
    }
)
BODY_KEYS: Final = (
    "aggregate_id",
    "aggregate_type",
    "catalog_id",
    "command_id",
    "context",
    "error",
    "event_id",
    "event_type",
    "execution_id",
    "frame_id",
    "meta",
    "node_id",
    "node_name",
    "node_type",
    "parent_event_id",
    "parent_execution_id",
    "payload_ref",
    "prev_event_id",
    "result",
    "stage_id",
    "status",
    "timestamp",
    "worker_id",
)
"""The keys of the body in their order; `timestamp` is the column created_at."""

_INSTANT: Final = re.compile(
    r"(?P<date>\d{4,}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9}))?"
    r"(?:Z|[+-]00(?::?00)?)?(?P<era> BC)?"
)


def canonical_body(row: Mapping[str, object]) -> str:
    """Render a decoded row to the bytes Postgres renders for it.

    Args:
        row: Column to value.  Ids are ints; jsonb columns are JSON text in any spelling;
            other columns are text.  `created_at` (or `timestamp`) is ISO text in UTC with up
            to nine fraction digits, or `infinity`.  Absent and None are NULL.

    Raises:
        Invalid: a value is not of its column's kind.

    Source: spec 4.2.
    """
    parts = []
    for key in BODY_KEYS:
        value = row.get(key)
        if key == "timestamp":
            value = row.get("created_at") if value is None else value
        if value is not None:
            parts.append(f'"{key}":{_rendered(key, value)}')
    return "{" + ",".join(parts) + "}"


def _rendered(key: str, value: object) -> str:
    if key in ID_COLUMNS and type(value) is int:
        return str(value)
    if key in JSONB_COLUMNS and isinstance(value, str):
        return jsonb_text(value)
    if key == "timestamp" and isinstance(value, str):
        return _quoted(timestamp_text(value))
    if key not in ID_COLUMNS and isinstance(value, str):
        return _quoted(value)
    raise Invalid(f"column {key} holds a {type(value).__name__}", hint="pass ids as int, all else as text")


def timestamp_text(value: str) -> str:
    """Truncate an instant to whole microseconds, trailing zeros trimmed, as to_json prints it.

    Source: spec 1.3.
    """
    if value in ("infinity", "-infinity"):
        return value
    found = _INSTANT.fullmatch(value)
    if found is None:
        raise Invalid("created_at is not an ISO instant in UTC", hint="pass YYYY-MM-DDTHH:MM:SS[.fraction]")
    fraction = (found["fraction"] or "")[:6].rstrip("0")
    return f"{found['date']}T{found['time']}{'.' if fraction else ''}{fraction}{found['era'] or ''}"


def jsonb_text(text: str) -> str:
    """What Postgres prints for `text::jsonb`.

    Raises:
        Invalid: `text` is not JSON.
    """
    try:
        value = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_no_constant)
    except ValueError:
        raise Invalid("a jsonb column holds no JSON text", hint="pass the column as JSON text") from None
    return _jsonb(value)


@dataclass(frozen=True, slots=True)
class _Number:
    """A number as it was spelled."""

    text: str


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _jsonb(value: object) -> str:
    match value:
        case dict():
            # jsonb sorts keys by length in bytes, then by bytes; of equal keys the last one stays.
            items = sorted(value.items(), key=lambda item: _key_order(item[0]))
            return "{" + ", ".join(f"{_quoted(key)}: {_jsonb(inner)}" for key, inner in items) + "}"
        case list():
            return "[" + ", ".join(map(_jsonb, value)) + "]"
        case _Number(spelled):
            return _numeric(spelled)
        case str():
            return _quoted(value)
        case _:
            return json.dumps(value)


def _key_order(key: str) -> tuple[int, bytes]:
    encoded = key.encode()
    return len(encoded), encoded


def _numeric(spelled: str) -> str:
    """A JSON number as Postgres's numeric prints it: no exponent, no negative zero."""
    number = Decimal(spelled)
    if not number:
        # Python keeps the exponent of a zero; numeric keeps only its fraction digits.
        number = Decimal((0, (0,), min(0, _exponent(number))))
    return f"{number:f}"


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
