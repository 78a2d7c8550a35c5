"""Sums of a store in PostgreSQL are those of a file, whatever the bodies hold; a server away is no answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from sidecar.core.event import ID_MAX, ID_MIN, Event
from sidecar.core.sums import StoredSums, sums_of
from sidecar.errors import StoreBusy
from sidecar.store import ChainStore
from sidecar.store.audit import StoreAuditBook
from tests.contract.backends import SqliteBackend
from tests.contract.events import chain
from tests.contract.postgres import ONE_AND_THREE, PostgresBackend, three_lenders
from tests.support.databases import Database
from tests.support.lenders import Lender, away
from tests.support.rows import chain_rows
from tests.support.service import service

HOSTILE = (
    '"\\u0000\\ud83d\\ude00\\uffff"',
    "-0",
    "[-0.0, 0e0, 1E400, -1e-400, 9223372036854775808, -9223372036854775809, 0.10]",
    '"NaN"',
    '["infinity", "-infinity", "294276-12-31T23:59:59.999999+00:00", "0001-01-01 BC"]',
    '"' + "\U0010ffff\u2028\ufeff\x7f\u0301" + '"',
    '{"event_id": 1, "prev_event_id":7, "": {"": []}}',
    "[" * 60 + "]" * 60,
    '"' + "x" * 70_000 + '"',
    "\"E\\\\x00 $$ '' ; -- %s %(a)s ?1 $1 \\n\"",
)
IDS = (ID_MIN, -1, 0, 1, 2**53 + 1, ID_MAX)


def written() -> list[tuple[Event, ...]]:
    """Chains with ids at the ends of 64 bits, one hostile value in each body, spelled as a body is."""
    found = []
    for number, execution_id in enumerate(IDS):
        ids = (ID_MIN + number, -number, ID_MAX - number, *range(1, 1 + len(HOSTILE)))
        parent = IDS[number - 1] if number else None
        events = []
        for event_id, prev, value in zip(ids, (None, *ids), (*HOSTILE, *HOSTILE), strict=False):
            named = f'"prev_event_id":{prev},' if prev is not None else ""
            above = f'"parent_execution_id":{parent},' if parent is not None else ""
            body = (
                f'{{"event_id":{event_id},"event_type":"step.\u00e9\\"x","execution_id":{execution_id},'
                f'{above}{named}"result":{value}}}'
            )
            events.append(Event(execution_id, event_id, prev, parent, 'step.\u00e9"x', body))
        found.append(tuple(events))
    return found


@pytest.fixture(params=ONE_AND_THREE)
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresBackend]:
    made: PostgresBackend = request.param()
    yield made
    made.remove()


async def numbers(store: ChainStore) -> dict[str, Any]:
    """Everything that an audit or a count takes from a store."""
    summer = store.summer
    return {
        "between": await summer.between(ID_MIN, ID_MAX),
        "some": await summer.between(-1, 1),
        "of": await summer.of([*IDS, 77]),
        "counts": await summer.counts(ID_MIN, ID_MAX, 4),
        "starts": await summer.starts([*IDS, 77]),
        "ids": await store.sums(ID_MIN, ID_MAX),
        "chains": await store.chains(IDS),
        "standings": await StoreAuditBook(store).standings([*IDS, 77]),
    }


async def test_the_sums_are_those_of_a_file(postgres: PostgresBackend, sqlite: SqliteBackend) -> None:
    chains = written()
    found = []
    for backend in (postgres, sqlite):
        async with backend.open() as store:
            assert isinstance(store, ChainStore)
            await StoreAuditBook(store).latest()
            for events in chains:
                await store.populate_from_log(events[0].execution_id, events)
            numbered = await numbers(store)
            # Only the times of storing differ.
            numbered["chains"] = {
                e: [(row.exec_seq, row.event, row.origin) for row in rows]
                for e, rows in numbered["chains"].items()
            }
            found.append(numbered)
    assert found[0] == found[1]
    assert found[0]["between"] == {
        events[0].execution_id: StoredSums(sums_of(events), True) for events in chains
    }


def second_of(spread: PostgresBackend) -> Lender:
    assert spread.lenders is not None
    return spread.lenders.nodes[1]


@pytest.mark.torture
async def test_a_lender_that_is_away_is_neither_empty_nor_different() -> None:
    """Whatever asks for it fails, and can be tried again; nothing answers with what the others have."""
    spread = three_lenders()
    ids = range(1, 31)
    async with spread.open() as store:
        for execution_id in ids:
            await store.populate_from_log(execution_id, chain(1, 2, execution_id=execution_id))
        whole = await store.summer.between(1, 30)
        asks: dict[str, Callable[[], Awaitable[object]]] = {
            "between": lambda: store.summer.between(1, 30),
            "of": lambda: store.summer.of(ids),
            "counts": lambda: store.summer.counts(1, 30, 100),
            "starts": lambda: store.summer.starts(ids),
            "sums": lambda: store.sums(1, 30),
            "chains": lambda: store.chains(ids),
            "guarded": lambda: store.guarded_reads(ids),
            "partitions": lambda: store.partitions(ids),
            "due": lambda: store.due(ids),
            "due_now": lambda: store.due_now(1, 5),
            "standings": lambda: StoreAuditBook(store).standings(ids),
            "executions": lambda: StoreAuditBook(store).executions(30),
            "missing": lambda: store.missing([(e, 1) for e in ids]),
            "write": lambda: store.transact(lambda unit: unit.partitions(ids)),
        }
        with away(second_of(spread)):
            for ask in asks.values():
                with pytest.raises(StoreBusy):
                    await ask()
            with pytest.raises(StoreBusy):
                [e async for e in store.executions(low=1)]
        assert await store.summer.between(1, 30) == whole
        for ask in asks.values():
            await ask()
    spread.remove()


@pytest.mark.torture
async def test_an_audit_over_a_lender_that_is_away_says_nothing(pg: Database) -> None:
    """No verdict, no finding, no round that ends; and it goes on where it was."""
    spread = three_lenders()
    for execution_id in range(1, 25):
        await pg.insert(chain_rows(execution_id, (1, 2)))
    async with service(pg.dsn, spread.url, audit_share=0.9, audit_round_s=1) as sidecar:
        await sidecar.idle(patience_s=60)
        judged = sidecar.verdicts()

        async def audit_paused() -> bool:
            return "audit" in sidecar.line._troubled

        async def audited() -> bool:
            return await rounds() > before + 1

        async def rounds() -> int:
            finished = "SELECT count(*) FROM audit_progress WHERE finished_at > 0"
            return int((await sidecar.store.query(finished))[0][0])

        with away(second_of(spread)):
            await sidecar.until(audit_paused, patience_s=60)
            before = await rounds()
            assert (sidecar.divergences(), sidecar.verdicts()) == ({}, judged)
            assert await sidecar.store.query("SELECT count(*) FROM finding") == [(0,)]
        await sidecar.until(audited, patience_s=60)
        assert (sidecar.divergences(), sidecar.verdicts()) == ({}, judged)
        assert await sidecar.store.query("SELECT count(*) FROM finding") == [(0,)]
    spread.remove()
