"""The replication slot and the publication behind the WAL source: asked, refused, made, moved.

Everything goes through SQL functions over an ordinary connection.  Reading peeks: the slot moves
only when what was read is stored, by a call of its own.  A slot keeps WAL from being removed for
as long as it stands, so whoever makes one has to drop it again; this program makes its own and
drops only what bears its name.
Source: spec 1.8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from sidecar import sql
from sidecar.core.horizon import Facts
from sidecar.core.lsn import lsn_text
from sidecar.core.walgap import Slot
from sidecar.errors import ConfigError, SourceContractError, SourceReplaced, SourceUnavailable
from sidecar.source.changes import ColumnType
from sidecar.source.connection import Portal, Session, Transaction, fetch_alone
from sidecar.source.facts import FACTS_BODY, Guard, facts_cte
from sidecar.source.options import Shard
from sidecar.source.table import EventTable
from sidecar.source.walrows import needed_columns

PLUGIN: Final = "pgoutput"
_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")
_ROW_FILTERS: Final = 150000
"""Since this version a publication may leave columns and rows out, or name whole schemas."""

# Values are written here and read back by the same session: only the form has to be unambiguous.
_FORMS: Final = (
    "select set_config('DateStyle', 'ISO', true), set_config('IntervalStyle', 'postgres', true),"
    " set_config('bytea_output', 'hex', true)"
)
_PEEK: Final = (
    "select (lsn - '0/0'::pg_lsn)::bigint as lsn, length(data) as size,"
    " substr(data, 1, case when length(data) > $4 then $5 else $4 end) as data"
    " from pg_logical_slot_peek_binary_changes($1, $2::text::pg_lsn, $3,"
    " 'proto_version', '1', 'publication_names', $6)"
)
_COLUMNS: Final = (
    "select json_object_agg(a.attname,"
    " json_build_array(a.atttypid::bigint, a.atttypmod, format_type(a.atttypid, a.atttypmod)))::text"
    " from pg_attribute a where a.attrelid = {relid} and a.attnum > 0 and not a.attisdropped"
)
# A foreign table, and one that is not logged: what is written there is never decoded.
_UNLOGGED: Final = (
    "with recursive below(oid) as (select {relid} union all"
    " select i.inhrelid from pg_inherits i join below on i.inhparent = below.oid)"
    " select min(c.relname::text) from below join pg_class c using (oid)"
    " where c.relpersistence <> 'p' or c.relkind = 'f'"
)
_DROP: Final = (
    "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
    f" where slot_name = $1 and plugin = '{PLUGIN}' and database = current_database()"
)
_CREATE: Final = (
    f"select (lsn - '0/0'::pg_lsn)::bigint from pg_create_logical_replication_slot($1, '{PLUGIN}')"
)
_ADVANCE: Final = "select pg_replication_slot_advance($1, $2::text::pg_lsn)"


def slot_name(name: str, shard: Shard) -> str:
    """The slot of one shard: two sidecars on one slot would take each other's rows away.

    Raises:
        ConfigError: it is no name of a slot.
    """
    full = name if shard.count == 1 else f"{name}_{shard.index}of{shard.count}"
    if not _NAME.fullmatch(full):
        raise ConfigError(
            "the name of the replication slot is none",
            hint="NOETL_CHAIN_WAL_SLOT: lower-case letters, digits and _, at most 63 with a shard's ending",
        )
    return full


class SlotUnfinished(SourceUnavailable):
    """Somebody is making the slot, perhaps a process of ours that was killed at it."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the server.  `publication`: its fingerprint.  `flushed`: up to where WAL can be read.

    `columns`: of the event table, by name.
    """

    facts: Facts
    slot: Slot | None
    publication: str
    flushed: int
    columns: Mapping[str, tuple[ColumnType, str]]

    @property
    def retained(self) -> int:
        """Bytes of WAL that are kept for the slot."""
        return 0 if self.slot is None else max(0, self.flushed - self.slot.restart)


class SlotReader:
    """One slot of one table, over one session.

    Args:
        timeout_s: Deadline of what may have to wait for others, or pass over much WAL.
    """

    def __init__(
        self,
        session: Session,
        table: EventTable,
        shard: Shard,
        *,
        slot: str,
        publication: str,
        timeout_s: float,
    ) -> None:
        self.name = slot_name(slot, shard)
        self.publication = publication
        self._session = session
        self._table = table
        self._guard = Guard(table.relid)
        self._timeout_s = timeout_s
        self._looking = _looking_sql(table)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction of the session; see `Session.transaction`."""
        return self._session.transaction(self._timeout_s)

    async def look(self, transaction: Transaction) -> Look:
        """Look at slot and publication, and prepare the transaction for reading values.

        Raises:
            SourceContractError: the source cannot be used; the hint says what is missing.
            SourceReplaced: a column is not what it was when the table was inspected.
            SlotUnfinished: the slot has no position yet; nothing else is amiss.
            SourceError: the statement failed.
        """
        await transaction.fetch(_FORMS)
        row = (await transaction.fetch(self._looking, self.name, self.publication))[0]
        facts = self._guard.facts(row["body"])
        self._refuse(row)
        columns = _columns(row["columns"])
        self._refuse_columns(columns)
        return Look(facts, _slot(row), row["fingerprint"], row["flushed"], columns)

    async def confirmed(self, transaction: Transaction) -> int | None:
        """The slot's position now; None: there is none, or it is lost."""
        rows = await transaction.fetch(
            "select (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint from pg_replication_slots"
            " where slot_name = $1 and wal_status is distinct from 'lost'",
            self.name,
        )
        position: int | None = rows[0][0] if rows else None
        return position

    async def peek(
        self, transaction: Transaction, up_to: int, changes: int, *, bound: int, head: int
    ) -> Portal:
        """Messages of whole transactions, in the order of their commits.

        Args:
            up_to: Stop behind this position.
            changes: Stop behind the transaction that makes it so many messages.
            bound: A message of more bytes is cut to its first `head`.
        """
        return await transaction.cursor(
            _PEEK, self.name, lsn_text(up_to), changes, bound, head, sql.quoted(self.publication)
        )

    async def make(self) -> int:
        """Drop the slot if it stands, make it, and return its position.

        Every transaction that runs now has ended when it returns: what they wrote is visible, and
        what commits later is handed out.

        Raises:
            SourceError: there is no such slot now.
        """
        async with self.transaction() as transaction:
            await transaction.fetch(_DROP, self.name)
            position: int = (await transaction.fetch(_CREATE, self.name))[0][0]
        return position

    async def advance(self, position: int) -> None:
        """Let the server forget what lies before `position`.

        Raises:
            SourceError: it was not moved.
        """
        await fetch_alone(self._session, _ADVANCE, (self.name, lsn_text(position)))

    def _refuse(self, row: Any) -> None:
        if row["wal_level"] != "logical":
            raise SourceContractError(
                f"wal_level is {row['wal_level']}, the WAL source needs logical",
                hint="ALTER SYSTEM SET wal_level = logical and restart Postgres, or NOETL_CHAIN_TAIL=poll",
            )
        if not row["may_replicate"]:
            raise SourceContractError(
                "the role may not use replication slots",
                hint="ALTER ROLE … REPLICATION (noetl-chain schema print wal), or NOETL_CHAIN_TAIL=poll",
            )
        if row["fingerprint"] is None:
            raise SourceContractError(
                f"there is no publication {self.publication}",
                hint="its owner runs: noetl-chain schema print wal",
            )
        if not row["complete"] or (self._table.partitioned and not row["by_root"]):
            raise SourceContractError(
                f"the publication {self.publication} does not hold the whole event table",
                hint="all of insert, update, delete, truncate, no filter, publish_via_partition_root = true",
            )
        if row["unlogged"] is not None:
            raise SourceContractError(
                f"the partition {row['unlogged']} is not in the write-ahead log",
                hint="ALTER TABLE … SET LOGGED, or NOETL_CHAIN_TAIL=poll",
            )
        if row["slot"] is not None and not row["ours"]:
            raise SourceContractError(
                f"the slot {self.name} is another database's or plugin's",
                hint="name another one in NOETL_CHAIN_WAL_SLOT",
            )

    def _refuse_columns(self, columns: Mapping[str, tuple[ColumnType, str]]) -> None:
        """Changes are cast to the types that were inspected, and bodies are built for them."""
        for name in needed_columns(self._table):
            if name not in columns or columns[name][1] != self._table.types[name]:
                raise SourceReplaced(
                    f"the column {name} of the event table was changed",
                    hint="restart: the columns are read at start-up",
                )


