"""The checks of the log's side: values of `source.examine` and `source.pins` in, answers out.

Nothing is asked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sidecar.doctor.checks import Check, cannot_tell, failed, ok, warning
from sidecar.source.body import BODY_COLUMNS
from sidecar.source.examine import Leaf, Partitions, Role, Server, Table
from sidecar.source.pins import Pins
from sidecar.source.table import OLDEST_SERVER

CLOCK_WARN_US: Final = 2_000_000
"""Postgres's clock bounds the windows, ours the pending times; apart by more they mislead."""
NAMED_MAX: Final = 5
REQUIRED: Final = ("execution_id", "event_id", "event_type", "created_at")
INDEXES: Final = (
    (("execution_id",), "every log read and the sweep's comparison read whole partitions"),
    (("execution_id", "event_id"), "bodies are looked up slowly while the horizon is held back"),
    (("created_at",), "every poll of the lanes live and late reads whole partitions"),
)
"""Key columns an index of every partition should begin with, and what is slow without it."""


def version_check(number: int) -> Check:
    text = f"PostgreSQL {number // 10_000}.{number % 10_000}"
    if number < OLDEST_SERVER:
        return failed("server_version", f"{text} is older than 14", "follow a server of version 14 or newer")
    return ok("server_version", text)


def primary_check(server: Server) -> Check:
    if server.recovery:
        return failed("primary", "this server is a standby", "point the DSN at the primary")
    return ok("primary", "this server is the primary")


def encoding_check(server: Server) -> Check:
    encoding = server.settings.get("server_encoding", "unknown")
    if encoding != "UTF8":
        return warning(
            "encoding",
            f"the database's encoding is {encoding}",
            "texts that are no Unicode are refused: keep the log in a database of encoding UTF8",
        )
    return ok("encoding", encoding)


def pooler_check(server: Server, wanted: int, width: int | None) -> Check:
    """`width`: how many of `wanted` transactions were open at once; None: not tried."""
    if not server.pooled:
        return ok("pooler", "none: the server answers itself")
    if width is None:
        return cannot_tell(
            "pooler",
            "a pooler stands between, its size was not tried",
            f"give it {wanted} server connections for this sidecar",
        )
    if width < wanted:
        return warning(
            "pooler",
            f"a pooler stands between and gave {width} of {wanted} connections at once",
            f"raise its pool to at least {wanted} for this sidecar: lanes hold their transaction while a"
            " batch is stored",
        )
    return ok("pooler", f"a pooler stands between and gave {wanted} connections at once")


def clock_check(server: Server) -> Check:
    apart = abs(server.offset_us) - server.offset_error_us
    text = (
        f"Postgres's clock is {server.offset_us / 1e6:+.3f} s from ours,"
        f" known to {server.offset_error_us / 1e6:.3f} s"
    )
    if apart > CLOCK_WARN_US:
        return warning("clock", text, "synchronise both clocks (NTP): windows of time are cut by either")
    return ok("clock", text)


def durability_check(server: Server) -> Check:
    if server.settings.get("fsync") == "off":
        return warning(
            "durability", "fsync is off: a crash of the machine may destroy the log", "switch fsync on"
        )
    if server.settings.get("synchronous_commit") == "off":
        return warning(
            "durability",
            "synchronous_commit is off: a crash of the server takes its last commits along",
            "rows lost so are named log_lost; switch it on where the log has to last",
        )
    return ok("durability", "commits survive a crash of the server")


def timeouts_check(server: Server, query_timeout_s: float) -> Check:
    """A lane holds its transaction while its batch is stored."""
    names = ("idle_in_transaction_session_timeout", "transaction_timeout")
    set_to = {name: int(server.settings.get(name, "0")) for name in names}
    short = [f"{name} = {ms} ms" for name, ms in set_to.items() if 0 < ms < query_timeout_s * 1000]
    if short:
        return warning(
            "timeouts",
            f"{', '.join(short)} may end a poll whose rows are being stored",
            "ALTER ROLE … SET it above NOETL_CHAIN_QUERY_TIMEOUT_S, or to 0, for this role",
        )
    return ok("timeouts", "no server timeout is shorter than NOETL_CHAIN_QUERY_TIMEOUT_S")


def table_check(table: Table, schema: str) -> Check:
    if not table.has_schema:
        return failed("table", f"there is no schema {schema}", "check NOETL_SCHEMA and the database")
    if table.relid is None:
        return failed(
            "table", f"the schema {schema} has no table event", "check NOETL_SCHEMA and the database"
        )
    return ok("table", f"{schema}.event")


def rights_check(table: Table, role: Role) -> Check:
    if not table.may_use:
        return failed("rights", f"{role.name} may not use the schema", "GRANT USAGE ON SCHEMA … TO …")
    if not table.may_read:
        return failed("rights", f"{role.name} may not read the event table", "GRANT SELECT ON … TO …")
    if table.row_security:
        return failed("rights", f"row security hides rows from {role.name}", "give the role BYPASSRLS")
    hidden = "" if role.stats else "; how long others' transactions last is hidden (pg_read_all_stats)"
    return ok("rights", f"{role.name} may read the event table{hidden}")


