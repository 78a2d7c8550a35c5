"""The event table as it is installed: read once at start-up, from the catalog.

Older installs lack some columns; that is no error, such a column counts as NULL everywhere and
is warned about.  A missing table, schema or right, row security and a standby are errors,
each with its own message.
Source: spec 1.1, 1.7, 1.8, 4.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidecar.errors import ConfigError, SourceContractError
from sidecar.source.body import BODY_COLUMNS
from sidecar.source.connection import Session, fetch_alone
from sidecar.source.facts import standby, tree_sql

OLDEST_SERVER: Final = 140000

_REQUIRED: Final = ("execution_id", "event_id", "event_type", "created_at")
_SCHEMA: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")

_VERSION: Final = "select current_setting('server_version_num')::int"

_INSPECT: Final = f"""
select current_database()::text as database, current_setting('server_version_num')::int as version,
       pg_is_in_recovery() as recovery, n.oid is not null as has_schema,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false) as may_use, c.oid::bigint as relid,
       coalesce(has_table_privilege(c.oid, 'SELECT'), false) as may_read,
       coalesce(row_security_active(c.oid), false) as row_security,
       c.relkind = 'p' as partitioned, {tree_sql("c.oid")} as tree,
       (select json_object_agg(a.attname, format_type(a.atttypid, a.atttypmod))::text from pg_attribute a
         where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns
  from (select 1) one
  left join pg_namespace n on n.nspname = $1
  left join pg_class c on c.relnamespace = n.oid and c.relname = 'event' and c.relkind in ('r', 'p')
"""


@dataclass(frozen=True, slots=True)
class EventTable:
    """`noetl.event` as found.

    `types`: every column's type.  `missing`: body columns the install lacks, in body order.
    `tree`: the partition tree's fingerprint when it was inspected.
    """

    schema: str
    database: str
    relid: int
    server_version: int
    types: Mapping[str, str]
    missing: tuple[str, ...]
    partitioned: bool
    tree: str

    @property
    def name(self) -> str:
        """The quoted name."""
        return f'"{self.schema}"."event"'

    @property
    def regclass(self) -> str:
        """An oid expression that follows the name."""
        return f"'{self.name}'::regclass::oid"

    @property
    def has_links(self) -> bool:
        """Whether the install stamps prev_event_id at all; without it every link is NULL."""
        return "prev_event_id" in self.types

    def column(self, alias: str, column: str, type_name: str = "bigint") -> str:
        """The column, or NULL where the install lacks it."""
        return f"{alias}.{column}" if column in self.types else f"null::{type_name}"


def checked_schema(schema: str) -> str:
    """The schema's name if it is a plain identifier.

    Raises:
        ConfigError: it is not.
    """
    if not _SCHEMA.fullmatch(schema):
        raise ConfigError("NOETL_SCHEMA is not a plain identifier", hint="letters, digits and _ only")
    return schema


async def inspect(session: Session, schema: str = "noetl") -> EventTable:
    """Look the event table up.

    Raises:
        ConfigError: the schema's name is not an identifier.
        SourceUnavailable: the server cannot be reached.
        SourceContractError: it is a standby, too old, lacks the table, or will not let us read.
    """
    name = checked_schema(schema)
    # First of all: the next statement would not even parse on a server too old for us.
    _refuse_version((await fetch_alone(session, _VERSION))[0][0])
    row = (await fetch_alone(session, _INSPECT, (name,)))[0]
    types: dict[str, str] = json.loads(row["columns"] or "{}")
    _refuse(row, types)
    return EventTable(
        schema=schema,
        database=row["database"],
        relid=row["relid"],
        server_version=row["version"],
        types=types,
        missing=tuple(column for column in BODY_COLUMNS if column not in types),
        partitioned=row["partitioned"],
        tree=row["tree"],
    )


def _refuse_version(version: int) -> None:
    if version < OLDEST_SERVER:
        raise SourceContractError("Postgres is older than 14", hint="follow a server of version 14 or newer")


def _refuse(row: Any, types: Mapping[str, str]) -> None:
    if row["recovery"]:
        raise standby()
    if not row["has_schema"]:
        raise SourceContractError("the schema does not exist", hint="check NOETL_SCHEMA and the database")
    if row["relid"] is None:
        raise SourceContractError("the schema has no table event", hint="check NOETL_SCHEMA and the database")
    if not row["may_use"]:
        raise SourceContractError("the role may not use the schema", hint="GRANT USAGE ON SCHEMA … TO …")
    if not row["may_read"]:
        raise SourceContractError("the role may not read the event table", hint="GRANT SELECT ON … TO …")
    if row["row_security"]:
        raise SourceContractError(
            "row security hides rows of the event table from this role", hint="give the role BYPASSRLS"
        )
    if gone := [column for column in _REQUIRED if column not in types]:
        raise SourceContractError(f"the event table lacks {', '.join(gone)}", hint="this is no noetl.event")
