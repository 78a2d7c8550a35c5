"""`status` of a store file and of a running sidecar, and the routes behind it.  Design 4."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from prometheus_client import generate_latest

from sidecar.commands.status import main_status
from sidecar.core.shards import Shard
from sidecar.errors import ConfigError, StoreError
from sidecar.service.status import Process, document
from sidecar.settings import Arming, Settings
from sidecar.store import ChainStore
from sidecar.store.handover import Handover
from sidecar.telemetry.metrics import Metrics
from tests.support.databases import Database
from tests.support.meddling import add_foreign_row
from tests.support.rows import chain_rows, event_row
from tests.support.running import Running, fetched
from tests.support.service import service

E = 9_007_199_254_740_993
"""Greater than 2^53: a JSON number would lose its last digit."""
TOKEN = "a token that nobody guesses"
Capture = pytest.CaptureFixture[str]


async def status(capsys: Capture, *, api: str | None = None, **settings: Any) -> tuple[int, dict[str, Any]]:
    """Exit code and document.  In a thread of its own: a command brings its own loop."""
    capsys.readouterr()  # what a sidecar of this process logged before
    code = await asyncio.to_thread(main_status, Settings.given(**settings), api=api, as_json=True)
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, told


async def filled(pg: Database, store: Path) -> None:
    """A store with one match of three rows and one execution with two roots."""
    await pg.insert([*chain_rows(E, [1, 2, 3]), *chain_rows(E + 1, [11, 12]), event_row(E + 1, 13)])
    async with service(pg.dsn, store) as sidecar:
        await sidecar.verdict(E, "match")
        await sidecar.verdict(E + 1, "refused_multiple_roots")
        await sidecar.idle()


async def test_the_shard_of_the_settings_and_the_one_the_store_was_filled_as(
    tmp_path: Path, capsys: Capture
) -> None:
    """The store's own word; whether they differ is nothing that a store on its way could say."""
    path = tmp_path / "chain.db"

    async def told(index: int, count: int) -> tuple[dict[str, Any], str]:
        given: dict[str, Any] = {"store": str(path), "shard_index": index, "shard_count": count}
        _, found = await status(capsys, **given)
        assert (found["shard"].pop("index"), found["shard"].pop("count")) == (index, count)
        await asyncio.to_thread(main_status, Settings.given(**given), api=None, as_json=False)
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("shard")]
        return found["shard"], "".join(lines)

    async with ChainStore.open(str(path)) as store:
        unsaid = {"store": None, "moving": False, "differs": None}
        assert await told(0, 1) == (unsaid, "")
        assert await told(1, 2) == (
            unsaid,
            "shard 1 of 2; the store does not say as which it was filled",
        )
        await Handover(store).finish(Shard(1, 2))
        filled_as = {"index": 1, "count": 2}
        same = {"store": filled_as, "moving": False, "differs": False}
        assert await told(1, 2) == (same, "shard 1 of 2")
        for index, count in ((0, 2), (1, 3), (0, 1)):
            assert await told(index, count) == (
                {**same, "differs": True},
                f"shard {index} of {count} by the settings; the store was filled as 1 of 2",
            )
        await Handover(store).begin(Shard(1, 3))
        assert await told(1, 3) == (
            {"store": filled_as, "moving": True, "differs": None},
            "shard 1 of 3; the store is on its way to another shard",
        )


async def test_a_store_file_shows_the_two_numbers_and_what_stands_against_the_run(
    pg: Database, tmp_path: Path, capsys: Capture
) -> None:
    store = tmp_path / "chain.db"
    await filled(pg, store)
    code, told = await status(capsys, store=str(store))
    assert code == 3  # no finding, and no agreement either
    assert (told["from"], told["gates"], told["arming"], told["controls"]) == ("store", None, None, None)
    start = told["coverage"]["start"]
    assert (start["covered_events"], start["eligible_events"], start["ratio"]) == (3, 6, 0.5)
    assert start["uncovered"] == {"refused_multiple_roots": 1}
    assert {label: n for label, n in told["verdicts"].items() if n} == {
        "match": 1,
        "refused_multiple_roots": 1,
    }
    assert {each["reason"] for each in told["acceptance"]["blocked"]} >= {
        "coverage",
        "executions",
        "controls",
    }
    assert {lane["lane"] for lane in told["lanes"]} == {"live", "late", "sweep"}
    assert told["store"]["bytes"] > 0


