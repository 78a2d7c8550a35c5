"""An anchor is read after what it bounds, in a transaction of its own.

Before each transaction of the source somebody takes an xid.  One that was taken between what was
seen and the anchor is below the anchor; had the anchor been read first, it would be above.
Source: spec 2.13.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sidecar.source.connection import Session, Transaction
from tests.support.databases import Database
from tests.support.rows import chain_rows
from tests.support.tailing import MemoryStore, Ticks, drained, opened

E = 900


@pytest.fixture
def taken(pg: Database, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The xids taken so far."""
    xids: list[int] = []
    begin = Session.transaction

    @asynccontextmanager
    async def transaction(self: Session, timeout_s: float | None = None) -> AsyncIterator[Transaction]:
        xids.append((await pg.fetch("SELECT pg_current_xact_id()::text::bigint"))[0][0])
        async with begin(self, timeout_s) as opened:
            yield opened

    monkeypatch.setattr(Session, "transaction", transaction)
    return xids


async def test_the_anchor_of_a_log_read_lies_above_what_was_taken_after_it(
    pg: Database, taken: list[int]
) -> None:
    await pg.insert(chain_rows(E, [1]))
    async with opened(pg.dsn) as source:
        reader = source.reader(Ticks())
        taken.clear()
        (log,) = await reader.read([E])
    assert len(taken) == 2, "the statement and the anchor"
    assert log.read.anchor == taken[-1] + 1


async def test_the_anchor_of_a_poll_lies_above_what_was_taken_after_it(
    pg: Database, taken: list[int]
) -> None:
    store = MemoryStore()
    async with opened(pg.dsn) as source:
        live, _, _ = source.lanes(store, Ticks())
        taken.clear()
        (batch,) = await drained(live, store)
    assert len(taken) == 2
    assert batch.anchor == taken[-1] + 1
