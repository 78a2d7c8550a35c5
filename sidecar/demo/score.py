"""In which order a recording's transactions are opened and committed.

Transactions commit exactly in the recorded order, one after the other.  They are opened in
the recorded order of opening, so that many stand open at once, as they did.  A transaction
holds its connection until its turn to commit, which could starve the one everybody waits
for; therefore the last free connection is given only to the transaction whose turn it is.
So however few connections there are, that one is open or can be opened, and the playback
goes on.  With one connection the log is played serially.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from sidecar.demo.recording import Transaction
from sidecar.errors import invariant


class Score:
    """The shared state of the connections that play one recording."""

    def __init__(self, transactions: Sequence[Transaction], connections: int) -> None:
        """`transactions` in the order of commit; their positions count from 0."""
        invariant(connections >= 1, "a playback needs a connection")
        self._by_commit = tuple(transactions)
        self._by_opening = deque(sorted(transactions, key=lambda each: (each.opened_at, each.position)))
        self._taken: set[int] = set()
        self._connections = connections
        self._committed = 0
        self._changed = asyncio.Event()

    @property
    def committed(self) -> int:
        """How many transactions have committed; also the position whose turn it is."""
        return self._committed

    async def take(self) -> Transaction | None:
        """The transaction a free connection plays next; None when none is left."""
        while len(self._taken) < len(self._by_commit):
            if (chosen := self._choose()) is not None:
                self._taken.add(chosen.position)
                return chosen
            await self._change()
        return None

    async def turn(self, transaction: Transaction) -> None:
        """Wait until every transaction that committed earlier has done so here."""
        while self._committed != transaction.position:
            await self._change()

    def commit(self, transaction: Transaction) -> None:
        """Note that it has committed."""
        invariant(transaction.position == self._committed, "a commit out of turn")
        self._committed += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _choose(self) -> Transaction | None:
        at_turn = self._by_commit[self._committed]
        last_free = len(self._taken) - self._committed >= self._connections - 1
        if last_free:
            return at_turn if at_turn.position not in self._taken else None
        while self._by_opening[0].position in self._taken:
            self._by_opening.popleft()
        return self._by_opening.popleft()

    async def _change(self) -> None:
        await self._changed.wait()
