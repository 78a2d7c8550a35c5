"""The one connection that writes, fenced by an epoch.

Whoever opens the store raises the epoch in the table `writer`; every transaction counts a unit
under its own epoch before anything else, which locks that row until the end.  So an opener waits
for the transaction under way, and the one it replaced can begin none any more, whether a pooler
stands in between or not.

The count also answers what a lost connection leaves open: a commit whose answer never came was
done if the count is there.  Where leaves stand on other servers it does not: those commit one by
one before the count, so the process ends and what it begins again reads everything anew.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NoReturn

from sidecar.core import pulse
from sidecar.errors import Invalid, StoreBusy, StoreCorrupt, StoreError, StoreFenced, StoreFull
from sidecar.store.connection import Row
from sidecar.store.postgres.connection import (
    CONNECT_S,
    STATEMENT_S,
    WRITING,
    Layout,
    PostgresConnection,
    begin,
    connect,
)
from sidecar.store.postgres.failure import postgres_errors
from sidecar.store.postgres.url import Place

TAKE_S: Final = 45.0
"""How long a taker waits for the transaction of the one before; longer than that may stand idle."""
IDLE_S: Final = 30.0
RESOLVE_S: Final = 20.0
_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 1.0

_TAKE: Final = (
    "UPDATE writer SET epoch = epoch + 1, holder = $1, taken_at = clock_timestamp()"
    # The second: a taking of ours whose COMMIT got no answer, and was done.
    " WHERE $2::bigint IS NULL OR epoch = $2 OR (epoch = $2 + 1 AND holder = $1 AND taken_at = $3)"
    " RETURNING epoch, unit, taken_at"
)
_HOLDER: Final = "SELECT epoch, unit, holder FROM writer"
# Where a commit may have been done on one server and not here, numbers were given that nobody
# counted; what comes next lies far behind them.
_SKIP: Final = "UPDATE sequence SET high = high + 4294967296 WHERE dataset IN ('event', 'd3_projection')"


def signed() -> str:
    """Who we are, for the one that is fenced off."""
    return f"process {os.getpid()} on {socket.gethostname()}"


class FencedWriter(PostgresConnection):
    """The writer; `take` before its first hold."""

    def __init__(self, place: Place, layout: Layout) -> None:
        super().__init__(place, layout)
        self._epoch: int | None = None
        self._unit = 0
        self._counted = 0
        self._offered: datetime | None = None

    @property
    def epoch(self) -> int | None:
        return self._epoch

    async def take(self) -> None:
        """Become the writer, or become it again on a new connection.

        Raises:
            StoreFenced: somebody else became it meanwhile.
            StoreBusy, StoreFull: the server cannot be asked, or the transaction before ours does not end.
            StoreError: the server has lost what it had committed.
        """
        self._drop()
        self._raw = await connect(self._place)
        try:
            await self._say(begin(self._place, WRITING, f"SET LOCAL lock_timeout = {round(TAKE_S * 1000)}"))
            found = await self._ask(_TAKE, (signed(), self._epoch, self._offered))
            if not found:
                self._refused(await self._ask(_HOLDER, ()))
            epoch, unit, self._offered = found[0]
            if self._epoch is not None:
                self._epoch = epoch - 1  # the row is locked: the one before was ours, whichever it was
            if self._layout.servers:
                await self._say(_SKIP)
            await self._say("COMMIT")
        except BaseException:
            self._drop()
            raise
        first, self._epoch = self._epoch is None, epoch
        if first:
            self._unit = unit
        elif unit not in (self._unit, self._unit + 1):
            raise _put_back()
        self._counted = unit

    def _refused(self, found: Sequence[Row]) -> NoReturn:
        """Say why this writer may not write, by the row of the table `writer`."""
        if not found:
            raise unwritten()
        epoch, unit, holder = found[0]
        if self._epoch is not None and (epoch < self._epoch or (epoch == self._epoch and unit < self._unit)):
            raise _put_back()
        if epoch == self._epoch:
            raise _unknown()
        namesake = "another start of " if holder == signed() else ""
        raise StoreFenced(
            f"the store was taken over by {namesake}{holder}",
            hint="one sidecar a store: stop the other one, or give this one a schema of its own",
        )

    async def _try_to_begin(self) -> None:
        if self._raw is None or self._raw.is_closed():
            await self.take()
            if self._counted != self._unit:
                raise _unknown()
        try:
            await super()._try_to_begin()
        except (StoreFenced, Invalid):
            # No value was given: it is the fence that found no row.
            self._refused(await self._seen())

    async def _seen(self) -> list[Row]:
        """What the fence saw, from another connection."""
        looking = PostgresConnection(self._place, self._layout)
        try:
            return await looking.alone(_HOLDER)
        finally:
            await looking.close()

    def _beginning(self) -> str:
        return begin(
            self._place,
            WRITING,
            "SET LOCAL synchronous_commit = on",
            f"SET LOCAL idle_in_transaction_session_timeout = {round(IDLE_S * 1000)}",
            f"SELECT fence({self._epoch}, {self._unit + 1})",
        )

    async def _commit(self) -> None:
        self._check()
        try:
            with postgres_errors(), pulse.waiting(STATEMENT_S + CONNECT_S):
                said = await self._raw.execute("COMMIT", timeout=STATEMENT_S + CONNECT_S)
        except StoreError as error:
            self._drop()
            if self._layout.servers:
                raise StoreError(
                    "the store's servers may disagree about the last transaction",
                    hint="start again: it is read from the log anew, which writes nothing twice",
                ) from error
            await self._resolve(error)
            said = "COMMIT"
        if said != "COMMIT":
            raise StoreError("the store's server rolled back what it was to commit")
        self._unit += 1
        self._begun = False

    async def _resolve(self, lost: StoreError) -> None:
        """Return if the commit that got no answer was done.

        Raises:
            StoreError: `lost`, when it was not; another one when nobody can tell.
        """
        deadline, pause = time.monotonic() + RESOLVE_S, _PAUSE_S
        while True:
            try:
                await self.take()
            except (StoreBusy, StoreFull):
                if time.monotonic() > deadline:
                    raise StoreError(
                        "whether the last transaction was committed cannot be told: the server is away",
                        hint="start again when it is back: the store says itself how far it came",
                    ) from lost
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX_S)
                continue
            if self._counted == self._unit + 1:
                return
            raise lost


def _put_back() -> StoreError:
    return StoreError(
        "the store's server has lost what it had committed, or was put back",
        hint="start again: what is missing is read from the log",
    )


def _unknown() -> StoreError:
    return StoreError(
        "the store's server holds a transaction of ours that we do not know",
        hint="start again: what is missing is read from the log",
    )


def unwritten() -> StoreCorrupt:
    """The table `writer` has lost its one row."""
    return StoreCorrupt(
        "the store says nothing of who writes it: its table writer is empty",
        hint="name another schema: a new store fills itself from the log",
    )
