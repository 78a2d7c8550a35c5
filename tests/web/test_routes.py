"""What the routes answer, and that nothing shows a body without a token."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest

from sidecar.core.due import Windows
from sidecar.core.picture import picture
from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog
from sidecar.store import ChainStore
from sidecar.web import login
from sidecar.web.data import DRAWINGS_MAX, LOG_READS_MAX, Data, Sources
from tests.contract.events import chain
from tests.support.api import (
    BEARER,
    TOKEN,
    check,
    direct,
    filled,
    operations,
    resolved,
    served,
    shown,
)
from tests.support.databases import Database
from tests.support.service import Service
from tests.web.planted import FOREIGN, HELD, MARK, MARKS, MATCHED, NEVER, REFUSED, planted

ONE = "/api/v1/executions/{execution_id}"
FINDING = "/api/v1/divergences/{finding_id}"
PAGES = ("/", "/executions", "/executions/{execution_id}")
BAD_IDS = ("x", "1.0", str(2**63), "%D9%A3", "1" * 20, "--1")


async def test_nothing_without_a_token_reads_a_body(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All routes, all executions and findings, every filter and every header that may open something."""
    monkeypatch.setattr(login, "TRIES", 10**6)  # or the limit would answer instead of the routes
    async with planted(pg, tmp_path / "chain.db") as sidecar:
        for token, ways in ((TOKEN, WRONG), (None, [BEARER, *WRONG])):
            async with direct(sidecar, token) as client:
                asked = 0
                for method, path in sorted(served(sidecar.board)):
                    if path == "/api/v1/events":  # endless; test_events reads it
                        continue
                    plain: list[tuple[str, dict[str, str]]] = [
                        (target, {}) for target in _targets(method, path)
                    ]
                    opening = [(filled(path, execution_id=FOREIGN, finding_id=1), each) for each in ways]
                    for target, headers in [*plain, *opening]:
                        verbs = ("GET",) if "?" in target else ("GET", "HEAD", "POST")
                        for verb in verbs:
                            answer = await client.request(verb, target, headers=headers)
                            asked += 1
                            _unmarked(answer.text + str(answer.headers), target)
                assert asked > 200


def _targets(method: str, path: str) -> Iterator[str]:
    """Every execution and finding there is, with every parameter."""
    queries = [""]
    operation = operations().get((method, path))
    if operation is None:
        queries += [f"?{name}" for name in ("all", "id=1", "verdict=match")]
    for each in map(resolved, (operation or {}).get("parameters", ())):
        if each["in"] == "query":
            queries += [f"?{each['name']}={value}" for value in ("true", "99")]
    ids = (MATCHED, REFUSED, HELD, FOREIGN) if "{execution_id}" in path else (1, 2)
    for one, query in product(ids if "{" in path else (0,), queries):
        yield filled(path, execution_id=one, finding_id=one) + query


WRONG: list[dict[str, str]] = [
    {"authorization": "Bearer wrong"},
    {"cookie": "noetl_chain_session=wrong"},
    {"accept": "text/html"},
    {"x-forwarded-for": "127.0.0.1", "x-original-url": "/api/v1/status"},
]


def _unmarked(text: str, target: str) -> None:
    for mark in MARKS:
        assert mark not in text, target


async def test_with_the_token_the_marks_are_there(pg: Database, tmp_path: Path) -> None:
    """Or the search before this one searched for nothing."""
    store = tmp_path / "chain.db"
    async with planted(pg, store) as sidecar, shown(sidecar) as client:
        chain = await client.get(filled(f"{ONE}/chain", execution_id=MATCHED), headers=BEARER)
        state = await client.get(filled(f"{ONE}/state", execution_id=MATCHED), headers=BEARER)
        assert all(mark in chain.text for mark in MARKS)
        assert state.status_code == 200
        open_now = (await client.get("/api/v1/divergences?open=true")).json()["divergences"]
        assert [each["verdict"] for each in open_now] == ["second_writer", "refused_multiple_roots"]
        for each in open_now:
            path = filled(FINDING, finding_id=each["finding_id"])
            with_bodies = (await client.get(path, headers=BEARER)).json()
            without = (await client.get(path)).json()
            assert (with_bodies["bodies"], without["bodies"]) == (True, False)
            assert without["evidence"]["log"]["rows"] == with_bodies["evidence"]["log"]["rows"]
            assert MARKS[0] in json.dumps(with_bodies)
            assert MARKS[0] not in json.dumps(without)


