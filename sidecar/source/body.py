"""The canonical body as one SQL expression.

Live tail, log read and pushed-down comparison all select this one expression, so they cannot
differ.  `core.body.canonical_body` is its twin in Python.  The expression is right only in a
transaction with TimeZone=UTC and extra_float_digits=1 (`connection` sees to it).
Source: spec 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.core.body import BODY_KEYS

COLUMN_OF_KEY: Final[Mapping[str, str]] = {key: key for key in BODY_KEYS} | {"timestamp": "created_at"}
BODY_COLUMNS: Final = tuple(COLUMN_OF_KEY[key] for key in BODY_KEYS)

_INTEGERS: Final = frozenset({"bigint", "integer", "smallint"})


def body_sql(types: Mapping[str, str], alias: str) -> str:
    """The expression over the columns that the table has.

    Args:
        types: Column name to type name (`format_type`) of the installed table.
        alias: What the statement calls the table.

    A column that is not in `types` is left out of every body, as NULL is: concat_ws skips it.
    """
    parts = [
        f"""'"{key}":' || {_text_of(f"{alias}.{column}", types[column])}"""
        for key, column in COLUMN_OF_KEY.items()
        if column in types
    ]
    return "'{' || concat_ws(',', " + ", ".join(parts) + ") || '}'"


def _text_of(column: str, type_name: str) -> str:
    if type_name in _INTEGERS:
        return f"{column}::text"
    if type_name == "jsonb":
        return f"{column}::text"
    if type_name == "json":
        return f"{column}::jsonb::text"
    return f"to_json({column})::text"
