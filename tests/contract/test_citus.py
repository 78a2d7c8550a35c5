"""The store on Citus, where there is one: the same calls, the same answers."""

from __future__ import annotations

import os

import pytest

from sidecar.core.event import Event
from sidecar.errors import Invalid, NotHead, StoreFenced
from tests.contract.events import E, chain, long_chain
from tests.contract.postgres import PostgresBackend
from tests.support.citus import URL_VARIABLE, citus_url


async def test_the_contract_in_short() -> None:
    dsn = os.environ.get(URL_VARIABLE)
    if not dsn:
        pytest.skip(f"{URL_VARIABLE} names no Citus")
    backend = PostgresBackend(url=await citus_url(dsn))
    async with backend.open() as store:
        for e in range(20):
            await store.populate_from_log(e, long_chain(30, execution_id=e))
        reads = await store.guarded_reads(range(20))
        assert {len(read.events or ()) for read in reads.values()} == {30}
        await store.populate_from_log(E, chain(1, 2))
        with pytest.raises(NotHead):
            await store.append(Event(E, 4, 1, None, "x", "{}"))
        with pytest.raises(Invalid):
            await store.append(Event(E, 1, 2, None, "x", "{}"))
        await store.append(Event(E, 3, 2, None, "x", "{}"))
        assert [event.event_id for event in await store.chain(E)] == [1, 2, 3]
        assert await store.revoke(E, "a test")
        assert len(await store.summer.between(0, 19)) == 20
        async with backend.open() as new:
            with pytest.raises(StoreFenced):
                await store.append(Event(E, 4, 3, None, "x", "{}"))
            await new.append(Event(E, 4, 3, None, "x", "{}"))
