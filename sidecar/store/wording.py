"""Statements that PostgreSQL needs in words of its own, beside SQLite's.

The package's statements are SQLite's; most of them PostgreSQL takes after a translation by rule
(`postgres.dialect`).  Where the two plan so differently that one text serves neither, both stand
in the module that asks.
"""

from __future__ import annotations

from typing import Final

POSTGRES: Final[dict[str, str]] = {}
"""By SQLite's text.  Parameters as `$1`, lists as `$1::bigint[]`."""


def worded(sqlite: str, *, postgres: str) -> str:
    """SQLite's text, by which PostgreSQL's is found."""
    POSTGRES[sqlite] = postgres
    return sqlite
