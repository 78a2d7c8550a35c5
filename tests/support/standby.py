"""A standby that streams from a server of the test's own."""

from __future__ import annotations

import asyncio
import shutil
from typing import Final

from sidecar.demo.postgres import EmbeddedPostgres
from tests.conftest import StartServer
from tests.support.databases import Database

AT_ONCE: Final = {
    "hot_standby": "on",
    "max_standby_streaming_delay": "0",
    "autovacuum": "off",
    "track_activity_query_size": "16384",
}
"""What the primary did is replayed at once: a statement that is in the way is cancelled.

Whole statements are shown, so that a test can tell ours apart.
"""


async def streaming(primary: EmbeddedPostgres, start: StartServer) -> EmbeddedPostgres:
    """A running standby of `primary`, copied from it and following it; its socket is its own."""
    standby = await start(event_table=False)
    standby.halt()
    for one in standby.data.iterdir():
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    standby.run(
        "pg_basebackup", "-D", str(standby.data), "-d", primary.dsn(), "-R", "-c", "fast", "--no-sync"
    )
    standby.restart(AT_ONCE)
    return standby


async def replayed(primary: Database, standby: Database, *, within_s: float = 30) -> None:
    """Wait until the standby shows everything that is committed on the primary now."""
    written = (await primary.fetch("SELECT pg_current_wal_flush_lsn()::text AS lsn"))[0]["lsn"]
    done = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn AS done"
    async with asyncio.timeout(within_s):
        while not (await standby.fetch(done, written))[0]["done"]:  # noqa: ASYNC110 - nothing moves here
            await asyncio.sleep(0.02)
