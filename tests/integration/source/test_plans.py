"""What the statements cost: no index is lost silently, no partition is read in vain."""

from __future__ import annotations

import json
from typing import Any

from sidecar.source.options import Shard
from sidecar.source.partitions import list_parts
from sidecar.source.poll import Intervals, Window, bodies_sql, poll_sql
from sidecar.source.sums import LogSums
from tests.support.databases import Database
from tests.support.tailing import Ticks, opened

BASE = 10**12


async def _filled(pg: Database) -> Any:
    conn = await pg.connect()
    await conn.execute(
        "INSERT INTO noetl.event (execution_id, catalog_id, event_id, created_at, event_type)"
        f" SELECT {BASE} + n / 10, 1, n, '2025-01-01'::timestamp + n * interval '1 s', 'x'"
        " FROM generate_series(1, 20000) n"
    )
    await conn.execute("ANALYZE noetl.event")
    return conn


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for inner in plan.get("Plans", []) for node in _nodes(inner))]


async def _scans(conn: Any, sql: str, *args: Any) -> list[dict[str, Any]]:
    """The plan's scans of the event table."""
    (row,) = await conn.fetch(f"EXPLAIN (FORMAT JSON) {sql}", *args)
    nodes = _nodes(json.loads(row[0])[0]["Plan"])
    return [node for node in nodes if str(node.get("Relation Name", "")).startswith("event")]


async def test_the_live_poll_reads_by_created_at(pg_each: Database) -> None:
    conn = await _filled(pg_each)
    async with opened(pg_each.dsn) as source:
        sql = poll_sql(source.table, Window(60.0), Shard(), filtered=True, bodies=True)
    text = "\n".join(row[0] for row in await conn.fetch(f"EXPLAIN {sql}", None, "1000"))
    filled = [line for line in text.splitlines() if "event_2024_q1_standard" in line]
    assert filled
    assert all("Index" in line or "Bitmap" in line for line in filled)
    assert "Index Cond: (created_at >= (LEAST(" in text
    assert text.count("InitPlan") >= 2


async def test_the_log_read_reads_by_execution(pg_each: Database) -> None:
    conn = await _filled(pg_each)
    async with opened(pg_each.dsn) as source:
        sql = source.reader(Ticks())._by_ids
    scans = await _scans(conn, sql, [BASE + 1, BASE + 2], 10_000)
    assert scans
    for node in scans:
        assert node["Node Type"] in {"Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Seq Scan"}
        # Empty partitions may be read whole; the filled one never.
        if node["Relation Name"] == "event_2024_q1_standard":
            assert node["Node Type"] != "Seq Scan"


async def test_bodies_of_keys_are_read_by_the_primary_key(pg_each: Database) -> None:
    conn = await _filled(pg_each)
    async with opened(pg_each.dsn) as source:
        sql = bodies_sql(source.table)
    scans = await _scans(conn, sql, [BASE + 1], [12])
    (filled,) = [node for node in scans if node["Relation Name"] == "event_2024_q1_standard"]
    assert "execution_id = k.execution_id" in filled["Index Cond"]
    assert "event_id = k.event_id" in filled["Index Cond"]


async def test_a_sweep_reads_only_its_own_partition(pg_each: Database) -> None:
    conn = await _filled(pg_each)
    async with opened(pg_each.dsn) as source:
        listing = await list_parts(source.session(), source.table)
        for part in listing.parts:
            assert isinstance(part.over, Intervals)
            sql = poll_sql(source.table, part.over, Shard(), filtered=True, bodies=True)
            scans = await _scans(conn, sql, "1000")
            relid = int(part.lane.split(":")[1])
            assert [node["Relation Name"] for node in scans] == [
                row[0] for row in await conn.fetch("SELECT relname::text FROM pg_class WHERE oid = $1", relid)
            ]


async def test_a_shard_s_statements_read_by_the_same_indexes(pg_each: Database) -> None:
    """The condition on the hash is looked at last and keeps no index from being used."""
    conn, shard = await _filled(pg_each), Shard(3, 8)
    async with opened(pg_each.dsn, shard=shard) as source:
        log = source.reader(Ticks())
        live = poll_sql(source.table, Window(60.0), shard, filtered=True, bodies=True)
        asked: tuple[tuple[str, tuple[Any, ...]], ...] = (
            (live, (None, "1000")),
            (log._counting, (BASE, BASE + 50, 10)),
            (log._by_range, (BASE, BASE + 50)),
            (LogSums(log)._between, (BASE, BASE + 50, [])),
        )
    for sql, args in asked:
        scans = [
            node
            for node in await _scans(conn, sql, *args)
            if node["Relation Name"] == "event_2024_q1_standard"
        ]
        assert scans, sql
        for node in scans:
            assert "Index" in node["Node Type"] or "Bitmap" in node["Node Type"], sql
            assert "hashint8extended" in node["Filter"], sql
    (node,) = [
        each
        for each in await _scans(conn, live, None, "1000")
        if each["Relation Name"] == "event_2024_q1_standard"
    ]
    assert node["Filter"].index("age(xmin)") < node["Filter"].index("hashint8extended"), "of new rows only"
