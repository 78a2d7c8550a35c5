"""Asking the sweep for a whole round, begun after the question.

Whoever has learned that rows may have passed it by asks.  The sweep then polls every partition
once more and compares it, whatever horizon it has: rows that came, changed or went are all found.
"""

from __future__ import annotations


class Doubt:
    """One question at a time suffices: a round that begins after the last one answers all."""

    def __init__(self) -> None:
        self.asked = 0
        self.answered = 0
        """Up to which ticket."""

    def ask(self) -> int:
        """A ticket for `settled`."""
        self.asked += 1
        return self.asked

    def settle(self, ticket: int) -> None:
        """A round that began after `ticket` was drawn has ended."""
        self.answered = max(self.answered, ticket)

    def settled(self, ticket: int) -> bool:
        return ticket <= self.answered