def _columns(text: str) -> dict[str, tuple[ColumnType, str]]:
    return {name: ((oid, modifier), kind) for name, (oid, modifier, kind) in json.loads(text).items()}


def _slot(row: Any) -> Slot | None:
    if row["slot"] is None:
        return None
    if row["lost"]:
        return Slot(0, row["flushed"], lost=True)
    if row["confirmed"] is None:
        raise SlotUnfinished("the replication slot is being made", hint="it waits for who writes now")
    return Slot(row["confirmed"], row["restart"], size_left=row["size_left"])


def _looking_sql(table: EventTable) -> str:
    """One row.  Parameters: the slot's and the publication's name."""
    newer = table.server_version >= _ROW_FILTERS
    schemas = (
        " || coalesce((select string_agg(n.oid::text || ',' || n.xmin::text, ';' order by n.oid)"
        " from pg_publication_namespace n where n.pnpubid = p.oid), '')"
        if newer
        else ""
    )
    unfiltered = (
        " and not exists (select from pg_publication_rel r where r.prpubid = p.oid"
        f" and r.prrelid = {table.regclass} and (r.prattrs is not null or r.prqual is not null))"
        if newer
        else ""
    )
    return (
        f"with {facts_cte(table.regclass)} select {FACTS_BODY} as body,"
        " current_setting('wal_level') as wal_level,"
        " (select r.rolreplication or r.rolsuper from pg_roles r where r.rolname = current_user)"
        " as may_replicate,"
        f" ({_COLUMNS.format(relid=table.regclass)}) as columns,"
        f" ({_UNLOGGED.format(relid=table.regclass)}) as unlogged,"
        " case when not b.rec then (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint end as flushed,"
        " s.slot_name as slot, s.plugin = 'pgoutput' and s.database = current_database() as ours,"
        " s.wal_status = 'lost' as lost, s.safe_wal_size as size_left,"
        " (s.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint as confirmed,"
        " (s.restart_lsn - '0/0'::pg_lsn)::bigint as restart, p.*"
        " from b left join pg_replication_slots s on s.slot_name = $1"
        " left join (select p.oid::text || ':' || p.xmin::text || ':' ||"
        " coalesce((select string_agg(r.oid::text || ',' || r.xmin::text, ';' order by r.oid)"
        f" from pg_publication_rel r where r.prpubid = p.oid), ''){schemas} as fingerprint,"
        " p.pubviaroot as by_root, p.pubinsert and p.pubupdate and p.pubdelete and p.pubtruncate"
        " and exists (select from pg_publication_tables t where t.pubname = p.pubname"
        f" and t.schemaname = '{table.schema}' and t.tablename = 'event'){unfiltered} as complete"
        " from pg_publication p where p.pubname = $2) p on true"
    )
