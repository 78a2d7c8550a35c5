"""The identity of the shared fixture: a suite must not pass against an empty or a wrong database."""

from __future__ import annotations

import pytest

from sidecar.core.event import Event
from sidecar.core.links import DanglingPrev, MultipleRoots, order_by_links
from tests.support import fixture_log
from tests.support.databases import Database
from tests.support.rows import Row

PRESENT = fixture_log.SPEC_ROWS + fixture_log.OUR_ROWS
EVERY_SHAPE = fixture_log.SHAPES | fixture_log.OUR_SHAPES


def event(row: Row) -> Event:
    keys = ("execution_id", "event_id", "prev_event_id", "parent_execution_id", "event_type")
    return Event(**{key: row[key] for key in keys}, body="{}")


def events(execution_id: int, rows: list[Row]) -> list[Event]:
    return [event(row) for row in rows if row["execution_id"] == execution_id]


async def test_the_fixture_is_the_one_of_the_spec(pg: Database) -> None:
    conn = await pg.connect()
    await fixture_log.load_fixture(conn)
    counted = await conn.fetch(fixture_log.IDENTITY_SQL, list(fixture_log.SHAPES))
    assert {row["execution_id"]: row["rows"] for row in counted} == {
        execution: size for execution, (_, size) in fixture_log.SHAPES.items()
    }
    assert sum(row["roots"] for row in counted) == 9
    assert [row["roots"] for row in counted].count(1) == 6
    assert {row["execution_id"]: row["roots"] for row in counted}[2001] == 3


@pytest.mark.parametrize("execution_id", EVERY_SHAPE)
def test_each_execution_has_its_shape(execution_id: int) -> None:
    label, size = EVERY_SHAPE[execution_id]
    log = events(execution_id, PRESENT)
    assert (order_by_links(log).label, len(log)) == (label, size)


def test_the_refused_ones_name_what_the_spec_names() -> None:
    assert order_by_links(events(1002, PRESENT)) == DanglingPrev(15, 14)
    assert order_by_links(events(2001, PRESENT)) == MultipleRoots((2001, 2005, 2006))


def test_what_comes_later_completes_its_execution() -> None:
    whole = [*PRESENT, fixture_log.LATE_ROW, *fixture_log.GROWTH]
    assert order_by_links(events(fixture_log.DELAYED, whole)).label == "ordered"
    assert len(events(fixture_log.DELAYED, whole)) == 73
    assert order_by_links(events(fixture_log.GROWING, whole)).label == "ordered"
