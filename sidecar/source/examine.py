"""What the server, the role and the event table are like, as plain values for people.

`table.inspect` refuses what cannot be followed; here nothing is refused: everything is looked
at, also on a standby or without a table, so that all that is wrong can be told at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.errors import SourceUnavailable
from sidecar.source.connection import Session, fetch_alone
from sidecar.source.table import checked_schema

SETTINGS: Final = (
    "server_version",
    "server_encoding",
    "synchronous_commit",
    "fsync",
    "idle_in_transaction_session_timeout",
    "transaction_timeout",
    "default_transaction_read_only",
)
WRITES: Final = ("INSERT", "UPDATE", "DELETE", "TRUNCATE")
Clock = Callable[[], int]

_VERSION: Final = "select current_setting('server_version_num')::int"
_SERVER: Final = """
select pg_is_in_recovery() as recovery, pg_backend_pid() as pid,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint as now_us,
       (select json_object_agg(name, setting)::text from pg_settings where name = any($1::text[])) as settings
"""
_ROLE: Final = """
select r.rolname::text as name, r.rolsuper as super, r.rolbypassrls as bypass,
       pg_has_role(r.oid, 'pg_read_all_stats', 'usage') as stats
  from pg_roles r where r.rolname = current_user
"""
_TABLE: Final = """
select n.oid is not null as has_schema, coalesce(has_schema_privilege(n.oid, 'USAGE'), false) as may_use,
       c.oid::bigint as relid, coalesce(has_table_privilege(c.oid, 'SELECT'), false) as may_read,
       coalesce(row_security_active(c.oid), false) as row_security, c.relkind = 'p' as partitioned,
       (select array_agg(w) from unnest($2::text[]) w where has_table_privilege(c.oid, w)) as writes,
       (select array_agg(a.attname::text) from pg_attribute a
         where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns
  from (select 1) one
  left join pg_namespace n on n.nspname = $1
  left join pg_class c on c.relnamespace = n.oid and c.relname = 'event' and c.relkind in ('r', 'p')
"""
# An index counts only when a plan can use it for any row: whole, valid, a btree.
_LEAVES: Final = """
select c.relname::text as name, n.nspname::text as schema,
       coalesce(pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT', false) as is_default,
       c.reltuples::bigint as rows,
       (select json_agg(json_build_array(pg_get_indexdef(i.indexrelid, 1, false),
                                         case when i.indnkeyatts > 1
                                              then pg_get_indexdef(i.indexrelid, 2, false) end))::text
          from pg_index i join pg_class x on x.oid = i.indexrelid join pg_am m on m.oid = x.relam
         where i.indrelid = c.oid and i.indisvalid and i.indisready and i.indpred is null
           and m.amname = 'btree') as indexes
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relkind <> 'p' and c.oid in (select $1::bigint::oid union all
       select t.relid::oid from pg_partition_tree($1::bigint::oid::regclass) t) order by c.relname
"""
_LEAVING: Final = """
select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
 where i.inhparent = $1::bigint::oid and i.inhdetachpending order by 1
"""
_SLOTS: Final = "select count(*), count(*) filter (where not active) as idle from pg_replication_slots"


@dataclass(frozen=True, slots=True)
class Server:
    """`offset_us`: Postgres's clock minus ours, exact to `offset_error_us`.

    `pooled`: another process answers than the one the handshake named.
    """

    recovery: bool
    pooled: bool
    offset_us: int
    offset_error_us: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Role:
    """`stats`: it sees how long other roles' transactions last."""

    name: str
    superuser: bool
    bypasses_row_security: bool
    stats: bool


@dataclass(frozen=True, slots=True)
class Table:
    """The event table; `relid` None: there is none.  `writes`: rights that nobody needs here."""

    has_schema: bool
    may_use: bool
    relid: int | None
    may_read: bool
    row_security: bool
    partitioned: bool
    writes: tuple[str, ...]
    columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that holds rows.  `indexes`: first two key columns of each usable one."""

    name: str
    is_default: bool
    rows: int
    indexes: tuple[tuple[str, str | None], ...]

    def serves(self, columns: Sequence[str]) -> bool:
        """Whether an index begins with these columns, at most two."""
        return any(index[: len(columns)] == tuple(columns) for index in self.indexes)


@dataclass(frozen=True, slots=True)
class Partitions:
    """`leaving`: their DETACH CONCURRENTLY has not been finished."""

    leaves: tuple[Leaf, ...]
    leaving: tuple[str, ...]


async def version(session: Session) -> int:
    """As server_version_num.

    Raises:
        SourceError: as all of this module; the message says why there is no connection.
    """
    number: int = (await fetch_alone(session, _VERSION))[0][0]
    return number


async def server(session: Session, now_us: Clock) -> Server:
    """Ask for what does not depend on the table.

    Args:
        now_us: This host's clock, microseconds since 1970 UTC.
    """
    async with session.transaction() as transaction:
        before = now_us()
        row = (await transaction.fetch(_SERVER, list(SETTINGS)))[0]
        after = now_us()
        pooled = transaction.announced_pid != row["pid"]
    middle = (before + after) // 2
    return Server(
        row["recovery"],
        pooled,
        row["now_us"] - middle,
        (after - before) // 2,
        json.loads(row["settings"] or "{}"),
    )


async def role(session: Session) -> Role:
    """Who we are."""
    row = (await fetch_alone(session, _ROLE))[0]
    return Role(row["name"], row["super"], row["bypass"], row["stats"])


async def table(session: Session, schema: str) -> Table:
    """Look the event table up; nothing is refused.

    Raises:
        ConfigError: the schema's name is no identifier.
    """
    row = (await fetch_alone(session, _TABLE, (checked_schema(schema), list(WRITES))))[0]
    return Table(
        row["has_schema"],
        row["may_use"],
        row["relid"],
        row["may_read"],
        row["row_security"],
        bool(row["partitioned"]),
        tuple(row["writes"] or ()) if row["relid"] is not None else (),
        frozenset(row["columns"] or ()),
    )


async def partitions(session: Session, relid: int) -> Partitions:
    """Every table that holds rows of the event table, itself when it is not partitioned."""
    rows = await fetch_alone(session, _LEAVES, (relid,))
    leaving = await fetch_alone(session, _LEAVING, (relid,))
    leaves = tuple(
        Leaf(
            f"{row['schema']}.{row['name']}",
            row["is_default"],
            max(0, row["rows"]),
            tuple((first, second) for first, second in json.loads(row["indexes"] or "[]")),
        )
        for row in rows
    )
    return Partitions(leaves, tuple(row[0] for row in leaving))


async def slots(session: Session) -> tuple[int, int]:
    """Replication slots, and those that nobody reads."""
    row = (await fetch_alone(session, _SLOTS))[0]
    return row[0], row[1]


async def pool_width(dsn: str, wanted: int, *, timeout_s: float) -> int:
    """How many of `wanted` transactions a pooler lets us have at once.

    Each is opened on a connection of its own and held until all are open, or the time is over.
    """
    sessions = [Session(dsn, query_timeout_s=timeout_s) for _ in range(wanted)]
    opened, done = 0, asyncio.Event()

    async def hold(session: Session) -> None:
        nonlocal opened
        try:
            async with session.transaction() as transaction:
                await transaction.fetch("select 1")
                opened += 1
                if opened == wanted:
                    done.set()
                await done.wait()
        except SourceUnavailable:
            pass  # it was not served in time: that is the answer
        finally:
            session.drop()

    async with asyncio.TaskGroup() as tasks:
        for session in sessions:
            tasks.create_task(hold(session))
        try:
            async with asyncio.timeout(timeout_s):
                await done.wait()
        except TimeoutError:
            found = opened
            done.set()
        else:
            found = wanted
    return found
