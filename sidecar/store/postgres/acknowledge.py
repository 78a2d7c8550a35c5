"""Acknowledge a finding of a store on PostgreSQL; see `store.acknowledge`."""

from __future__ import annotations

from typing import Final

from sidecar.errors import StoreBusy, StoreError
from sidecar.store.acknowledge import FIND, PUT, Acknowledged, changed
from sidecar.store.connection import Row
from sidecar.store.postgres.connection import WRITING, PostgresConnection, begin
from sidecar.store.postgres.opening import prepared
from sidecar.store.postgres.url import place_of

# The lock: what was lost may be committing still.
_KEPT: Final = "SELECT acknowledged_at, acknowledged_why FROM finding WHERE finding_id = ? FOR UPDATE"


class _Short(PostgresConnection):
    """One short transaction beside the writer, over columns that nobody keeps in memory."""

    def _beginning(self) -> str:
        return begin(self._place, WRITING, "SET LOCAL lock_timeout = '5s'")


async def change(url: str, finding_id: int, why: str | None, now: int | None) -> Acknowledged:
    """Mark a finding as known, or, without a reason, let it count again.

    Raises:
        ConfigError: there is no such finding, or nothing to change.
        StoreError: nothing was written, or, when it says so, nobody can tell.
    """
    place = place_of(url)
    connection = _Short(place, await prepared(place, writing=False, not_on=None))
    given: list[Acknowledged] = []

    async def work() -> Acknowledged:
        found: list[Row] = await connection.rows(f"{FIND} FOR UPDATE", (finding_id,))
        done = changed(finding_id, found[0] if found else None, why, now)
        await connection.rows(PUT, (finding_id, done.at, why))
        given.append(done)
        return done

    try:
        return await connection.hold(work)
    except StoreBusy as lost:
        if not given:
            raise
        return await _read_back(connection, given[0], lost)
    finally:
        await connection.close()


async def _read_back(connection: _Short, done: Acknowledged, lost: StoreBusy) -> Acknowledged:
    """What a COMMIT without an answer came to."""
    try:
        found = await connection.hold(lambda: connection.rows(_KEPT, (done.finding_id,)))
    except StoreBusy:
        raise StoreError(
            "whether the finding was changed cannot be told: the store's server is away",
            hint="`inspect` shows it when the server is back",
        ) from lost
    if found == [(done.at, done.why)]:
        return done
    raise lost
