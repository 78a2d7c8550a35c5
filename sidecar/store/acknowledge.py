"""Acknowledge one finding, or take that back: a person's word, beside a running sidecar too.

The one writer's lock is about what the chain is; this touches the two acknowledgement columns
of one finding and nothing else, in one short transaction of its own connection that waits its
turn.  Nobody keeps those columns in memory: the sidecar reads them at its next gauge.  A store
at rest is left at rest.  Source: design 4 (`ack`).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.errors import ConfigError
from sidecar.store.failure import sqlite_errors
from sidecar.store.format import uri

WAIT_S: Final = 5.0
"""For the sidecar's transaction under way; one takes a fraction of it."""
WHY_MAX: Final = 1000

FIND: Final = (
    "SELECT execution_id, verdict, kind, resolved_at IS NOT NULL, acknowledged_at, found_at"
    " FROM finding WHERE finding_id = ?"
)
PUT: Final = "UPDATE finding SET acknowledged_at = ?2, acknowledged_why = ?3 WHERE finding_id = ?1"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One finding afterwards.  `at`: microseconds since 1970, None: it counts again."""

    finding_id: int
    execution_id: int
    verdict: str
    kind: str | None
    resolved: bool
    at: int | None
    why: str | None


def acknowledge(path: Path, finding_id: int, why: str, *, now: int, wait_s: float = WAIT_S) -> Acknowledged:
    """Mark a finding as known; it is kept and shown, and counts no more.

    Args:
        why: For the next reader.
        now: Microseconds since 1970.

    Raises:
        ConfigError: there is no such finding, it is acknowledged already, or no reason is given.
        StoreBusy, StoreFull, StoreError: nothing was written.
    """
    return _changed(path, finding_id, reason_of(why), now, wait_s)


def take_back(path: Path, finding_id: int, *, wait_s: float = WAIT_S) -> Acknowledged:
    """Let a finding count again.

    Raises:
        ConfigError: there is no such finding, or it is not acknowledged.
        StoreBusy, StoreFull, StoreError: nothing was written.
    """
    return _changed(path, finding_id, None, None, wait_s)


def _changed(path: Path, finding_id: int, why: str | None, now: int | None, wait_s: float) -> Acknowledged:
    with (
        sqlite_errors(),
        closing(
            sqlite3.connect(uri(path, "rw"), uri=True, isolation_level=None, timeout=wait_s)
        ) as connection,
    ):
        connection.execute("BEGIN IMMEDIATE")
        try:
            found = connection.execute(FIND, (finding_id,)).fetchone()
            done = changed(finding_id, found, why, now)
            connection.execute(PUT, (finding_id, done.at, why))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite rolls back by itself when the disk is full
                connection.rollback()
            raise
    return done


def reason_of(why: str) -> str:
    """The reason without what stands around it.

    Raises:
        ConfigError: there is none, or it is too long.
    """
    reason = why.strip()
    if not reason:
        raise ConfigError("an acknowledgement needs a reason", hint="say why: --why 'restored from backup'")
    if len(reason) > WHY_MAX:
        raise ConfigError(f"the reason is longer than {WHY_MAX} characters", hint="name a ticket instead")
    return reason


def changed(
    finding_id: int,
    found: tuple[int, str, str | None, int, int | None, int] | None,
    why: str | None,
    now: int | None,
) -> Acknowledged:
    """The finding as it is to stand.

    Args:
        found: The answer to FIND; None: there is no such finding.
        why: The reason; None: it is taken back.

    Raises:
        ConfigError: there is nothing to change.
    """
    execution_id, verdict, kind, resolved, _, found_at = _checked(finding_id, found, why)
    at = None if now is None else max(now, found_at)
    return Acknowledged(finding_id, execution_id, verdict, kind, bool(resolved), at, why)


def _checked(
    finding_id: int, found: tuple[int, str, str | None, int, int | None, int] | None, why: str | None
) -> tuple[int, str, str | None, int, int | None, int]:
    if found is None:
        raise ConfigError(
            f"there is no finding {finding_id} in this store",
            hint="`noetl-chain inspect EXECUTION` shows the findings of an execution with their numbers",
        )
    acknowledged = found[4] is not None
    if why is not None and acknowledged:
        raise ConfigError(
            f"finding {finding_id} is acknowledged already", hint="take it back with --undo first"
        )
    if why is None and not acknowledged:
        raise ConfigError(f"finding {finding_id} is not acknowledged", hint="nothing to take back")
    return found
