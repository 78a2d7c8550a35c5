"""Where a store on PostgreSQL stands: the connection, and the schema that holds it.

`postgresql://user@host:port/database?schema=noetl_chain&partitions=16`; what is not ours goes to
the driver.  The URL may hold a password and is never shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from sidecar.errors import ConfigError

SCHEMES: Final = ("postgresql://", "postgres://")
SCHEMA: Final = "noetl_chain"
PARTITIONS: Final = 16
PARTITIONS_MAX: Final = 256

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}", re.ASCII)
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,2}", re.ASCII)
_HINT: Final = "postgresql://user@host:port/database?schema=noetl_chain"


@dataclass(frozen=True, slots=True)
class Place:
    """A store's place.  `partitions`: into how many a new store is divided."""

    dsn: str = field(repr=False)
    schema: str = SCHEMA
    partitions: int = PARTITIONS


def is_postgres(url: str) -> bool:
    return url.startswith(SCHEMES)


def place_of(url: str) -> Place:
    """The place that `url` names.

    Raises:
        ConfigError: the URL cannot be read, or schema or partitions are none; it is not repeated.
    """
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError("the store's URL cannot be read", hint=_HINT) from None
    ours = {name: value for name, value in options if name in {"schema", "partitions"}}
    schema, partitions = ours.get("schema", SCHEMA), ours.get("partitions", str(PARTITIONS))
    if _NAME.fullmatch(schema) is None or schema.startswith("pg_"):
        raise ConfigError(
            "the store's schema is no plain name of at most 48 small letters, digits and _", hint=_HINT
        )
    if _NUMBER.fullmatch(partitions) is None or int(partitions) > PARTITIONS_MAX:
        raise ConfigError(f"partitions is no number from 1 to {PARTITIONS_MAX}", hint=_HINT)
    rest = urlencode([each for each in options if each[0] not in ours], quote_via=quote)
    head, _, _ = url.partition("?")
    return Place(f"{head}?{rest}" if rest else head, schema, int(partitions))
