"""How many rows to fetch at once, so that a piece has a bounded weight.

A row of the log has a few hundred bytes or a few hundred thousand, and nothing says which
before it is there: a statement begins with few rows, and what they weighed says how many are
fetched next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

AIM_BYTES: Final = 2 * 2**20
ROWS_FIRST: Final = 200
ROWS_MAX: Final = 2000


class PieceSize:
    """The rows of the next fetch, learned from the last."""

    def __init__(self) -> None:
        self.rows = ROWS_FIRST

    def learn(self, rows: int, size: int) -> None:
        """Aim at AIM_BYTES by what `rows` rows weighed."""
        if rows and size:
            self.rows = max(1, min(ROWS_MAX, rows * AIM_BYTES // size))


def weight(rows: Sequence[Any]) -> int:
    """The characters of the rows' bodies."""
    return sum(len(row["body"] or "") for row in rows)
