"""The gate of a store in PostgreSQL, what it refuses to keep, and that a statement goes to one leaf."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sidecar.core.due import Due
from sidecar.core.event import ID_MAX, ID_MIN, Event
from sidecar.core.horizon import Cursor
from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog
from sidecar.errors import ConfigError, Invalid, StoreError, StoreFormatError
from sidecar.sql import scripts
from sidecar.store import ChainStore
from sidecar.store.format import FORMAT_VERSION
from sidecar.store.postgres import connection as connections
from sidecar.store.postgres import dialect
from sidecar.store.postgres.connection import PostgresConnection
from sidecar.store.postgres.dialect import SPREAD, compiled
from sidecar.store.postgres.leaves import leaf
from sidecar.store.postgres.url import place_of
from sidecar.store.unit import StoreUnit
from tests.contract.events import E, chain
from tests.contract.postgres import PostgresBackend, three_lenders
from tests.support.databases import beside
from tests.support.storeserver import URL_VARIABLE, drop, fresh_url, said, store_dsn

IDS = range(7_000_000_000_000_000_001, 7_000_000_000_000_000_041)


@pytest.fixture
def postgres() -> Iterator[PostgresBackend]:
    made = PostgresBackend()
    yield made
    made.remove()


# The gate


@pytest.fixture
def own() -> Iterator[PostgresBackend]:
    """A schema of its own, for what changes it."""
    made = PostgresBackend(url=fresh_url(partitions=1))
    yield made
    drop(made.place.dsn, made.place.schema)


@pytest.mark.torture
def test_three_lenders_are_three_servers_besides_the_coordinator() -> None:
    if os.environ.get(URL_VARIABLE):
        pytest.skip("a given server lends to itself")
    spread = three_lenders()
    schema = spread.place.schema
    asked = [
        "pg_control_system()",
        *(
            f'"{row[0]}"'
            for row in spread.run(
                "SELECT relname FROM pg_class WHERE relnamespace ="
                " to_regnamespace($1) AND relkind = 'f' AND relname LIKE 'identity%'",
                schema,
            )
        ),
    ]
    known = {spread.run(f"SELECT system_identifier FROM {one}")[0][0] for one in asked}
    spread.remove()
    assert len(known) == 4


async def test_f01_a_new_schema_is_initialised_and_known_again(own: PostgresBackend) -> None:
    with pytest.raises(StoreFormatError, match="holds no chain store"):
        await own.open_readonly()
    async with own.open() as store:
        await store.populate_from_log(E, chain(1, 2))
    assert own.run("SELECT value FROM meta WHERE key = 'FORMAT_VERSION'") == [(str(FORMAT_VERSION),)]
    async with own.open_readonly() as reader:
        assert await reader.chain(E) == chain(1, 2)
    own.run("DELETE FROM meta WHERE key = 'FORMAT_VERSION'")
    async with own.open() as store:
        assert await store.chain(E) == chain(1, 2)
    for marker in ("2", "", "abc", "-1", "\u0661"):
        own.run("UPDATE meta SET value = $1 WHERE key = 'FORMAT_VERSION'", marker)
        for opening in (own.open, own.open_readonly):
            with pytest.raises(StoreFormatError, match="FORMAT_VERSION"):
                await opening()
        assert own.run("SELECT value FROM meta WHERE key = 'FORMAT_VERSION'") == [(marker,)]


async def test_a_schema_of_somebody_else_is_left_alone(own: PostgresBackend) -> None:
    await said(own.place.dsn, f"CREATE SCHEMA {own.place.schema}; CREATE TABLE {own.place.schema}.meta ()")
    with pytest.raises(StoreFormatError, match="no chain store"):
        await own.open()
    tables = await said(
        own.place.dsn,
        "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace($1)",
        own.place.schema,
    )
    assert tables == [(1,)]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/d?schema=A",
        'postgresql://h/d?schema=a"b',
        "postgresql://h/d?schema=pg_catalog",
        "postgresql://h/d?schema=",
        "postgresql://h/d?partitions=0",
        "postgresql://h/d?partitions=257",
        "postgresql://h/d?partitions=a",
        "postgresql://h:nine/d?partitions=1",
    ],
)
async def test_a_place_that_is_none_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        await ChainStore.open(url)
    assert "h/d" not in str(refused.value)


def test_the_drivers_part_of_a_url_is_left_to_it() -> None:
    place = place_of("postgresql://u:p%40@h:1/d?sslmode=require&schema=s&host=%2Ftmp%2Fa&partitions=7")
    assert (place.dsn, place.schema, place.partitions) == (
        "postgresql://u:p%40@h:1/d?sslmode=require&host=%2Ftmp%2Fa",
        "s",
        7,
    )
    assert "p%40" not in repr(place)


async def test_a_wrong_password_is_said_without_it(own: PostgresBackend) -> None:
    dsn = store_dsn().replace("/postgres?", "/nowhere?")
    with pytest.raises(StoreError) as refused:
        await ChainStore.open(f"{dsn}&schema=x")
    assert "nowhere" not in str(refused.value)
    assert "3D000" in str(refused.value)


async def test_replicas_are_for_files(postgres: PostgresBackend) -> None:
    with pytest.raises(ConfigError, match="no replicas"):
        await ChainStore.open(postgres.url, replicas=("sqlite:////tmp/x.db",))


# What is kept


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
async def test_what_postgres_cannot_keep_is_refused_and_not_altered(
    postgres: PostgresBackend, text: str
) -> None:
    async with postgres.open() as store:
        await store.populate_from_log(E, chain(1))
        for event in (Event(E, 2, 1, None, "x", text), Event(E, 2, 1, None, text, "{}")):
            with pytest.raises(Invalid):
                await store.append(event)
            with pytest.raises(Invalid):
                await store.populate_from_log(E, (*chain(1), event))
        assert await store.chain(E) == chain(1)
        await store.append(Event(E, 2, 1, None, "x", '{"a":"\\u0000\U0001f600"}'))
        assert (await store.chain(E))[1].body == '{"a":"\\u0000\U0001f600"}'


async def test_large_bodies_go_in_several_statements(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server hangs up on a message of 1 GiB: the unit would be tried again for ever."""
    monkeypatch.setattr(connections, "TEXT_AT_ONCE", 1000)
    events = [
        Event(E, n, n - 1 or None, None, "x", "b" * length)
        for n, length in enumerate((300, 900, 10, 10, 5000, 1), start=1)
    ]
    async with postgres.open() as store:
        heard = Said(monkeypatch)
        await store.populate_from_log(E, events)
        written = [
            [len(body) for body in arguments[6]]
            for text, arguments in heard.all
            if text.startswith("INSERT INTO event ")
        ]
        assert written == [[300], [900, 10, 10], [5000], [1]]
        assert await store.chain(E) == tuple(events)


