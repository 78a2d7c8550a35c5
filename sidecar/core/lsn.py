"""Positions in Postgres's write-ahead log: 64-bit ints here, `16/B374D848` as Postgres prints them.

A position orders commits of one timeline of one system only.
"""

from __future__ import annotations

import re
from typing import Final

from sidecar.errors import invariant

_TEXT: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
LSN_MAX: Final = 2**64 - 1


def lsn_text(lsn: int) -> str:
    """The position as Postgres prints and reads it."""
    invariant(0 <= lsn <= LSN_MAX, "a position has 64 bits")
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """The position that `lsn_text` wrote.

    Raises:
        ValueError: it is none.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError("no position in a write-ahead log")
    return (int(found[1], 16) << 32) + int(found[2], 16)
