"""Findings of a store: one a kind until a match, bounded, whole or not at all."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from sidecar.core.authority import Partition
from sidecar.core.evidence import REBUILT, Finding
from sidecar.core.horizon import Cursor
from sidecar.core.verdict import ALARMING, EVIDENCED
from sidecar.errors import StoreError
from sidecar.store import ChainStore
from sidecar.store import findings as kept
from sidecar.store.overview import open_findings
from sidecar.store.unit import StoreUnit
from sidecar.telemetry.labels import FINDINGS
from tests.contract.backends import Contract, ContractUnit, SqliteBackend
from tests.contract.events import E
from tests.support.failing import Fault, Kind, install

SECRET = "the body of an event"


def divergent(execution_id: int = E, position: int = 3, **changes: Any) -> Finding:
    told = {"log": {"shown": [{"body": SECRET}]}, "store": {"shown": []}}
    fields: dict[str, Any] = {
        "verdict": "divergent",
        "evidence": told,
        "kind": "payload",
        "position": position,
        "log_event_id": position + 1,
        "store_event_id": position + 1,
        **changes,
    }
    return Finding(execution_id, **fields)


async def note(store: Contract | ChainStore, *found: Finding, matched: tuple[int, ...] = ()) -> int:
    async def work(unit: ContractUnit | StoreUnit) -> int:
        return await unit.note_findings(found, matched)

    return await store.transact(work)


# One suite over every implementation


async def test_a_repeated_judgement_updates_and_does_not_multiply(store: Contract) -> None:
    await note(store, divergent(detail="first"))
    (first,) = await store.findings(E)
    await note(store, divergent(position=1, detail="again"))
    (again,) = await store.findings(E)
    assert (again.finding_id, again.found_at) == (first.finding_id, first.found_at)
    assert (again.position, again.detail, again.log_event, again.store_event) == (1, "again", "2", "2")
    assert again.evidence is not None
    assert again.evidence["log"] == {"shown": [{"body": SECRET}]}


async def test_another_kind_or_verdict_is_another_finding(store: Contract) -> None:
    await note(store, divergent(), divergent(kind="edge"), divergent(kind=None, verdict="log_lost"))
    assert [(each.verdict, each.kind) for each in await store.findings(E)] == [
        ("divergent", "payload"),
        ("divergent", "edge"),
        ("log_lost", None),
    ]


async def test_a_match_resolves_what_stands_and_the_next_fault_is_a_new_finding(store: Contract) -> None:
    await note(store, divergent(), divergent(E + 1))
    await note(store, matched=(E,))
    (done,) = await store.findings(E)
    (other,) = await store.findings(E + 1)
    assert done.resolved_at is not None
    assert (done.is_open, other.is_open) == (False, True)
    await note(store, divergent())
    assert [each.is_open for each in await store.findings(E)] == [False, True]


async def test_a_match_and_a_finding_of_one_unit_do_not_meet(store: Contract) -> None:
    await note(store, divergent(E + 1), matched=(E,))
    assert [each.is_open for each in await store.findings(E + 1)] == [True]


async def test_what_is_settled_is_never_open(store: Contract) -> None:
    await note(store, divergent(verdict=REBUILT, kind=None, settled=True))
    await note(store, divergent(verdict=REBUILT, kind=None, settled=True))
    assert [each.is_open for each in await store.findings(E)] == [False, False]


# SQLite's own


async def test_evidence_has_the_record_and_the_horizons_of_the_lanes(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:

        async def work(unit: StoreUnit) -> None:
            unit.put_cursor(Cursor("live", 2**60, "e", "s", "t", 7))
            unit.put_partition(Partition(E))

        await store.transact(work)
        await note(store, divergent(partition=Partition(E, head_event_id=2**60, revoked_reason="x")))
        (found,) = await store.findings(E)
    assert found.evidence is not None
    assert found.evidence["lanes"] == [{"lane": "live", "horizon": str(2**60), "epoch": "e", "polled_at": 7}]
    record = found.evidence["partition"]
    assert (record["execution_id"], record["head_event_id"], record["revoked_reason"]) == (
        str(E),
        str(2**60),
        "x",
    )


async def test_open_findings_are_counted_by_verdict_over_the_index(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        assert await open_findings(store) == {}
        await note(store, divergent(), divergent(E + 1), divergent(E + 2, verdict="log_lost", kind=None))
        await note(store, divergent(verdict=REBUILT, settled=True))
        sqlite.run(f"UPDATE finding SET acknowledged_at = 1, acknowledged_why = 'x' WHERE execution_id = {E}")
        assert await open_findings(store) == {"divergent": 1, "log_lost": 1}
    plan = [row[3] for row in sqlite.run("EXPLAIN QUERY PLAN " + kept.OPEN)]
    assert plan == ["SCAN finding USING COVERING INDEX finding_open"]


def counted(sqlite: SqliteBackend) -> tuple[int, int]:
    """The bytes as the store counts them, and as they are."""
    ((value,),) = sqlite.run("SELECT value FROM meta WHERE key = 'evidence_bytes'")
    ((size,),) = sqlite.run("SELECT coalesce(sum(length(CAST(evidence AS BLOB))), 0) FROM finding")
    return int(value), int(size)


def big(execution_id: int, **changes: Any) -> Finding:
    return divergent(execution_id, evidence={"log": "ä" * 500}, **changes)


async def test_beyond_the_bytes_the_oldest_evidence_goes_and_is_counted(sqlite: SqliteBackend) -> None:
    async with ChainStore.open(str(sqlite.path), evidence_max_bytes=8 * 1100) as store:
        assert [await note(store, big(e)) for e in range(1, 9)] == [0] * 8
        assert await note(store, big(9)) == 2
        assert [(await store.findings(e))[0].evidence is None for e in range(1, 10)] == [True] * 2 + [
            False
        ] * 7
        assert await open_findings(store) == {"divergent": 9}
    assert counted(sqlite)[0] == counted(sqlite)[1] <= 8 * 1100


async def test_what_is_resolved_goes_first_then_what_is_refused_then_alarms(sqlite: SqliteBackend) -> None:
    async with ChainStore.open(str(sqlite.path), evidence_max_bytes=8 * 1100) as store:
        await note(store, big(1), big(2, verdict="refused_fork", kind=None), big(3))
        await note(store, big(4, verdict=REBUILT, kind=None, settled=True), matched=(3,))
        await note(store, *(big(e) for e in (5, 6, 7, 8)))
        assert await note(store, big(9)) == 2
        gone = [e for e in range(1, 10) if (await store.findings(e))[0].evidence is None]
    assert gone == [2, 3]


async def test_evidence_that_is_too_much_alone_goes_and_its_finding_stays(
    sqlite: SqliteBackend,
) -> None:
    async with ChainStore.open(str(sqlite.path), evidence_max_bytes=0) as store:
        assert await note(store, big(1)) == 1
        (found,) = await store.findings(1)
        assert (found.evidence, found.is_open, found.position) == (None, True, 3)
    assert counted(sqlite) == (0, 0)


async def test_beyond_the_number_refusals_go_and_open_alarms_stay(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "FINDINGS_MAX", 16)
    async with sqlite.open() as store:
        await note(store, *(divergent(e) for e in range(1, 11)))
        await note(store, *(divergent(e, verdict="refused_fork", kind=None) for e in range(11, 17)))
        assert await note(store, divergent(17)) == 3
        left = [row[0] for row in sqlite.run("SELECT execution_id FROM finding ORDER BY 1")]
        assert left == [*range(1, 11), 14, 15, 16, 17]
        await note(store, *(divergent(e) for e in range(18, 40)))
        assert (await open_findings(store))["divergent"] == 33
    assert counted(sqlite)[0] == counted(sqlite)[1]


async def test_bytes_are_counted_anew_where_nobody_has_counted(sqlite: SqliteBackend) -> None:
    """A store of an earlier build has findings and no count."""
    async with sqlite.open() as store:
        await note(store, big(1), big(2))
        sqlite.run("DELETE FROM meta WHERE key = 'evidence_bytes'")
        await note(store, big(1, detail="again"))
    assert counted(sqlite)[0] == counted(sqlite)[1] > 2000


async def test_a_disk_full_anywhere_in_it_leaves_nothing_half_written(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdict and finding are one transaction: each call fails once, and both are as before."""
    faults = install(monkeypatch)

    async def work(unit: StoreUnit) -> None:
        unit.put_partition(Partition(E, verdict="divergent"))
        await unit.note_findings((divergent(detail="new"), big(2)), (3,))

    async with ChainStore.open(str(sqlite.path), evidence_max_bytes=1000) as store:
        await note(store, divergent(), big(3))

        def everything() -> list[Any]:
            return [sqlite.run(f"SELECT * FROM {table}") for table in ("finding", "partition", "meta")]

        before = everything()
        for nth in count(1):
            with faults.armed(Fault(Kind.FULL, nth)), pytest.raises(StoreError):
                await store.transact(work)
            assert faults.fired, nth
            if "COMMIT" in faults.calls[: nth - 1]:
                break  # it is written, and its answer was lost
            assert everything() == before, nth
        assert nth > 20
        assert everything() != before


def test_the_labels_of_the_gauge_are_the_verdicts_that_leave_a_finding() -> None:
    assert list(FINDINGS) == [verdict.value for verdict in EVIDENCED]
    assert set(FINDINGS) >= {verdict.value for verdict in ALARMING}


async def test_no_payload_leaves_the_evidence_column(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await note(store, divergent())
    columns = [row[1] for row in sqlite.run("PRAGMA table_info('finding')") if row[1] != "evidence"]
    assert SECRET not in json.dumps(sqlite.run(f"SELECT {', '.join(columns)} FROM finding"))
