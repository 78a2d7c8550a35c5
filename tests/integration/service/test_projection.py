"""The comparator leaves its last verdict, and the folded state of what matched, in D3."""

from __future__ import annotations

from pathlib import Path

from sidecar.core.digest import canonical_json
from sidecar.core.workflow import fold
from sidecar.store.projection import ProjectionStore, Record
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.service import Service, service

E = 7601


async def _state(sidecar: Service) -> Record:
    record = await ProjectionStore(sidecar.store).get_state(E)
    assert record is not None
    return record


async def test_a_match_leaves_the_folded_state_and_a_refusal_none(pg: Database, tmp_path: Path) -> None:
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await pg.insert(chain_rows(E, [1, 2], node_name="load"))
        await sidecar.verdict(E, "match")
        matched = await _state(sidecar)
        expected = fold(await sidecar.store.chain(E))
        assert expected is not None
        assert (matched.status, matched.data) == ("match", canonical_json(expected))
        assert "load" in matched.data

        await pg.insert([event_row(E, 3)])
        await sidecar.verdict(E, "refused_multiple_roots")
        refused = await _state(sidecar)
        assert (refused.status, refused.data) == ("refused_multiple_roots", "")
        assert refused.proj_seq > matched.proj_seq
        ((rows,),) = await sidecar.store.query("SELECT count(*) FROM d3_projection")
        assert rows == 1, "a superseded state goes with its successor"


async def test_a_pending_verdict_leaves_the_state_as_it_was(pg: Database, tmp_path: Path) -> None:
    async with service(pg.dsn, tmp_path / "chain.db", dangling_s=600) as sidecar:
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.verdict(E, "match")
        matched = await _state(sidecar)
        await pg.insert([event_row(E, 9, prev=8)])
        await sidecar.verdict(E, "pending_visibility")
        assert await _state(sidecar) == matched
