"""Who holds the xmin horizon back: sessions that wrote and have not ended, prepared transactions.

H is the oldest transaction id that still runs, anywhere in the cluster: another database's
counts, a reader's snapshot and a replication slot's xmin do not.  Every role sees which session
has which id; how long its transaction lasts is shown to members of pg_read_all_stats only.
No query text is read: it may hold payload.
Source: spec 1.8 ("What pins H").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidecar.core.horizon import XID_SPAN
from sidecar.source.connection import Session, fetch_alone

TEXT_MAX: Final = 64
"""Names that clients choose are cut to this."""

_SQL: Final = """
select s.h, s.mx, p.*
  from (select pg_snapshot_xmin(sn)::text::bigint as h, pg_snapshot_xmax(sn)::text::bigint as mx
          from (select pg_current_snapshot() as sn) z) s
  left join (
    select a.backend_xid::text::bigint as xid, a.pid, null::text as gid,
           a.application_name::text as application, a.usename::text as role,
           a.datname::text as database, a.state::text as state,
           extract(epoch from clock_timestamp() - a.xact_start)::float8 as age_s
      from pg_stat_activity a where a.backend_xid is not null and a.pid <> pg_backend_pid()
    union all
    select x.transaction::text::bigint, null, x.gid, null, x.owner::text, x.database::text, 'prepared',
           extract(epoch from clock_timestamp() - x.prepared)::float8
      from pg_prepared_xacts x) p on true
"""


@dataclass(frozen=True, slots=True)
class Pin:
    """One transaction with an id that has not ended.

    `xid`: modulo 2^32.  A session has a `pid`, a prepared transaction a `gid` and no session
    at all.  `age_s`: since it began (or was prepared); None: not shown to this role.
    `holds`: its id is H, so nothing else lets H advance before it ends.
    """

    xid: int
    pid: int | None
    gid: str | None
    application: str | None
    role: str | None
    database: str | None
    state: str | None
    age_s: float | None
    holds: bool

    @property
    def named(self) -> str:
        """One phrase for people."""
        age = "" if self.age_s is None else f", for {self.age_s:.0f} s"
        if self.gid is not None:
            return f"the prepared transaction {self.gid!r} of {self.role} in {self.database}{age}"
        state = f", {self.state}" if self.state else ""
        name = self.application or "without application_name"
        return f"process {self.pid} ({name}) of {self.role} in {self.database}{state}{age}"

    @property
    def remedy(self) -> str:
        if self.gid is not None:
            return f"COMMIT PREPARED or ROLLBACK PREPARED {self.gid!r} in {self.database}"
        return f"let it end, or as its role: SELECT pg_terminate_backend({self.pid})"


@dataclass(frozen=True, slots=True)
class Pins:
    """Transactions that run, the oldest first.

    `horizon`, `xmax`: of the statement's snapshot, 64-bit.  They are equal when nothing runs.
    """

    horizon: int
    xmax: int
    pins: tuple[Pin, ...]

    @property
    def culprit(self) -> Pin | None:
        """Who holds H; None when nobody does, or nobody whom the server shows."""
        return next((pin for pin in self.pins if pin.holds), None)

    @property
    def held(self) -> bool:
        return self.horizon != self.xmax


async def find_pins(session: Session) -> Pins:
    """Ask the server once.

    Raises:
        SourceError: the statement failed.
    """
    rows = await fetch_alone(session, _SQL)
    horizon: int = rows[0]["h"]
    pins = [
        Pin(
            row["xid"],
            row["pid"],
            _cut(row["gid"]),
            _cut(row["application"]),
            row["role"],
            row["database"],
            row["state"],
            row["age_s"],
            holds=(row["xid"] - horizon) % XID_SPAN == 0,
        )
        for row in rows
        if row["xid"] is not None
    ]
    pins.sort(key=lambda pin: (pin.xid - horizon) % XID_SPAN)
    return Pins(horizon, rows[0]["mx"], tuple(pins))


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
