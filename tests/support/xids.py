"""Walk a server's transaction counter, so that rows are thousands of millions of transactions old."""

from __future__ import annotations

from typing import Final

import asyncpg

from sidecar.demo.postgres import EmbeddedPostgres

XIDS_PER_SEGMENT: Final = 1 << 20
"""A pg_xact file holds two bits a transaction in 256 KiB."""
STEP_MAX: Final = 2_000_000_000
"""One step must stay below 2^31, or old rows would lie in the future."""


async def walk_xids(server: EmbeddedPostgres, distance: int) -> None:
    """Move the next transaction id on by at least `distance`, freezing every row on the way.

    The counter wraps at 2^32 as a real one does, and the epoch moves with it.  The server is
    restarted; connections break.
    """
    while distance > 0:
        step = min(distance, STEP_MAX)
        await freeze(server)
        _jump(server, await next_xid(server) + step)
        distance -= step
    await freeze(server)


async def next_xid(server: EmbeddedPostgres) -> int:
    """The next transaction id, epoch included."""
    conn = await asyncpg.connect(server.dsn())
    try:
        return int(await conn.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"))
    finally:
        await conn.close()


async def freeze(server: EmbeddedPostgres) -> None:
    """Freeze every row of every database, the templates too: the oldest xid follows."""
    admin = await asyncpg.connect(server.dsn())
    try:
        await admin.execute("UPDATE pg_database SET datallowconn = true")
        names = [row["datname"] for row in await admin.fetch("SELECT datname FROM pg_database")]
    finally:
        await admin.close()
    for name in names:
        conn = await asyncpg.connect(server.dsn(name))
        try:
            await conn.execute("VACUUM (FREEZE)")
        finally:
            await conn.close()


def _jump(server: EmbeddedPostgres, target: int) -> None:
    """Restart with the counter at the first id of a segment, at or after `target`."""
    target = -(-target // XIDS_PER_SEGMENT) * XIDS_PER_SEGMENT
    epoch, xid = divmod(target, 1 << 32)
    if xid == 0:  # no id of its own: 0 means "none"
        xid = XIDS_PER_SEGMENT
    server.halt()
    server.run("pg_resetwal", "-e", str(epoch), "-x", str(xid), "-D", str(server.data))
    # Postgres makes the file when it crosses into a segment; we have jumped over that moment.
    segment = server.data / "pg_xact" / f"{xid // XIDS_PER_SEGMENT:04X}"
    server.write(segment, bytes(XIDS_PER_SEGMENT // 4))
    server.restart()