async def test_an_open_finding_ends_with_1_and_an_acknowledged_one_does_not(
    pg: Database, tmp_path: Path, capsys: Capture
) -> None:
    store = tmp_path / "chain.db"
    await pg.insert(chain_rows(E, [1, 2, 3]))
    async with service(pg.dsn, store) as sidecar:
        await sidecar.verdict(E, "match")
        await add_foreign_row(store, E, 99, move_head=True)
        await pg.insert([event_row(E, 4, prev=3)])
        await sidecar.verdict(E, "second_writer")
    code, told = await status(capsys, store=str(store))
    assert (code, told["findings_open"]["second_writer"]) == (1, 1)
    assert told["divergences"]["second_writer"] == 1
    assert told["acceptance"]["blocked"][0] == {"reason": "divergence", "detail": "1 open"}
    with closing(sqlite3.connect(store)) as conn, conn:
        if not conn.execute("UPDATE finding SET acknowledged_at = 1").rowcount:
            conn.execute(
                "INSERT INTO finding (execution_id, verdict, found_at, acknowledged_at)"
                " VALUES (?, 'second_writer', 1, 1)",
                (E,),
            )
    code, told = await status(capsys, store=str(store))
    assert (code, told["findings_open"]["second_writer"]) == (3, 0)
    assert told["divergences"]["second_writer"] == 1  # still shown


async def test_nothing_eligible_has_no_ratio(pg: Database, tmp_path: Path, capsys: Capture) -> None:
    store = tmp_path / "chain.db"
    async with service(pg.dsn, store) as sidecar:
        await sidecar.idle()
    code, told = await status(capsys, store=str(store))
    assert code == 3
    assert "ratio" not in told["coverage"]["start"]
    assert told["coverage"]["start"]["eligible_executions"] == 0


async def test_a_person_gets_a_table_and_stdout_stays_empty(
    pg: Database, tmp_path: Path, capsys: Capture
) -> None:
    store = tmp_path / "chain.db"
    await filled(pg, store)
    given = Settings.given(store=str(store))
    capsys.readouterr()
    assert await asyncio.to_thread(main_status, given, api=None, as_json=False) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "open findings 0 beside coverage 50.00%" in err
    assert "not accepted:" in err
    assert "refused_multiple_roots" in err
    assert max(map(len, err.splitlines())) <= 80


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store") as refused:
        main_status(Settings.given(store=str(tmp_path / "none.db")), api=None, as_json=True)
    assert refused.value.exit_code == 20
    assert not list(tmp_path.iterdir())


async def test_i54_i55_a_running_sidecar_answers_on_both_listeners_from_the_start(
    pg: Database, tmp_path: Path, capsys: Capture
) -> None:
    """POPULATE on, COMPARE off: partial, by the real start-up path, every label there at 0."""
    await pg.insert([*chain_rows(E, [1, 2, 3]), event_row(E + 1, 7), event_row(E + 1, 8)])
    store = tmp_path / "chain.db"
    async with Running.start(pg.dsn, store, NOETL_CHAIN_COMPARE="off", NOETL_CHAIN_SERVE="maybe") as running:
        scraped = await running.get("/metrics")
        assert 'noetl_chain_arming{state="partial"} 1.0' in scraped
        assert 'noetl_chain_gate_info{gate="compare",reading="off"} 1.0' in scraped
        assert 'noetl_chain_gate_info{gate="serve",reading="unrecognised"} 1.0' in scraped
        for reason in ("divergence", "coverage", "executions", "elapsed", "controls", "pending_share"):
            assert f'noetl_chain_acceptance_blocked{{reason="{reason}"}}' in scraped
        await running.until("/metrics", lambda text: 'root_invariant{outcome="multi_root"} 1.0' in text)
        await running.until("/readyz", lambda text: text == "ready\n")
        api = await running.api()
        code, told = await status(capsys, api=api)
        assert code == 3
        assert (told["from"], told["arming"], told["gates"]["serve"]) == (
            "sidecar",
            "partial",
            "unrecognised",
        )
        assert told["ready"]
        lanes = {lane["lane"]: lane for lane in told["lanes"]}
        assert lanes.keys() == {"live", "late", "sweep"}
        assert lanes["live"]["polled_seconds_ago"] < 30
        invariant = json.loads((await fetched(f"{api}/api/v1/invariant"))[1])
        assert invariant["outcomes"] == {"one_root": 1, "multi_root": 1, "no_root": 0}
        assert invariant["worst"] == [{"execution_id": str(E + 1), "roots": 2}]
        assert invariant["sampled_at_seconds"] > 0
        code, text = await fetched(f"{api}/api/v1/controls")
        assert (code, json.loads(text)) == (200, {"expected": 0, "unexpected": 0})
        assert (await fetched(f"{api}/api/v1/none"))[0] == 404
        assert await running.stopped() == 0


async def test_i55_a_fresh_process_without_traffic_shows_every_series_at_0(tmp_path: Path) -> None:
    """By the real start-up path, against what the program can ever export."""
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    async with Running.start(nowhere, tmp_path / "chain.db", NOETL_CHAIN_POPULATE="off") as running:
        lines = (await running.get("/metrics")).splitlines()
    shown = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    pinned = generate_latest(Metrics().registry).decode().splitlines()
    assert shown.keys() == {line.rsplit(" ", 1)[0] for line in pinned if not line.startswith("#")}
    informs = ("gate_info", "arming", "build_info")
    counted = {name: value for name, value in shown.items() if not any(word in name for word in informs)}
    assert set(counted.values()) == {"0.0"}