async def test_a_body_of_the_chain_is_the_exact_stored_text(pg: Database, tmp_path: Path) -> None:
    store = tmp_path / "chain.db"
    async with planted(pg, store) as sidecar, shown(sidecar) as client:
        answer = await client.get(filled(f"{ONE}/chain", execution_id=MATCHED), headers=BEARER)
    told = answer.json()
    with closing(sqlite3.connect(store)) as conn:
        stored = conn.execute(
            "SELECT exec_seq, event_id, prev_event_id, event_type, body FROM event WHERE execution_id = ?"
            " ORDER BY exec_seq",
            (MATCHED,),
        ).fetchall()
    assert (told["execution_id"], told["pruned"]) == (str(MATCHED), False)
    assert [
        (
            e["exec_seq"],
            int(e["event_id"]),
            _number(e["prev_event_id"]),
            e["event_type"],
            e["body"],
        )
        for e in told["events"]
    ] == stored
    assert MARK in json.loads(told["events"][0]["body"])["context"]["said"]
    assert "1.50" in told["events"][0]["body"]


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


async def test_with_serve_off_no_chain_is_answered(pg: Database, tmp_path: Path) -> None:
    async with planted(pg, tmp_path / "chain.db", serve="off") as sidecar, shown(sidecar) as client:
        path = filled(f"{ONE}/chain", execution_id=MATCHED)
        assert (await client.get(path)).json()["reason"] == "token_required"
        answer = await client.get(path, headers=BEARER)
        check("GET", f"{ONE}/chain", answer)
        assert (answer.status_code, answer.json()["reason"]) == (403, "serve_off")


async def test_an_execution_is_told_with_its_events_and_findings(pg: Database, tmp_path: Path) -> None:
    async with planted(pg, tmp_path / "chain.db") as sidecar, shown(sidecar) as client:

        async def told(execution_id: int, query: str = "") -> dict[str, Any]:
            answer = await client.get(filled(ONE, execution_id=execution_id) + query)
            check("GET", ONE, answer)
            found: dict[str, Any] = answer.json()
            return found

        matched = await told(MATCHED)
        assert (matched["servable"], matched["reason"], matched["log"]) == (True, None, None)
        assert (matched["record"]["verdict"], matched["record"]["rows_stored"]) == ("match", 3)
        nodes = matched["picture"]["nodes"]
        assert [(n["event_id"], n["prev_event_id"]) for n in nodes] == [("1", None), ("2", "1"), ("3", "2")]
        assert {n["in_log"] for n in nodes} == {None}
        refused = await told(REFUSED, "?log=true")
        assert refused["picture"]["roots"] == ["11", "13"]
        assert refused["log"]["order"] == "multiple_roots"
        assert [each["verdict"] for each in refused["findings"]] == ["refused_multiple_roots"]
        held = await told(HELD, "?log=true")
        assert held["picture"]["gaps"] == [{"missing": "23", "named_by": ["24"]}]
        assert (held["record"]["parent_execution_id"], held["reason"]) == (str(MATCHED), "rows_held_back")
        foreign = await told(FOREIGN, "?log=true")
        assert [n["event_id"] for n in foreign["picture"]["nodes"] if n["in_log"] is False] == ["99"]


async def test_a_log_that_cannot_be_read_is_said_and_the_store_is_drawn(pg: Database, tmp_path: Path) -> None:
    async with planted(pg, tmp_path / "chain.db") as sidecar, shown(sidecar) as client:
        await pg.execute("ALTER TABLE noetl.event RENAME TO gone")
        answer = await client.get(filled(ONE, execution_id=MATCHED) + "?log=true")
        check("GET", ONE, answer)
        assert answer.json()["log"] is None
        assert answer.json()["not_read"][0].startswith("the log was not read: ")
        assert len(answer.json()["picture"]["nodes"]) == 3
        await pg.execute("ALTER TABLE noetl.gone RENAME TO event")


async def test_i28_a_probe_moves_its_own_counter_alone(pg: Database, tmp_path: Path) -> None:
    async with planted(pg, tmp_path / "chain.db") as sidecar, shown(sidecar) as client:
        before = (_judged(sidecar), sidecar.divergences())
        for execution_id, verdict in ((MATCHED, "match"), (FOREIGN, "second_writer")):
            answer = await client.post(filled(f"{ONE}/probe", execution_id=execution_id))
            check("POST", f"{ONE}/probe", answer)
            assert (answer.json()["verdict"], answer.json()["probe"]) == (verdict, True)
        assert sidecar.moved("shadow_probe_total") == {"match": 1, "second_writer": 1}
        assert (_judged(sidecar), sidecar.divergences()) == before


def _judged(sidecar: Service) -> dict[str, float]:
    """Verdicts that are not asked for again meanwhile."""
    return {name: count for name, count in sidecar.verdicts().items() if not name.startswith("pending")}


