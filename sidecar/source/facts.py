"""What every statement over the log says of itself: snapshot, epoch, partition tree.

A statement that reads rows carries one more row, whose execution_id is NULL and whose body is
a JSON object of these facts.  They come from the statement's own snapshot, so rows and facts
cannot disagree.  The row stands first.
Source: spec 1.8, evidence 2b.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from sidecar.core.horizon import LEAVING, Facts
from sidecar.errors import SourceContractError, SourceReplaced

ANCHOR_SQL: Final = "select (age('3'::xid)::bigint + 3) & 4294967295, pg_is_in_recovery()"
"""The next unassigned xid, modulo 2^32, and whether a standby says so: there it lies behind.

age() is anchored once per transaction: run it alone.
"""

_EPOCH: Final = (
    "concat_ws('/', (select system_identifier from pg_control_system()),"
    " case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end,"
    " extract(epoch from pg_postmaster_start_time()),"
    " (select extract(epoch from stats_reset) from pg_stat_bgwriter))"
)


def tree_sql(root: str) -> str:
    """The fingerprint of the partition tree below `root` (an oid expression), '-' for a leaf.

    `horizon.LEAVING` at its end says that a partition is being detached.
    """
    return (
        f"(with recursive below(relid) as (select {root} union all"
        " select i.inhrelid from pg_inherits i join below on i.inhparent = below.relid)"
        " select coalesce(md5(string_agg(i.inhrelid::text || ',' || i.xmin::text || ','"
        " || i.inhdetachpending::text, ';' order by i.inhrelid))"
        f" || case when bool_or(i.inhdetachpending) then '{LEAVING}' else '' end, '-')"
        " from pg_inherits i where i.inhparent in (select relid from below))"
    )


def facts_cte(regclass: str, horizon_parameter: str | None = None) -> str:
    """The CTE `b` of one row: the statement's facts, and the bounds of its age filter.

    Args:
        regclass: The table as an oid expression.
        horizon_parameter: The parameter that holds H modulo 2^32 as text.  Then `hi` is
            there: a row is new when age(xmin) lies between `lo` and `hi`.  `lo` is the
            snapshot's own bound, not 1: age() counts from a "now" fixed at planning.
    """
    upper = f", age({horizon_parameter}::text::xid) as hi" if horizon_parameter else ""
    return (
        "b as materialized (select"
        " pg_snapshot_xmin(sn)::text::bigint as h, pg_snapshot_xmax(sn)::text::bigint as mx,"
        f" age(pg_snapshot_xmax(sn)::xid) + 1 as lo{upper},"
        " (extract(epoch from now()) * 1000000)::bigint as t, pg_is_in_recovery() as rec,"
        f" {_EPOCH} as epoch, {tree_sql(regclass)} as tree, {regclass}::bigint as relid"
        " from (select pg_current_snapshot() as sn) z)"
    )


FACTS_BODY: Final = (
    "json_build_object('h', b.h, 'mx', b.mx, 't', b.t, 'rec', b.rec,"
    " 'epoch', b.epoch, 'tree', b.tree, 'relid', b.relid)::text"
)
"""The facts as the body of the first row; selected from `b`."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What must still be true of the table a statement read."""

    relid: int

    def facts(self, body: str) -> Facts:
        """Read a facts row.

        Raises:
            SourceContractError: a standby.
            SourceReplaced: another table under the name.
        """
        found = json.loads(body)
        if found["rec"]:
            raise standby()
        if found["relid"] != self.relid:
            raise SourceReplaced("the event table was replaced", hint="restart: it is inspected at start-up")
        return Facts(found["h"], found["mx"], found["epoch"], found["tree"], found["t"])


def standby() -> SourceContractError:
    """Spec 3.4 depends on the primary: a standby may not yet show what is committed."""
    return SourceContractError("this server is a standby", hint="point the DSN at the primary")
