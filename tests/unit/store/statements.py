"""A unit of work that answers from a table, and says what it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.store.connection import Row

Said = list[tuple[str, Sequence[object]]]


class Statements:
    """Called as a statement is; what is not in `answers` has no rows."""

    def __init__(self, answers: Mapping[str, Sequence[Row]]) -> None:
        self.said: Said = []
        self._answers = answers

    async def __call__(self, sql: str, parameters: Sequence[object]) -> list[Any]:
        self.said.append((sql, parameters))
        return list(self._answers.get(sql, ()))