class Waiting:
    """A log that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.full = asyncio.Event()
        self.go = asyncio.Event()

    async def read(self, execution_ids: Any) -> Any:
        self.asked += 1
        if self.asked == LOG_READS_MAX:
            self.full.set()
        await self.go.wait()
        return []


async def test_one_probe_at_a_time_for_an_execution_and_few_in_all(pg: Database, tmp_path: Path) -> None:
    async with planted(pg, tmp_path / "chain.db") as sidecar, shown(sidecar) as client:
        sources = sidecar.board.data.open
        waiting = Waiting()
        sidecar.board.data.sources = type(sources)(sources.store, waiting, sources.windows, sources.count)
        path = f"{ONE}/probe"

        async def probe(execution_id: int) -> httpx2.Response:
            answer = await client.post(filled(path, execution_id=execution_id))
            check("POST", path, answer)
            return answer

        first = [asyncio.create_task(probe(MATCHED + n)) for n in range(LOG_READS_MAX)]
        await waiting.full.wait()
        again = await probe(MATCHED)
        assert (again.status_code, again.json()["reason"]) == (409, "busy")
        more = await probe(NEVER)
        assert (more.status_code, more.json()["reason"]) == (429, "busy")
        for task in first:
            task.cancel()
        await asyncio.wait(first)
        waiting.go.set()


@pytest.mark.parametrize("in_store", [True, False])
async def test_more_events_than_a_picture_has_are_not_drawn_whichever_side_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_store: bool
) -> None:
    monkeypatch.setattr("sidecar.web.data.DRAWN_MAX", 2)
    events = chain(1, 2, 3)

    class Log:
        async def read(self, execution_ids: Any) -> Any:
            return [ExecutionLog(events[0].execution_id, events, LogRead(0))]

    data = Data()
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        if in_store:
            await store.populate_from_log(events[0].execution_id, events)
        data.sources = Sources(store, Log(), Windows(), lambda verdict: None)
        found = await data.execution(events[0].execution_id, with_log=not in_store)
    assert found.drawn is None
    assert found.not_read == ("not drawn: 3 events are more than a picture has",)


async def test_few_executions_are_read_whole_at_a_time_and_the_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ask: each of them holds all bodies of its execution in memory."""
    events = chain(1, 2, 3)
    drawing, go = threading.Semaphore(0), threading.Event()
    asked = 0

    def slow(*sides: Any) -> Any:
        drawing.release()
        assert go.wait(10)
        return picture(*sides)

    monkeypatch.setattr("sidecar.web.data.picture", slow)
    data = Data()
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        await store.populate_from_log(events[0].execution_id, events)
        snapshot = store.snapshot

        async def counted(execution_id: int) -> Any:
            nonlocal asked
            asked += 1
            return await snapshot(execution_id)

        monkeypatch.setattr(store, "snapshot", counted)
        data.sources = Sources(store, Waiting(), Windows(), lambda verdict: None)
        tasks = [asyncio.create_task(data.execution(events[0].execution_id)) for _ in range(10)]
        for _ in range(DRAWINGS_MAX):
            assert await asyncio.to_thread(drawing.acquire, timeout=10)
        at_once = asked
        go.set()
        found = await asyncio.gather(*tasks)
    assert at_once == DRAWINGS_MAX
    assert all(len(each.held.rows) == 3 for each in found)


async def test_pages_hold_every_execution_once_whatever_the_verdict(tmp_path: Path) -> None:
    """Ties, and executions that never told when they changed, included."""
    store = tmp_path / "chain.db"
    async with ChainStore.open(str(store)) as opened:
        await opened.chain(1)
    with closing(sqlite3.connect(store)) as conn, conn:
        conn.executemany(
            "INSERT INTO partition (execution_id, verdict, last_change_at) VALUES (?,?,?)",
            [
                (
                    i - 30,
                    (None, "match", "divergent", "excluded")[i % 4],
                    (None, 5, 7, i)[i % 5 % 4],
                )
                for i in range(60)
            ],
        )
    data = Data()
    async with ChainStore.open(str(store)) as opened:
        data.sources = Sources(opened, Waiting(), Windows(), lambda verdict: None)
        for verdict in (None, "match", "unjudged", "excluded", "divergent", "empty"):
            with closing(sqlite3.connect(store)) as conn:
                known = {None: "1", "unjudged": "verdict IS NULL"}.get(verdict, f"verdict = '{verdict}'")
                wanted = conn.execute(
                    f"SELECT execution_id FROM partition WHERE {known}"
                    " ORDER BY last_change_at DESC, execution_id DESC"
                ).fetchall()
            for limit in (1, 7, 200):
                found: list[int] = []
                place = None
                while True:
                    page, place = await data.executions(verdict=verdict, after=place, limit=limit)
                    found += [int(each["execution_id"]) for each in page]
                    if place is None:
                        break
                    assert len(page) == limit
                assert found == [execution_id for (execution_id,) in wanted]
