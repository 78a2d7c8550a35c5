"""The Python twin renders, byte for byte, what the SQL expression renders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.core.body import canonical_body
from sidecar.source.body import body_sql
from sidecar.source.connection import Session
from sidecar.source.table import inspect
from tests.support.databases import Database

IDS = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


def _spelled(text: str, escaped: bool) -> str:
    return json.dumps(text, ensure_ascii=escaped)


STRINGS = st.builds(_spelled, TEXT, st.booleans())
NUMBERS = st.one_of(
    st.sampled_from(
        ["-0", "1E2", "1.10", "-0.00", "0e5", "0E-7", "1e400", "12345678901234567890123", "-1e-30"]
    ),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
SCALARS = st.one_of(NUMBERS, STRINGS, st.sampled_from(["true", "false", "null"]))


def _array(parts: list[str]) -> str:
    return "[" + " , ".join(parts) + "]"


def _object(members: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{key} : {value}" for key, value in members) + "}"


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arrays = st.lists(inner, max_size=4).map(_array)
    return arrays | st.lists(st.tuples(STRINGS, inner), max_size=5).map(_object)


JSON = st.recursive(SCALARS, _nested, max_leaves=12)
INSTANTS = st.one_of(
    st.sampled_from(["infinity", "-infinity", "10000-01-01T00:00:00", "2026-11-30 01:02:03.120000"]),
    st.datetimes().map(lambda at: at.isoformat()),
)

TEXT_COLUMNS = (
    "aggregate_id",
    "aggregate_type",
    "error",
    "event_type",
    "node_id",
    "node_name",
    "node_type",
    "status",
    "worker_id",
)

ROWS = st.fixed_dictionaries(
    {"execution_id": IDS, "event_id": IDS, "catalog_id": IDS, "created_at": INSTANTS},
    optional={
        **dict.fromkeys(
            ["prev_event_id", "parent_event_id", "parent_execution_id", "command_id", "stage_id", "frame_id"],
            IDS,
        ),
        **dict.fromkeys(["context", "meta", "payload_ref"], JSON),
        "result": JSON.map(lambda inner: f'{{"status": "ok", "context": {{"data": {inner}}}}}'),
        **dict.fromkeys(
            TEXT_COLUMNS,
            TEXT,
        ),
    },
)


class _Bodies:
    """Inserts a row and reads its body back, in a transaction that is never committed."""

    def __init__(self, conn: Any, types: Mapping[str, str]) -> None:
        self._conn = conn
        self._types = types
        self._body = body_sql(types, "l")

    async def of(self, row: dict[str, Any]) -> str:
        values = ", ".join(f"${n}::text::{self._types[column]}" for n, column in enumerate(row, start=1))
        transaction = self._conn.transaction()
        await transaction.start()
        try:
            await self._conn.execute("SET LOCAL TimeZone = 'UTC'")
            body: str = await self._conn.fetchval(
                f"INSERT INTO noetl.event AS l ({', '.join(row)}) VALUES ({values}) RETURNING {self._body}",
                *map(str, row.values()),
            )
            return body
        finally:
            await transaction.rollback()


_bodies: dict[str, _Bodies] = {}


async def _opened(pg: Database) -> _Bodies:
    if pg.name not in _bodies:
        session = Session(pg.dsn, query_timeout_s=10)
        table = await inspect(session)
        await session.close()
        _bodies[pg.name] = _Bodies(await pg.connect(statement_cache_size=0), table.types)
    return _bodies[pg.name]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=ROWS)
async def test_twin_and_sql_render_the_same_bytes(pg: Database, row: dict[str, Any]) -> None:
    bodies = await _opened(pg)
    assert canonical_body(row) == await bodies.of(row)
