"""The server under the tail becomes a standby, and is promoted: refused meanwhile, then followed again.

On the same socket, as after a failover behind one name.  A standby may not yet show what is
committed, so nothing that it says is a verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.core.horizon import Facts
from sidecar.errors import SourceContractError
from sidecar.source.connection import Session
from sidecar.source.log import read_anchor
from tests.conftest import StartServer
from tests.support.captured import captured
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.service import service
from tests.support.tailing import opened
from tests.support.waiting import until

E = 8000
ROLE = "SELECT pg_is_in_recovery()"


def _refused(lines: list[Any]) -> set[str]:
    return {line["loop"] for line in lines if line.get("reason") == "this server is a standby"}


@pytest.mark.timeout(180)
async def test_a_primary_that_becomes_a_standby_is_refused_until_it_is_promoted(
    pg_server: StartServer, tmp_path: Path
) -> None:
    server = await pg_server({"autovacuum": "off"})
    pg = Database(server.dsn(), "postgres")
    log, lines = captured()
    async with service(pg.dsn, tmp_path / "chain.db", log=log, dangling_s=60) as sidecar:
        await pg.insert(chain_rows(E, [1, 2, 3]))
        # What dangles is asked for at every tick: the comparator meets the standby too.
        await pg.insert([event_row(E + 1, 1), event_row(E + 1, 3, prev=2)])
        await sidecar.verdict(E, "match")
        await sidecar.verdict(E + 1, "pending_visibility")
        await sidecar.caught_up()  # every lane polls by now
        before = sidecar.verdicts()
        stored = await sidecar.store.chain(E)

        server.halt()
        server.write(server.data / "standby.signal", b"")
        server.restart({"hot_standby": "on"})
        assert (await pg.fetch(ROLE))[0][0] is True

        await until(lambda: {"live", "late", "sweep"} <= _refused(lines), within_s=60)
        assert "source unavailable" in sidecar.health.reasons()
        await sidecar.verdict(E + 1, "log_read_failed", patience_s=60)
        new = {name: count - before.get(name, 0) for name, count in sidecar.verdicts().items()}
        assert {name for name, count in new.items() if count} <= {"log_read_failed", "pending_visibility"}
        assert new["log_read_failed"] > 0
        assert await sidecar.store.chain(E) == stored
        assert (await sidecar.read(E)).events == stored, "nothing was withdrawn because of a standby"
        with pytest.raises(SourceContractError, match="standby"):
            async with opened(pg.dsn):
                pass
        behind_a_name = Session(pg.dsn, query_timeout_s=5)
        with pytest.raises(SourceContractError, match="standby"):
            await read_anchor(behind_a_name, Facts(1000, 1000, "", "", 0))
        await behind_a_name.close()

        await pg.execute("SELECT pg_promote(true, 30)")
        assert (await pg.fetch(ROLE))[0][0] is False
        await pg.insert([event_row(E, 4, prev=3), event_row(E + 1, 2, prev=1)])
        await pg.insert(chain_rows(E + 2, [1, 2]))
        for execution, rows in ((E, 4), (E + 1, 3), (E + 2, 2)):

            async def good(execution: int = execution, rows: int = rows) -> bool:
                partition = await sidecar.store.partition(execution)
                chain = await sidecar.store.chain(execution)
                return partition is not None and partition.verdict == "match" and len(chain) == rows

            await sidecar.until(good, patience_s=60)
        await sidecar.idle(patience_s=60)
        assert sidecar.divergences() == {}
        assert sidecar.verdicts().keys() <= {"match", "pending_visibility", "log_read_failed"}
        timelines = await sidecar.store.query("SELECT DISTINCT timeline FROM server_epoch ORDER BY 1")
        assert len(timelines) == 2, "the promotion made no new timeline: it proves nothing"
        await pg.close()
