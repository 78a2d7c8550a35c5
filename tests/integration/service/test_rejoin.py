"""A restart's second root: joined where the tail can prove the order, refused everywhere else.

A restarted server is a transaction that begins after a poll has seen the tip.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.commands.verify import verification
from sidecar.core.authority import Reason
from sidecar.core.certificate import Roller
from sidecar.core.verdict import Verdict
from sidecar.readings import Reading
from sidecar.settings import Settings
from sidecar.store import ChainStore
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row, insert_rows
from tests.support.service import Service, service

E = 7300
ON: dict[str, Any] = {"rejoin": Reading.ON}


async def _first_piece(sidecar: Service, pg: Database, *ids: int) -> None:
    """A chain that is stored and judged, by lanes that all have a horizon."""
    await sidecar.followed()
    await pg.insert(chain_rows(E, ids))
    await sidecar.verdict(E, "match")
    await sidecar.idle()


async def _served(sidecar: Service) -> list[int] | Reason | None:
    read = await sidecar.read(E)
    return read.reason if read.events is None else [event.event_id for event in read.events]


async def test_pieces_that_are_proven_are_one_chain_with_a_verdict_of_its_own(
    pg: Database, tmp_path: Path
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db", **ON) as sidecar:
        await _first_piece(sidecar, pg, 3, 1, 2)
        matched = sidecar.value("shadow_verdict_total", verdict="match")
        await pg.insert(chain_rows(E, [9, 4]))
        await sidecar.verdict(E, "match_rejoined")
        assert await _served(sidecar) == [3, 1, 2, 9, 4]
        await pg.insert(chain_rows(E, [7, 8]))
        await sidecar.stored(E, 7)
        await sidecar.idle()
        assert (await sidecar.partition(E)).verdict == "match_rejoined"
        assert await _served(sidecar) == [3, 1, 2, 9, 4, 7, 8]

        joins = await sidecar.store.joins(E)
        assert [(each.tip_event_id, each.root_event_id) for each in joins] == [(2, 9), (4, 7)]
        assert all(each.anchor is not None and each.xid >= each.anchor and each.stands for each in joins)
        stored = {event.event_id: event for event in await sidecar.store.chain(E)}
        assert [stored[root].prev_event_id for root in (9, 7)] == [None, None], "a join is no edge"
        assert all('"prev_event_id":' not in stored[root].body for root in (9, 7))
        assert sidecar.value("shadow_verdict_total", verdict="match") == matched
        assert not sidecar.divergences()
        assert await sidecar.store.chain_is_complete(E)
        walked = [row.event.event_id for row in await sidecar.store.walk_from_head(E)]
        assert walked == [8, 7, 4, 9, 2, 1, 3]


@pytest.mark.torture
async def test_off_nothing_is_kept_and_the_second_root_is_refused(pg: Database, tmp_path: Path) -> None:
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await _first_piece(sidecar, pg, 1, 2)
        await pg.insert(chain_rows(E, [9, 4]))
        await sidecar.verdict(E, "refused_multiple_roots")
        await sidecar.idle()
        assert await sidecar.store.query("SELECT * FROM rejoin") == []
        assert await _served(sidecar) is Reason.ROWS_HELD_BACK


@pytest.mark.torture
async def test_what_one_poll_sees_together_stays_refused(pg: Database, tmp_path: Path) -> None:
    async with service(pg.dsn, tmp_path / "chain.db", **ON) as sidecar:
        await _first_piece(sidecar, pg, 1, 2)
        await pg.insert([event_row(E, 3, prev=2), event_row(E, 9)])
        await sidecar.verdict(E, "refused_multiple_roots")
        await sidecar.idle()
        assert (await sidecar.partition(E)).verdict == "refused_multiple_roots"
        assert await _served(sidecar) is Reason.ROWS_HELD_BACK


async def test_a_later_row_withdraws_the_join_in_the_batch_that_brings_it(
    pg: Database, tmp_path: Path
) -> None:
    path = tmp_path / "chain.db"
    async with service(pg.dsn, path, **ON) as sidecar:
        await _first_piece(sidecar, pg, 1, 2)
        await pg.insert(chain_rows(E, [9, 4]))
        await sidecar.verdict(E, "match_rejoined")
        stored = await sidecar.store.chain(E)
    async with service(pg.dsn, path, tick_s=600, **ON) as sidecar:
        await sidecar.asleep()
        assert await _served(sidecar) == [1, 2, 9, 4]
        served_late: list[int] = []

        async def withdrawn() -> bool:
            partition = await sidecar.partition(E)
            if partition.rows_seen > 4 and (await sidecar.read(E)).events is not None:
                served_late.append(partition.rows_seen)
            return partition.label is not None

        await pg.insert([event_row(E, 5, prev=2)])
        await sidecar.until(withdrawn)
        assert not served_late
        partition = await sidecar.partition(E)
        assert (partition.label, partition.revoked_reason) == ("multiple_roots", "rejoin_withdrawn")
        (join,) = await sidecar.store.joins(E)
        assert join.withdrawn_at is not None
        assert await sidecar.store.chain(E) == stored, "nothing is rewritten"
    async with service(pg.dsn, path, **ON) as sidecar:
        await sidecar.verdict(E, "rejoin_withdrawn")
        assert sidecar.verdicts() == {"rejoin_withdrawn": 1}
        (finding,) = [each for each in await sidecar.store.findings(E) if each.resolved_at is None]
        assert finding.verdict == Verdict.REJOIN_WITHDRAWN
        await sidecar.idle()
        await pg.insert([event_row(E, 11, prev=4)])
        await sidecar.seen(E, 6)
        await sidecar.idle()
        assert (await sidecar.partition(E)).verdict == "rejoin_withdrawn", "not taken back by a new row"


async def test_an_xid_taken_before_the_tip_was_seen_proves_nothing_nor_does_an_update(
    pg: Database, tmp_path: Path
) -> None:
    """The root's xid is the snapshot's xmax when 3 is seen: only the anchor lies above it."""
    old, new = await pg.connect(), await pg.connect()
    async with service(pg.dsn, tmp_path / "chain.db", **ON) as sidecar:
        await _first_piece(sidecar, pg, 1, 2)
        await old.execute("BEGIN")
        await insert_rows(old, [event_row(E, 3, prev=2)])
        await new.execute("BEGIN")
        await insert_rows(new, [event_row(E, 9)])
        await old.execute("COMMIT")
        await sidecar.stored(E, 3)
        await sidecar.polls(1)
        await new.execute("COMMIT")
        await sidecar.verdict(E, "refused_multiple_roots")
        await sidecar.idle()
        await pg.execute("UPDATE noetl.event SET worker_id = 'w' WHERE execution_id = $1 AND event_id = 9", E)
        await sidecar.polls(2)
        await sidecar.idle()
        assert (await sidecar.partition(E)).verdict == "refused_multiple_roots"
        assert await sidecar.store.joins(E) == ()


async def test_verify_and_audit_judge_over_the_joins_of_the_store(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    async with service(pg.dsn, path, **ON) as sidecar:
        await _first_piece(sidecar, pg, 1, 2)
        await pg.insert(chain_rows(E, [9, 4]))
        await sidecar.verdict(E, "match_rejoined")

    async def verified(rejoin: Reading) -> tuple[dict[str, int], int]:
        given = Settings.given(dsn=pg.dsn, rejoin=rejoin)
        by_sums = await verification(given, store_url=str(path))
        by_rows = await verification(given, [E], store_url=str(path))
        assert by_sums.verdicts == by_rows.verdicts
        assert by_sums.covered == 0, "never added to match"
        return {verdict.value: n for verdict, n in by_sums.verdicts.items() if n}, by_rows.exit_code

    assert await verified(Reading.ON) == ({"match_rejoined": 1}, 0)
    assert await verified(Reading.OFF) == ({"refused_multiple_roots": 1}, 3)
    # One shot over the log alone has nothing that could prove anything.
    alone = await verification(Settings.given(dsn=pg.dsn, rejoin=Reading.ON))
    assert alone.verdicts[Verdict.REFUSED_MULTIPLE_ROOTS] == 1

    with closing(sqlite3.connect(path)) as store, store:
        store.execute("UPDATE partition SET verdict = NULL, verdict_at = NULL")
    quiet: dict[str, Any] = {"tick_s": 600, "audit_share": 0.5, "audit_round_s": 1}
    async with service(pg.dsn, path, **quiet, **ON) as sidecar:
        await sidecar.verdict(E, "match_rejoined")
        assert sidecar.value("audit_executions_total", result="equal") >= 1
        assert sidecar.value("audit_executions_total", result="read") == 0
    await pg.insert([event_row(E, 5, prev=2)])
    async with ChainStore.open_readonly(str(path), rejoining=True) as reader:
        found = await verification(Settings.given(dsn=pg.dsn, rejoin=Reading.ON), store_url=str(path))
        assert found.verdicts[Verdict.REJOIN_WITHDRAWN] == 1
        assert all(each.stands for each in await reader.joins(E)), "verify writes nothing"


@pytest.mark.torture
async def test_what_is_joined_is_folded_certified_and_counted_apart(pg: Database, tmp_path: Path) -> None:
    async with service(pg.dsn, tmp_path / "chain.db", cert="on", **ON) as sidecar:
        await _first_piece(sidecar, pg, 1, 2)
        await pg.insert(chain_rows(E, [9, 4]))
        await sidecar.verdict(E, "match_rejoined")
        answer = await sidecar.line.certified.state(sidecar.store, E)
        roller = Roller(event.body for event in await sidecar.store.chain(E))
        assert answer.certificate == roller.certificate
        assert answer.certificate is not None
        assert answer.certificate.n == 4
        await sidecar.looked()
        counted = {
            name: sidecar.value(f"shadow_{name}", window="1h")
            for name in ("covered_executions", "rejoined_executions", "rejoined_events", "eligible_events")
        }
        assert counted == {
            "covered_executions": 0,
            "rejoined_executions": 1,
            "rejoined_events": 4,
            "eligible_events": 4,
        }
        assert sidecar.value("cert_divergences_total") == 0
