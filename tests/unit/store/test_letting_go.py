"""A step of retention, bound by bound, over a store that answers from a table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.store import retention
from sidecar.store.connection import Row
from sidecar.store.retention import CANDIDATES, DAY_US, FREE_PAGES_KEPT, VACUUM_PAGES, Dropped, Retention
from tests.unit.store.statements import Said

NOW = 100 * DAY_US
VACUUM = ("PRAGMA incremental_vacuum(1)", ())


class Store:
    """`rows`: of each execution that is to go, None where it stays after all."""

    def __init__(self, rows: Sequence[int | None], free: int, *, shrinks: bool = True) -> None:
        self.clock = SimpleNamespace(now=lambda: NOW)
        self.path: object = "a file"
        self.said: Said = []
        self._rows, self.free, self._shrinks = rows, free, shrinks

    async def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        if sql == CANDIDATES:
            self.said.append((sql, parameters))
            return [(e,) for e in range(len(self._rows))]
        assert sql == "PRAGMA freelist_count"
        return [(self.free,)]

    async def transact(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(self)

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        self.said.append((sql, parameters))
        if sql == retention._STILL:
            return [] if self._rows[parameters[1]] is None else [(1,)]
        self.free -= sql == VACUUM[0] and self._shrinks
        # Nobody follows it.
        return [(0,)] if "departure" in sql else []

    async def row_counts(self, execution_ids: Collection[int]) -> dict[int, tuple[int, int]]:
        """The highest place is another number where rows are missing."""
        return {e: (self._rows[e] or 0, 99_999) for e in execution_ids}

    def now(self) -> int:
        return NOW

    def times(self, sql: str) -> int:
        return [each for each, _ in self.said].count(sql)


def sweep(store: Store) -> Retention:
    given: Any = store
    return Retention(given, DAY_US)


async def test_the_index_is_made_once_and_the_bound_is_days_before_now() -> None:
    store = Store([3], 0)
    retain = sweep(store)
    assert await retain.step() == Dropped(1, 3, 0)
    await retain.step()
    assert store.times(retention.INDEX) == 1
    assert store.said[:3] == [
        (retention.INDEX, ()),
        (CANDIDATES, (NOW - DAY_US, retention.EXECUTIONS_MAX)),
        (retention._STILL, (NOW - DAY_US, 0)),
    ]
    for statement in retention._DROP:
        assert (statement, (0,)) in store.said


async def test_what_stays_after_all_counts_as_nothing() -> None:
    store = Store([None, 4], 0)
    assert await sweep(store).step() == Dropped(1, 4, 0)


@pytest.mark.parametrize(("first", "gone"), [(20_000, 1), (19_999, 2)])
async def test_a_step_ends_with_the_execution_that_reaches_its_rows(first: int, gone: int) -> None:
    assert (await sweep(Store([first, 1, 1], 0)).step()).executions == gone


@pytest.mark.parametrize(
    ("spare", "freed"),
    [
        (0, 0),
        (1, 1),
        (VACUUM_PAGES + 1, VACUUM_PAGES + 1),
        (10 * VACUUM_PAGES, 10 * VACUUM_PAGES),
        (10 * VACUUM_PAGES + 1, 10 * VACUUM_PAGES),
    ],
)
async def test_pages_go_back_one_a_statement_and_so_many_a_step(spare: int, freed: int) -> None:
    store = Store([], FREE_PAGES_KEPT + spare)
    assert await sweep(store).step() == Dropped(0, 0, freed)
    assert store.said.count(VACUUM) == freed
    assert store.free == FREE_PAGES_KEPT + spare - freed


async def test_a_file_that_cannot_shrink_is_tried_once_a_step() -> None:
    store = Store([], FREE_PAGES_KEPT + 5000, shrinks=False)
    assert await sweep(store).step() == Dropped(0, 0, 0)
    assert store.said.count(VACUUM) == VACUUM_PAGES


async def test_a_store_without_a_file_gives_no_pages_back() -> None:
    store = Store([], 5000)
    store.path = None
    assert await sweep(store).step() == Dropped(0, 0, 0)
    assert VACUUM not in store.said
