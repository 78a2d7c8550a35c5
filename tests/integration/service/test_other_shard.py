"""Asked for another shard's execution, a sidecar names that shard and never says that it was never seen."""

from __future__ import annotations

from pathlib import Path

from sidecar.core.shards import Shard
from tests.integration.service.test_pages import browsing
from tests.support.api import BEARER
from tests.support.databases import Database
from tests.support.rows import chain_rows
from tests.support.service import service

E = 7900
MINE = next(e for e in range(E, E + 50) if Shard(0, 2).owns(e))
OTHERS = next(e for e in range(E, E + 50) if not Shard(0, 2).owns(e))
NOBODYS = next(e for e in range(E + 50, E + 99) if Shard(0, 2).owns(e))


ASKED = (("GET", ""), ("GET", "?log=true"), ("GET", "/chain"), ("GET", "/state"), ("POST", "/probe"))
GATES = {"serve": "on", "cert": "on", "api_token": "t" * 20}


async def test_another_shard_s_execution_is_answered_by_the_shard_s_name(
    pg: Database, tmp_path: Path
) -> None:
    await pg.insert([*chain_rows(MINE, [1, 2]), *chain_rows(OTHERS, [1, 2])])
    store, headers = tmp_path / "chain.db", BEARER | {"accept": "application/json"}
    async with (
        service(pg.dsn, store, shard_index=0, shard_count=2, **GATES) as sidecar,
        browsing(sidecar) as client,
    ):
        await sidecar.verdict(MINE, "match")
        for method, path in ASKED:
            mine, others, nobodys = [
                await client.request(method, f"/api/v1/executions/{e}{path}", headers=headers)
                for e in (MINE, OTHERS, NOBODYS)
            ]
            assert mine.status_code == 200, path
            assert (others.status_code, others.json()["reason"]) == (404, "other_shard"), path
            assert others.json()["detail"] == f"execution {OTHERS} falls to shard 1 of 2, this is 0"
            if method == "GET":
                assert (nobodys.status_code, nobodys.json()["reason"]) == (404, "never_seen"), path
        assert OTHERS not in [each async for each in sidecar.store.executions()]
