"""The poll, the log read and the WAL give the same bytes, whatever the values are."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from sidecar.core.event import Event
from sidecar.core.ports import Batch
from sidecar.source.opened import LogSource
from tests.integration.source.test_body_twin import ROWS
from tests.support.databases import Database
from tests.support.rows import event_row
from tests.support.tailing import MemoryStore, Ticks, opened

HOSTILE: Final[Mapping[str, Mapping[str, Any]]] = {
    "infinite": {"created_at": "infinity"},
    "before all": {"created_at": "-infinity"},
    "before Christ": {"created_at": "0044-03-15 12:00:00.000001 BC"},
    "far": {"created_at": "294276-12-31 23:59:59.999999"},
    "year 10000": {"created_at": "10000-01-01 00:00:00"},
    "fraction": {"created_at": "2026-11-30 01:02:03.12"},
    "lines": {"error": "a\u2028b\u2029c\nd\r\te\x7f\u0085", "status": "\u202e\ufeff"},
    "quotes": {"error": "\\ \" ' \\u0041 $$ %s {} \\N", "node_name": ""},
    "beyond the plane": {"error": "\U0001f600\U0010ffff", "context": '{"\\ud83d\\ude00": "\\ud83d\\ude00"}'},
    "numbers": {"context": "[12345678901234567890123, 1.10, -0, 1E2, 1e400, -1e-30, 0.10]"},
    "keys": {"context": '{"b": 1, "a": 2, "a": 3, "": null}', "meta": "null"},
    "deep": {"context": "[" * 500 + "]" * 500},
    "nothing": {},
    "least id": {"prev_event_id": -(2**63), "command_id": 2**63 - 1},
}


class _Bench:
    """Inserts rows into a followed table, and reads them by WAL and by log read."""

    def __init__(self, pg: Database, source: LogSource, batches: AsyncIterator[Batch]) -> None:
        self._pg = pg
        self._source = source
        self._batches = batches

    async def read(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Event], list[Event]]:
        """The events of `rows` as the WAL hands them over, and as the log reads them."""
        conn = await self._pg.connect(statement_cache_size=0)
        for row in rows:
            names = ", ".join(f'"{name}"' for name in row)
            given = ", ".join(
                f"${n}::text::{self._source.table.types[name]}" for n, name in enumerate(row, start=1)
            )
            await conn.execute(f"INSERT INTO noetl.event ({names}) VALUES ({given})", *map(str, row.values()))
        decoded: list[Event] = []
        while len(decoded) < len(rows):
            decoded += [each.event for each in (await anext(self._batches)).rows]
        logs = await self._source.reader(Ticks()).read(sorted({row["execution_id"] for row in rows}))
        await conn.close()
        return _sorted(decoded), _sorted([event for log in logs for event in log.events or ()])

    async def polled(self, count: int) -> list[Event]:
        """The events as the sweep reads them."""
        _, _, sweep = self._source.lanes(MemoryStore(), Ticks())
        found: list[Event] = []
        async with aclosing(sweep.batches()) as batches:
            while len(found) < count:
                found += [event for log in (await anext(batches)).logs for event in log.events or ()]
        return _sorted(found)


@asynccontextmanager
async def _followed(pg: Database) -> AsyncIterator[_Bench]:
    async with opened(pg.dsn, tail="wal") as source:
        lane, _ = source.wal_lanes(MemoryStore(), Ticks())
        async with aclosing(lane.batches()) as batches:
            await anext(batches)
            yield _Bench(pg, source, batches)


def _sorted(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event.execution_id, event.event_id))


async def test_hostile_values_have_one_rendering(pg_wal: Database) -> None:
    rows = []
    for number, columns in enumerate(HOSTILE.values(), start=1):
        row = event_row(5, number, **dict(columns))
        rows.append({key: value for key, value in row.items() if value is not None})
    async with _followed(pg_wal) as bench:
        decoded, read = await bench.read(rows)
        polled = await bench.polled(len(rows))
    assert len(read) == len(HOSTILE)
    assert decoded == read == polled
    assert {event.event_id: event.prev_event_id for event in decoded}[len(HOSTILE)] == -(2**63)


@pytest.mark.parametrize("examples", [12, pytest.param(150, marks=pytest.mark.torture)])
async def test_any_row_has_one_rendering(pg_wal: Database, examples: int) -> None:
    """By WAL, by log read and by poll; a failure names the seed that draws the rows again."""
    async with _followed(pg_wal) as bench:
        await _property(bench, examples)


async def _property(bench: _Bench, examples: int) -> None:
    """Drawn here, so that one slot serves every example."""
    drawn: list[list[dict[str, Any]]] = []
    chance = random.randrange(2**32)
    everything: list[Event] = []

    @seed(chance)
    @settings(max_examples=examples, deadline=None, database=None)
    @given(st.lists(ROWS, min_size=1, max_size=8))
    def draw(rows: list[dict[str, Any]]) -> None:
        drawn.append(rows)

    draw()
    for number, rows in enumerate(drawn, start=1):
        # Each example has executions of its own: the table is not emptied in between.
        placed = [row | {"execution_id": number, "event_id": place} for place, row in enumerate(rows)]
        decoded, read = await bench.read(placed)
        assert len(read) == len(rows)
        assert decoded == read, f"seed {chance}"
        everything += read
    assert await bench.polled(len(everything)) == everything, f"seed {chance}"