# One leaf


class Said:
    """What a connection is asked in PostgreSQL's words, with its arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[tuple[str, Sequence[Any]]] = []
        ask, many = PostgresConnection._ask, PostgresConnection._execute_many

        async def noted(connection: PostgresConnection, text: str, arguments: Sequence[Any]) -> Any:
            self.all.append((text, arguments))
            return await ask(connection, text, arguments)

        async def noted_many(connection: PostgresConnection, sql: str, parameters: Any) -> None:
            rows = list(parameters)
            if compiled(sql).bulk is None:
                self.all += [(compiled(sql).text, row) for row in rows]
            await many(connection, sql, rows)

        monkeypatch.setattr(PostgresConnection, "_ask", noted)
        monkeypatch.setattr(PostgresConnection, "_execute_many", noted_many)


async def test_every_statement_of_a_unit_touches_one_leaf(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with postgres.open() as store:
        await store.populate_from_log(IDS[0], chain(1, execution_id=IDS[0]))
        # The first number of all asks whether there are records already.
        await store.transact(lambda unit: unit.record_state(IDS[0], "match", "{}"))
        heard = Said(monkeypatch)

        async def work(unit: StoreUnit) -> None:
            read = LogRead(store.clock.now())
            done = await unit.populate([ExecutionLog(e, chain(1, 2, 3, execution_id=e), read) for e in IDS])
            await unit.find((e, n) for e in IDS for n in (1, 2, 9))
            await unit.places((e, n) for e in IDS for n in (1, 2, 9))
            await unit.row_counts(IDS)
            for e in IDS:
                unit.put_due(Due(e, due_at=1))
                unit.put_partition(done[e].partition)
            unit.drop_due(IDS[0])
            await unit.guarded_read(IDS[1])
            await unit.record_state(IDS[2], "match", "{}")
            unit.put_cursor(Cursor("live", 1, "e", "s", "t", 1))

        await store.transact(work)
        monkeypatch.undo()
        leaves, touched = set[int](), 0
        for text, arguments in heard.all:
            found = await _leaves(store, text, arguments)
            assert len(found) <= 1, text
            leaves |= found
            touched += bool(found)
        assert len(leaves) == 3, "the unit was about all of them"
        assert touched > 3 * 10


async def _leaves(store: ChainStore, text: str, arguments: Sequence[Any]) -> set[int]:
    """The leaves in the plan; of an insert, those its rows are routed to."""
    into = re.match(r"INSERT INTO (\w+) \((.*?)\)", text)
    if into is not None:
        if into[1] not in SPREAD:
            return set()
        at = into[2].split(", ").index("execution_id")
        given = arguments[at] if isinstance(arguments[at], list) else [arguments[at]]
        return {leaf(execution_id, 3) for execution_id in given}

    async def explained() -> list[Any]:
        connection = store._scans
        assert isinstance(connection, PostgresConnection)
        return await connection._ask(f"EXPLAIN (COSTS OFF) {text}", arguments)

    plan = await store._scans.hold(explained)
    names = "|".join(SPREAD)
    return {int(number) for (line,) in plan for number in re.findall(rf" on (?:{names})_(\d+)\b", line)}


def test_the_leaf_is_where_the_server_puts_it() -> None:
    chance = random.Random(8)
    ids = [*(chance.randint(ID_MIN, ID_MAX) for _ in range(2000)), 0, 1, -1, ID_MIN, ID_MAX]
    script = f"CREATE TABLE hashed_{os.getpid()} (id bigint) PARTITION BY HASH (id); SELECT 1"
    beside(said(store_dsn(), script))
    for modulus in (1, 3, 16, 256):
        agreed = beside(
            said(
                store_dsn(),
                f"SELECT bool_and(satisfies_hash_partition('hashed_{os.getpid()}'::regclass, $1, r, i))"
                " FROM unnest($2::int[], $3::bigint[]) AS given(r, i)",
                modulus,
                [leaf(each, modulus) for each in ids],
                ids,
            )
        )
        assert agreed == [(True,)]


# Words


def test_both_layouts_have_the_same_tables_and_columns() -> None:
    """What a module makes when it is first needed stands in PostgreSQL's layout from the start."""
    lite = "".join(script.text for script in scripts("store"))
    full = "".join(script.text for script in scripts("store_postgres"))
    for table, body in _tables(lite).items():
        assert _tables(full).get(table) == body, table
    assert set(_tables(full)) - set(_tables(lite)) == {"writer", "audit_seen"}
    assert set(dialect.KEYS) == set(_tables(full)) - {"writer"}


