"""Wherever a joined chain is shown, the join is shown with its proof and is no edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.commands.inspect import inspected
from sidecar.inspection.inspected import document, told
from sidecar.inspection.joins import sentence
from sidecar.settings import Reading, Settings
from tests.support.api import TOKEN, shown
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.service import Service, service

E = 9_007_199_254_740_993


@pytest.mark.parametrize("withdrawn", [False, True])
async def test_page_api_and_inspect_show_the_join_with_its_proof(
    pg: Database, tmp_path: Path, withdrawn: bool
) -> None:
    path = tmp_path / "chain.db"
    async with service(pg.dsn, path, rejoin=Reading.ON, serve="on") as sidecar:
        await sidecar.followed()
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.verdict(E, "match")
        await sidecar.idle()
        await pg.insert(chain_rows(E, [9, 8]))
        await sidecar.verdict(E, "match_rejoined")
        if withdrawn:
            await pg.insert([event_row(E, 3, prev=2)])
            await sidecar.verdict(E, "rejoin_withdrawn")
        (join,) = await sidecar.store.joins(E)
        assert (join.withdrawn_at is not None) is withdrawn
        found = await inspected(Settings.given(dsn=pg.dsn, store=str(path), rejoin="on"), E)
        await _asked(sidecar, sentence(join), withdrawn=withdrawn)
    lines = list(told(found, payload=False))
    assert f"  join      {sentence(join)}" in lines
    log = next(line for line in lines if line.startswith("  log "))
    assert log.endswith(", joined from 2 pieces") is not withdrawn
    (proof,) = document(found, payload=False)["joins"]
    assert (proof["tip_event_id"], proof["root_event_id"]) == ("2", "9")
    assert int(proof["xid"]) >= int(proof["anchor"])
    assert proof["stands"] is not withdrawn


async def _asked(sidecar: Service, proof: str, *, withdrawn: bool) -> None:
    async with shown(sidecar) as client:
        answer: Any = (await client.get(f"/api/v1/executions/{E}")).json()
        (join,) = answer["joins"]
        assert (join["tip_event_id"], join["root_event_id"]) == ("2", "9")
        nodes = {node["event_id"]: node for node in answer["picture"]["nodes"]}
        assert nodes["9"]["prev_event_id"] is None, "a join is no edge"
        page = (await client.get(f"/executions/{E}")).text
        assert proof in page
        # One in the legend, and one in the drawing while it stands.
        assert page.count('class="edge joined"') == (1 if withdrawn else 2)
        chain = await client.get(
            f"/api/v1/executions/{E}/chain", headers={"authorization": f"Bearer {TOKEN}"}
        )
        if withdrawn:
            assert chain.status_code == 409
        else:
            served = chain.json()["events"]
            assert [event["event_id"] for event in served] == ["1", "2", "9", "8"]
            assert [event["prev_event_id"] for event in served] == [None, "1", None, "9"]
