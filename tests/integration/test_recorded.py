"""Recorded logs reach the table exactly."""

from __future__ import annotations

import json

import pytest

from tests.support.databases import Database
from tests.support.recorded import CLEAN, PUBLISHED, RESTARTS, UNLINKED_SMALL, load_set, recorded_set

SIZES = {CLEAN: (11367, 231), RESTARTS: (7659, 155), PUBLISHED: (12792, 214), UNLINKED_SMALL: (6502, 107)}


@pytest.mark.parametrize("name", SIZES)
async def test_a_recorded_set_has_its_rows_and_executions(pg: Database, name: str) -> None:
    conn = await pg.connect()
    recorded = recorded_set(name)
    assert await load_set(conn, recorded) == SIZES[name][0]
    counted = await conn.fetchrow("SELECT count(*), count(DISTINCT execution_id) FROM noetl.event")
    assert tuple(counted) == SIZES[name]
    assert len(recorded.verdicts()) == SIZES[name][1]
    assert len(recorded.commits()) == SIZES[name][0]


async def test_every_byte_of_a_recorded_row_survives(pg: Database) -> None:
    """Postgres renders the stored rows again; nothing may differ from the recorded lines."""
    conn = await pg.connect()
    recorded = recorded_set(CLEAN)
    await load_set(conn, recorded)
    await conn.execute("SET TimeZone = 'UTC'; SET extra_float_digits = 1")
    rows = await conn.fetch("SELECT row_to_json(e)::text AS line FROM noetl.event AS e")
    assert sorted(row["line"] for row in rows) == sorted(recorded.lines())
    assert any("\u2028" in line for line in recorded.lines())


def test_an_absent_set_is_skipped_with_a_message() -> None:
    with pytest.raises(pytest.skip.Exception, match="NOETL_CHAIN_TEST_DATA"):
        recorded_set("no-such-set")


def test_lines_are_json_objects() -> None:
    assert all(type(json.loads(line)) is dict for line in recorded_set(CLEAN).lines()[:50])