def _tables(text: str) -> dict[str, list[str]]:
    found = {}
    for name, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", text, re.DOTALL):
        lines = (line.split()[0] for line in body.split("\n") if line.strip())
        found[name] = [line for line in lines if line.islower()]
    return found


@pytest.mark.parametrize(
    ("sqlite", "postgres"),
    [
        ("SELECT a FROM t WHERE b = ? AND c = ?", "SELECT a FROM t WHERE b = $1 AND c = $2"),
        ("SELECT '?' FROM t WHERE b = ?2 AND c = ?1", "SELECT '?' FROM t WHERE b = $2 AND c = $1"),
        (
            "SELECT a FROM t WHERE k IS ? AND x IS NULL",
            "SELECT a FROM t WHERE k IS NOT DISTINCT FROM $1 AND x IS NULL",
        ),
        (
            "UPDATE t SET a = ?1 WHERE b IN (SELECT value FROM json_each(?2))",
            "UPDATE t SET a = $1 WHERE b = ANY($2::bigint[])",
        ),
        ("INSERT OR IGNORE INTO t (a) VALUES (?)", "INSERT INTO t (a) VALUES ($1) ON CONFLICT DO NOTHING"),
        ("CREATE INDEX IF NOT EXISTS i ON t (a)", ""),
    ],
)
def test_a_statement_in_the_other_words(sqlite: str, postgres: str) -> None:
    assert compiled(sqlite).text == postgres