def read_only_check(table: Table, role: Role) -> Check:
    if role.superuser:
        return warning(
            "read_only",
            f"{role.name} is a superuser",
            "connect as a role with SELECT alone: noetl-chain schema print postgres",
        )
    if table.writes:
        return warning(
            "read_only",
            f"{role.name} could also {', '.join(table.writes)}",
            f"REVOKE {', '.join(table.writes)} ON … FROM {role.name}: SELECT is enough",
        )
    return ok("read_only", f"{role.name} could write nothing to the event table")


def columns_check(table: Table) -> Check:
    if gone := [column for column in REQUIRED if column not in table.columns]:
        return failed("columns", f"the event table lacks {', '.join(gone)}", "this is no noetl.event")
    missing = [column for column in BODY_COLUMNS if column not in table.columns]
    if "prev_event_id" in missing:
        return warning(
            "columns",
            "prev_event_id is missing: every event is a root, longer executions are refused",
            "upgrade NoETL: it adds the column",
        )
    if missing:
        return warning("columns", f"missing, counted as NULL: {', '.join(missing)}", "upgrade NoETL")
    return ok("columns", f"all {len(BODY_COLUMNS)} of the body")


def indexes_check(found: Partitions) -> Check:
    lacking = [
        f"({', '.join(columns)}) on {_some(leaf.name for leaf in without)}: {slow}"
        for columns, slow in INDEXES
        if (without := [leaf for leaf in found.leaves if not leaf.serves(columns)])
    ]
    if lacking:
        return warning(
            "indexes",
            "no usable index " + "; ".join(lacking),
            "CREATE INDEX CONCURRENTLY on each; an invalid one is dropped first",
        )
    return ok("indexes", f"execution_id, event_id and created_at, on {len(found.leaves)} table(s)")


def partitions_check(table: Table, found: Partitions) -> Check:
    if found.leaving:
        return warning(
            "partitions",
            f"{_some(found.leaving)} is being detached and was never finished",
            "ALTER TABLE … DETACH PARTITION … FINALIZE; its rows are not seen meanwhile",
        )
    if not table.partitioned:
        return ok("partitions", "the table is not partitioned: one lane sweeps it")
    default: Leaf | None = next((leaf for leaf in found.leaves if leaf.is_default), None)
    if default is None:
        return ok("partitions", f"{len(found.leaves)}, no DEFAULT")
    return ok("partitions", f"{len(found.leaves)}, DEFAULT with about {default.rows:,} rows")


def horizon_check(looks: Sequence[Pins], apart_s: float, bound_s: float) -> Check:
    """Judge two looks at the transactions that run, `apart_s` seconds apart.

    What holds the horizon only at the first look has ended meanwhile.
    """
    first, last = looks[0], looks[-1]
    if not last.held or last.horizon != first.horizon:
        return ok("horizon", "moves on: nothing holds it back")
    pin = last.culprit
    if pin is None:
        return cannot_tell(
            "horizon",
            f"stands still for {apart_s:.1f} s, held by a session not visible to this role",
            "GRANT pg_read_all_stats to the role, or look as a superuser",
        )
    if pin.age_s is not None and pin.age_s < bound_s:
        return ok("horizon", f"held for a moment by {pin.named}")
    return warning(
        "horizon",
        f"held back by {pin.named}; rows are read again and again, none is missed",
        pin.remedy,
    )


def prepared_check(last: Pins) -> Check:
    prepared = [pin for pin in last.pins if pin.gid is not None]
    if not prepared:
        return ok("prepared_transactions", "none")
    oldest = prepared[0]
    return warning("prepared_transactions", f"{len(prepared)}, the oldest is {oldest.named}", oldest.remedy)


def writers_check(last: Pins, bound_s: float) -> Check:
    writers = [pin for pin in last.pins if pin.gid is None]
    long = [pin for pin in writers if pin.age_s is not None and pin.age_s >= bound_s]
    if long:
        return warning("long_writers", "; ".join(pin.named for pin in long[:NAMED_MAX]), long[0].remedy)
    hidden = sum(pin.age_s is None for pin in writers)
    if hidden:
        return ok("long_writers", f"{hidden} writing now, for how long is hidden (pg_read_all_stats)")
    return ok("long_writers", f"none longer than {bound_s:.0f} s")


def slots_check(count: int, idle: int) -> Check:
    if idle:
        return warning(
            "replication_slots",
            f"{idle} of {count} has no reader: it keeps WAL, though it does not hold the horizon",
            "pg_drop_replication_slot() if nobody comes back for it",
        )
    return ok("replication_slots", f"{count}; none of them holds the horizon back")


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - NAMED_MAX} more" if len(listed) > NAMED_MAX else ""
    return ", ".join(listed[:NAMED_MAX]) + more