async def test_with_populate_off_the_api_says_what_is_known(tmp_path: Path, capsys: Capture) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    async with Running.start(nowhere, tmp_path / "chain.db", NOETL_CHAIN_POPULATE="off") as running:
        api = await running.api()
        code, text = await fetched(f"{api}/api/v1/status")
        told = json.loads(text)
        assert (code, told["arming"], told["coverage"], told["lanes"]) == (200, "partial", None, [])
        code, text = await fetched(f"{api}/api/v1/invariant")
        assert json.loads(text)["sampled_at_seconds"] == 0  # I34
        assert json.loads(text)["healthy_ratio"] == 0
        code, _ = await status(capsys, api=api)
        assert code == 3


async def test_another_address_without_a_token_is_refused_before_anything_starts(tmp_path: Path) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    async with Running.start(nowhere, tmp_path / "chain.db", NOETL_CHAIN_API_BIND="0.0.0.0:0") as running:
        assert await running.ended() == 2
        assert any("NOETL_CHAIN_API_BIND" in line.get("text", "") for line in running.lines)
        assert not any(line["event"] == "listening" for line in running.lines)


async def test_another_address_with_a_token_asks_for_it(tmp_path: Path, capsys: Capture) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    variables = {"NOETL_CHAIN_API_BIND": "0.0.0.0:0", "NOETL_CHAIN_API_TOKEN_FILE": str(file)}
    off = {"NOETL_CHAIN_POPULATE": "off"}
    async with Running.start(nowhere, tmp_path / "chain.db", **variables, **off) as running:
        api = await running.api()
        with pytest.raises(ConfigError, match="refused the token"):
            await status(capsys, api=api)
        with pytest.raises(ConfigError, match="refused the token"):
            await status(capsys, api=api, api_token="another")
        assert (await status(capsys, api=api, api_token_file=file))[0] == 3
        assert not any(TOKEN in json.dumps(line) for line in running.lines)


@pytest.mark.parametrize("api", ["", "127.0.0.1:9110", "ftp://h/", "http://", "http://h:x/"])
def test_an_api_address_that_is_none_is_refused(api: str) -> None:
    with pytest.raises(ConfigError, match="--api"):
        main_status(Settings.given(), api=api, as_json=True)


def test_a_user_in_the_api_address_is_told_of_the_token_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="--api names a user") as refused:
        main_status(Settings.given(), api="http://user:secret@h/", as_json=True)
    assert "NOETL_CHAIN_API_TOKEN" in refused.value.hint
    assert "secret" not in f"{refused.value} {refused.value.hint}"


def test_nobody_there_is_said_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="no sidecar answers") as refused:
        main_status(Settings.given(), api="http://127.0.0.1:1", as_json=True)
    assert "NOETL_CHAIN_API_BIND" in refused.value.hint


class Foreign(BaseHTTPRequestHandler):
    """A server that is no sidecar."""

    seen: ClassVar[list[tuple[str, str | None]]] = []
    answer: ClassVar[Callable[[BaseHTTPRequestHandler], None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("authorization")))
        type(self).answer(self)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        return


def _moves(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("location", "/elsewhere")
    handler.end_headers()


def _says(text: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def say(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(text)

    return say


@contextmanager
def answering(
    answer: Callable[[BaseHTTPRequestHandler], None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The address of a server that answers so."""
    monkeypatch.setattr(Foreign, "answer", staticmethod(answer), raising=False)
    with HTTPServer(("127.0.0.1", 0), Foreign) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        _moves,
        _says(b'"hello"'),
        _says(b"[" * 200_000),
        _says(b'{"coverage": {}, "findings_open": [1]}'),
        _says(b'{"coverage": {"start": 1}, "from": "sidecar", "gates": {"populate": "on"}, "acceptance": 1}'),
    ],
)
def test_the_token_goes_nowhere_else_and_a_stranger_is_no_sidecar(
    answer: Callable[[BaseHTTPRequestHandler], None], as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Foreign, "seen", [])
    with answering(answer, monkeypatch) as api, pytest.raises(ConfigError, match="--api"):
        main_status(Settings.given(api_token=TOKEN), api=api, as_json=as_json)
    assert Foreign.seen == [("/api/v1/status", f"Bearer {TOKEN}")]


def test_who_answers_does_not_steer_the_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    told = document(None, [], Process({}, Arming.OFF, ("\x1b[2J",)), Shard())
    with answering(_says(json.dumps(told).encode()), monkeypatch) as api:
        assert main_status(Settings.given(), api=api, as_json=False) == 3
    shown = capsys.readouterr().err
    assert "not ready: \\u001b[2J" in shown
    assert "\x1b" not in shown
