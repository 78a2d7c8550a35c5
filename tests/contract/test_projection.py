"""D3, the projection store: records, their sequence, what another process finds.  Source: spec 6.2, 6.3."""

from __future__ import annotations

import json

import pytest

from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.errors import Invalid, StoreError
from sidecar.store.projection import ProjectionStore, Record
from sidecar.store.states import DATASET
from tests.contract.backends import SqliteBackend


async def test_the_latest_state_wins_and_the_number_is_global(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        d3 = ProjectionStore(store)
        numbers = [await d3.record_state(*state) for state in ((1, "a", "{}"), (1, "b", "{}"), (2, "c", "x"))]
        assert numbers == [1, 2, 3]
        assert await d3.get_state(1) == Record(2, 1, "b", "{}")
        assert await d3.get_state(2) == Record(3, 2, "c", "x")
        assert await d3.get_state(3) is None
        with pytest.raises(Invalid, match=r"^execution_id is no 64-bit integer$"):
            await d3.get_state(2**63)


async def test_executions_are_distinct_and_sorted(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        d3 = ProjectionStore(store)
        for e in (5, ID_MAX, -3, 5, ID_MIN):
            await d3.record_state(e, "s", "d")
        assert await d3.list_executions() == [ID_MIN, -3, 5, ID_MAX]


async def test_states_survive_a_reopen_and_the_sequence_goes_on(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        assert await ProjectionStore(store).record_state(1, "a", "x") == 1
    async with sqlite.open() as store:
        d3 = ProjectionStore(store)
        assert await d3.get_state(1) == Record(1, 1, "a", "x")
        assert await d3.record_state(2, "b", "y") == 2


async def test_deleting_never_lowers_the_sequence(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        d3 = ProjectionStore(store)
        for _ in range(3):
            await d3.record_state(1, "a", "x")
    sqlite.run("DELETE FROM d3_projection")
    async with sqlite.open() as store:
        assert await ProjectionStore(store).record_state(1, "a", "x") == 4


async def test_a_lost_high_water_mark_reissues_nothing(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        for _ in range(3):
            await ProjectionStore(store).record_state(1, "a", "x")
        sqlite.run("DELETE FROM sequence WHERE dataset = ?", DATASET)
        assert await ProjectionStore(store).record_state(1, "a", "x") == 4


async def test_the_sequence_names_the_dataset(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await ProjectionStore(store).record_state(1, "a", "x")
    assert sqlite.run("SELECT high FROM sequence WHERE dataset = 'd3_projection'") == [(1,)]


async def test_a_record_that_is_rolled_back_gives_its_number_back(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        d3 = ProjectionStore(store)
        with pytest.raises(Invalid):
            await d3.record_state(1, "a", "\ud800")
        with pytest.raises(Invalid):
            await d3.record_state(2**63, "a", "x")
        assert await d3.record_state(1, "a", "x") == 1


async def test_cold_load_sees_what_another_process_left_or_is_writing(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        d3 = ProjectionStore(store)
        for state in ((2, "a", "x"), (1, "b", "y"), (2, "c", "z")):
            await d3.record_state(*state)
        await d3.flush()
        beside = await ProjectionStore.cold_load(sqlite.url)
    expected = {1: Record(2, 1, "b", "y"), 2: Record(3, 2, "c", "z")}
    assert beside == await ProjectionStore.cold_load(sqlite.url) == expected


async def test_cold_load_of_nothing_is_a_failure(sqlite: SqliteBackend) -> None:
    with pytest.raises(StoreError):
        await ProjectionStore.cold_load(sqlite.url)


def test_a_record_comes_back_from_its_json() -> None:
    record = Record(7, ID_MIN, "läuft", '{"a":1}')
    text = record.to_json()
    assert json.loads(text)["execution_id"] == str(ID_MIN)
    assert Record.from_json(text) == record


GOOD: dict[str, object] = {"proj_seq": 1, "execution_id": "2", "status": "s", "data": "d"}


@pytest.mark.parametrize(
    "wrong",
    [
        GOOD | {"more": 1},
        {name: value for name, value in GOOD.items() if name != "data"},
        GOOD | {"proj_seq": "1"},
        GOOD | {"proj_seq": 0},
        GOOD | {"proj_seq": True},
        GOOD | {"execution_id": 2},
        GOOD | {"execution_id": "02"},
        GOOD | {"execution_id": "-0"},
        GOOD | {"execution_id": " 2"},
        GOOD | {"execution_id": "9223372036854775808"},
        GOOD | {"status": None},
        GOOD | {"data": {}},
        [],
    ],
)
def test_an_unknown_field_or_a_wrong_type_is_refused(wrong: object) -> None:
    with pytest.raises(Invalid):
        Record.from_json(json.dumps(wrong))


def test_no_json_is_refused() -> None:
    with pytest.raises(Invalid):
        Record.from_json("{")
