"""`rebuild`: the way back from what a partition cannot heal from, all of it or nothing."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from sidecar.core import evidence as evidences
from sidecar.core.due import Due
from sidecar.core.event import Event
from sidecar.core.populate import InSync, LogRead, Refused
from sidecar.errors import Invalid, StoreCorrupt
from sidecar.store import ChainStore
from sidecar.store import rebuild as rebuilding
from sidecar.store.check import check
from sidecar.store.rebuild import Rebuilt
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain
from tests.support.changing import replace

LOG = chain(1, 2, 3, 4)


async def evidence(store: ChainStore) -> dict[str, Any]:
    ((verdict, text, resolved),) = await store.query("SELECT verdict, evidence, resolved_at FROM finding")
    assert verdict == "rebuilt"
    assert resolved is not None
    found: dict[str, Any] = json.loads(text)
    return found


def everything(sqlite: SqliteBackend) -> list[Any]:
    tables = ("partition", "event", "due", "finding", "sequence", "rejoin", "server_epoch")
    return [sqlite.run(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables]


async def second_writer(store: ChainStore) -> Event:
    """[1, 2, foreign] where the log has [1, 2, 3, 4]; revoked, as the comparator leaves it."""
    foreign = replace(chain(1, 2, 99)[2], body='{"foreign":"ä"}')
    await store.populate_from_log(E, LOG[:2])
    await store.append(foreign)
    await store.revoke(E, "second_writer")
    return foreign


async def test_a_rebuild_ends_a_revocation_and_is_served_and_due(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await second_writer(store)
        done = await store.rebuild(E, reversed(LOG), read=LogRead(store.clock.now(), "e", 5))
        assert (done.outcome, done.kept, done.rows) == (InSync(4, 4), 3, 4)
        assert (await store.chain_if_authoritative(E)).events == LOG
        after = await store.partition(E)
        assert after is not None
        assert (after.revoked_at, after.revoked_reason, after.verdict, after.held) == (None,) * 3 + (0,)
        assert (after.rows_seen, after.head_epoch, after.head_anchor) == (4, "e", 5)
        assert (await store.due_now(store.clock.now(), 5)) == [E]
        assert [span.epoch for span in await store.epochs()] == ["e"]
    assert check(sqlite.path).findings == []


async def test_what_stood_there_is_evidence(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        foreign = await second_writer(store)
        sqlite.run("UPDATE partition SET verdict = 'second_writer', verdict_at = 1")
        await store.rebuild(E, LOG)
        found = await evidence(store)
    assert (found["partition"]["verdict"], found["partition"]["revoked_reason"]) == ("second_writer",) * 2
    assert (found["partition"]["execution_id"], found["partition"]["head_event_id"]) == (str(E), "99")
    rows = found["store"]["shown"]
    assert [row["event_id"] for row in rows] == ["1", "2", "99"]
    assert [row.get("body") for row in rows] == [None, None, foreign.body]
    body = foreign.body.encode()
    assert (rows[2]["sha256"], rows[2]["bytes"]) == (sha256(body).hexdigest(), len(body))
    assert rows[2]["origin"] == "append"


async def test_the_finding_holds_both_sides_the_record_and_why(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await second_writer(store)
        sqlite.run("UPDATE partition SET verdict = 'second_writer', verdict_at = 1")
        read = LogRead(store.clock.now(), "epoch", 5)
        await store.rebuild(E, LOG, read=read)
        (row,) = await store.findings(E)
        found = row.evidence or {}
        shown = found["store"].pop("shown")
        read_at = found["store"].pop("read_at")
        partition = found.pop("partition")
        assert found == {
            "kinds": [],
            "epoch": "epoch",
            "lanes": [],
            "log": {"rows": 4, "read_at": read.began_at, "order": None, "shown": []},
            "store": {"rows": 3, "order": None},
        }
        assert read.began_at < read_at < store.clock.now()
        assert [(one["position"], one["event_id"]) for one in shown] == [(0, "1"), (1, "2"), (2, "99")]
        assert (partition["head_seq"], partition["verdict_at"]) == (3, 1)
        assert (row.verdict, row.detail) == ("rebuilt", "verdict before: second_writer")
        await store.rebuild(E, LOG)
        assert (await store.findings(E))[-1].detail == "verdict before: unjudged"


async def test_bodies_are_kept_as_far_as_they_fit(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidences, "BODIES_MAX_BYTES", 25)
    ours = tuple(replace(event, body="b" * 10) for event in LOG)
    async with sqlite.open() as store:
        await store.populate_from_log(E, ours)
        await store.rebuild(E, LOG)
        rows = (await evidence(store))["store"]["shown"]
    assert [row.get("body") for row in rows] == ["b" * 10, "b" * 10, None, None]
    assert all(row["sha256"] == sha256(b"b" * 10).hexdigest() for row in rows)


async def test_numbers_are_new_and_none_is_given_twice(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await store.populate_from_log(E, LOG)
        await store.rebuild(E, LOG)
        numbers = [row[0] for row in await store.query("SELECT gseq FROM event ORDER BY gseq")]
        assert numbers == [5, 6, 7, 8]
        assert store.committed.high == 8


@pytest.mark.parametrize(
    ("log", "label"),
    [
        ((), "log_pruned"),
        (LOG[1:], "dangling_prev"),
        ((LOG[0], replace(LOG[1], prev_event_id=None)), "multiple_roots"),
        ((*LOG[:3], replace(LOG[3], prev_event_id=1)), "fork"),
    ],
)
async def test_a_refused_log_changes_nothing(
    sqlite: SqliteBackend, log: tuple[Event, ...], label: str
) -> None:
    async with sqlite.open() as store:
        await second_writer(store)
        before = everything(sqlite)
        assert await store.rebuild(E, log) == Rebuilt(Refused(label), 0, 3)
    assert everything(sqlite) == before


async def test_a_read_older_than_the_bar_changes_nothing(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        read = LogRead(store.clock.now())
        await second_writer(store)
        before = everything(sqlite)
        with pytest.raises(Invalid, match="before the partition was barred"):
            await store.rebuild(E, LOG, read=read)
        assert everything(sqlite) == before


async def test_a_read_begun_with_the_bar_is_not_behind_it(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await second_writer(store)
        barred = await store.partition(E)
        assert barred is not None
        assert barred.revoked_at is not None
        with pytest.raises(Invalid, match=rf"^the log of execution {E} was read before"):
            await store.rebuild(E, LOG, read=LogRead(barred.revoked_at))
        done = await store.rebuild(E, LOG, read=LogRead(barred.revoked_at + 1))
        assert done.outcome == InSync(4, 4)


async def test_an_execution_that_is_not_stored_is_not_made(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        for log in ((), LOG):
            with pytest.raises(Invalid, match="holds nothing"):
                await store.rebuild(E, log)
        assert await store.partition(E) is None


async def test_a_delivered_execution_whose_log_is_empty_is_pruned_not_empty(sqlite: SqliteBackend) -> None:
    sqlite_rows = "INSERT INTO partition (execution_id, first_seen_at) VALUES (?, ?)"
    async with sqlite.open() as store:
        sqlite.run(sqlite_rows, E, 1)
        assert (await store.rebuild(E, ())).outcome == Refused("log_pruned")
        sqlite.run(sqlite_rows, E + 1, None)
        assert (await store.rebuild(E + 1, ())).outcome == InSync(0, 0), "nothing of it ever came"


async def test_a_malformed_record_is_rebuilt(sqlite: SqliteBackend) -> None:
    """Every other call refuses it and names this one as the remedy."""
    async with sqlite.open() as store:
        await store.populate_from_log(E, LOG)
        sqlite.plant_watermark(E, 1, None)
        with pytest.raises(StoreCorrupt, match="malformed"):
            await store.populate_from_log(E, LOG)
        assert (await store.rebuild(E, LOG)).outcome == InSync(4, 4)
        assert (await store.chain_if_authoritative(E)).events == LOG


async def test_rows_without_a_partition_are_rebuilt(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await store.populate_from_log(E, LOG)
        sqlite.run("DELETE FROM partition")
        assert (await store.rebuild(E, LOG)).outcome == InSync(4, 4)
    assert check(sqlite.path).findings == []


async def test_what_was_counted_and_first_seen_stays_and_old_questions_end(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await second_writer(store)
        sqlite.run("UPDATE partition SET first_seen_at = 7, counted_kinds = 'count,edge', held = 2")
        sqlite.run(
            "INSERT INTO due (execution_id, due_at, changed, pending_key, pending_since, tries, last_row_at)"
            " VALUES (?, 1, 1, 'k', 1, 4, 1)",
            E,
        )
        sqlite.run(
            "INSERT INTO rejoin (execution_id, tip_event_id, root_event_id, xid, anchor, epoch, joined_at)"
            " VALUES (?, 1, 2, 3, 4, 'e', 5)",
            E,
        )
        await store.rebuild(E, LOG)
        after = await store.partition(E)
        assert after is not None
        assert (after.first_seen_at, after.counted_kinds, after.held) == (7, frozenset({"count", "edge"}), 0)
        due = (await store.due((E,)))[E]
        assert due == Due(E, due.due_at, first_seen_at=due.due_at)
        assert await store.query("SELECT * FROM rejoin") == []


async def test_rows_that_came_after_the_read_make_it_read_again(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await store.populate_from_log(E, LOG)
        read = LogRead(store.clock.now())
        sqlite.run(
            "INSERT INTO due (execution_id, due_at, last_row_at) VALUES (?, 1, ?)", E, read.began_at + 1
        )
        await store.rebuild(E, LOG, read=read)
        assert (await store.due((E,)))[E].reread is not None
        assert (await store.chain_if_authoritative(E)).events is None
        sqlite.run("UPDATE due SET last_row_at = ?", read.began_at)
        await store.rebuild(E, LOG, read=read)
        assert (await store.due((E,)))[E].reread is None, "the read saw what came before it"


async def test_a_failure_in_the_middle_leaves_all_as_it_was(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite.open() as store:
        await second_writer(store)
        before = everything(sqlite)
        monkeypatch.setattr(rebuilding, "_EMPTY", (*rebuilding._EMPTY, "DELETE FROM nowhere WHERE x = ?"))
        with pytest.raises(Exception, match="nowhere"):
            await store.rebuild(E, LOG)
        assert everything(sqlite) == before
