"""A password in a URL, of the log or of the store, shows nowhere: not in what fails, not in what works."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from sidecar.cli import entry
from sidecar.store import ChainStore
from tests.contract.postgres import PostgresBackend
from tests.support.databases import Database
from tests.support.rows import chain_rows, event_row
from tests.support.running import Running, _get
from tests.support.storeserver import fresh_url, said
from tests.support.waiting import until

MARK = "zQ9"
SECRET = quote(f"{MARK}!@p%w/X:y?k", safe="")
"""As it stands in a URL; whatever is made of it still holds MARK."""

UNUSABLE = {
    "refused": f"postgresql://127.0.0.1:1/d?user=u&password={SECRET}",
    "not escaped": f"postgresql://u:{MARK}/p@127.0.0.1:1/d",
    "one slash": f"postgresql:/u:{SECRET}@127.0.0.1:1/d",
    "keywords": f"host=127.0.0.1 port=1 user=u password={SECRET}",
}
MORE = {
    "in front": f"postgresql://u:{SECRET}@127.0.0.1:1/d",
    "not escaped, a question mark": f"postgresql://u:{MARK}?p@127.0.0.1:1/d",
    "for a port": f"postgresql://127.0.0.1:{MARK}/d",
    "for a mode": f"postgresql://127.0.0.1:1/d?sslmode={MARK}",
    "of a key": f"postgresql://127.0.0.1:1/d?sslmode=require&sslkey=/none&sslcert=/none&sslpassword={SECRET}",
    "half a bracket": f"postgresql://u:{SECRET}@[::1/d",
    "a host": f"postgresql://u:{SECRET}@{MARK}.invalid/d",
    "of no file": f"postgresql://127.0.0.1:1/d?passfile=/none/{MARK}",
    "no slash": f"postgres:u:{SECRET}@127.0.0.1:1/d",
    "another case": f"PostgreSQL:u:{SECRET}@127.0.0.1:1/d",
    "another scheme": f"mysql://u:{SECRET}@127.0.0.1:1/d",
}
URLS = [
    *(pytest.param(url, id=name) for name, url in UNUSABLE.items()),
    *(pytest.param(url, id=name, marks=pytest.mark.torture) for name, url in MORE.items()),
]
OF_THE_STORE = (
    ["status"],
    ["doctor", "--json"],
    ["inspect", "7"],
    ["ack", "1", "--why", "x"],
    ["store", "check"],
    ["store", "backup", "/none/x.db"],
    ["store", "rebuild", "7"],
    ["schema", "apply", "store"],
)
OF_THE_LOG = (["verify"], ["doctor", "--json"], ["inspect", "7"], ["schema", "apply", "postgres"])


@pytest.fixture
def postgres() -> Iterator[PostgresBackend]:
    made = PostgresBackend()
    yield made
    made.remove()


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("NOETL_CHAIN_", "POSTGRES_", "PG")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def shown(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """All that a command says."""
    code = entry([*words])
    assert code != 0
    out = capfd.readouterr()
    assert "Traceback" not in out.err
    return out.out + out.err


@pytest.mark.parametrize("url", URLS)
def test_a_store_that_cannot_be_used_does_not_show_its_password(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for words in OF_THE_STORE:
        said_ = shown(capfd, *words, "--store", url)
        assert MARK not in said_, words
    assert MARK not in " ".join(map(str, Path.cwd().rglob("*"))), "a file is called by it"


@pytest.mark.parametrize("url", URLS)
def test_a_log_that_cannot_be_read_does_not_show_its_password(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for words in OF_THE_LOG:
        store = [] if words == ["verify"] else ["--store", str(tmp_path / "chain.db")]
        assert MARK not in shown(capfd, *words, "--dsn", url, *store), words


@pytest.mark.torture
@pytest.mark.parametrize("at", ["store", "node"])
def test_a_store_on_several_servers_does_not_show_the_passwords(
    at: str, capfd: pytest.CaptureFixture[str]
) -> None:
    good = fresh_url()
    for url in (UNUSABLE | MORE).values():
        urls = (url, good) if at == "store" else (good, url)
        words = ["schema", "apply", "store", "--store", urls[0], "--node", urls[1]]
        assert MARK not in shown(capfd, *words)


def with_password(dsn: str) -> str:
    """The same way in with passwords that a server with trust does not ask for."""
    more = f"password={SECRET}&sslpassword={SECRET}&passfile=/none/{MARK}"
    return f"{dsn.replace('@', f':{SECRET}@', 1)}{'&' if '?' in dsn else '?'}{more}"


@pytest.mark.torture
async def test_a_sidecar_at_work_shows_no_password(
    pg: Database, postgres: PostgresBackend, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its log, metrics, documents, pages, title, what it stores, and the commands beside it."""
    await pg.insert(chain_rows(7001, (1, 2)))
    await pg.insert([event_row(7002, 1), event_row(7002, 2, prev=1), event_row(7002, 3, prev=1)])
    dsn, url = with_password(pg.dsn), with_password(postgres.url)
    assert MARK in dsn
    assert MARK in url
    async with Running.start(
        dsn, url, NOETL_CHAIN_AUDIT_SHARE="0.5", NOETL_CHAIN_LOG_LEVEL="debug"
    ) as running:
        port = (await running.says("listening", times=2))["port"]
        await shows(port, "/api/v1/executions", lambda body: "refused_fork" in body and '"match"' in body)
        await pg.execute("UPDATE noetl.event SET status = 'other' WHERE execution_id = 7001 AND event_id = 2")
        await shows(port, "/api/v1/divergences", lambda body: "7001" in body)
        for path in PATHS:
            assert MARK not in await fetched(port, path), path
        for path in ("/metrics", "/readyz", "/healthz"):
            assert MARK not in await running.get(path), path
        title = await asyncio.to_thread(Path(f"/proc/{running.pid}/cmdline").read_bytes)
        assert MARK.encode() not in title
        beside = (["status"], ["doctor", "--json"], ["inspect", "7001", "--payload"], ["store", "check"])
        for words in beside:
            await asyncio.to_thread(entry, [*words, "--dsn", dsn, "--store", url])
            assert MARK not in "".join(capfd.readouterr()), words
        async with ChainStore.open_readonly(url) as store:
            kept = await store.query("SELECT evidence, detail FROM finding")
            assert kept
            assert MARK not in str(kept)
        held = await said(postgres.place.dsn, "SELECT * FROM pg_stat_activity")
        assert MARK not in str(held)
        async with ChainStore.open(postgres.url):  # and how it ends when it is taken over
            assert await running.ended() == 20
        assert MARK not in str(running.lines)


async def fetched(port: int, path: str) -> str:
    return await asyncio.to_thread(_get, f"http://127.0.0.1:{port}{path}")


async def shows(port: int, path: str, holds: Callable[[str], bool]) -> None:
    """Ask until the body is as wanted."""

    async def held() -> bool:
        return holds(await fetched(port, path))

    await until(held, within_s=30, every_s=0.05)


VERBOSE = {"NOETL_CHAIN_AUDIT_SHARE": "0.5", "NOETL_CHAIN_LOG_LEVEL": "debug"}
PATHS = (
    "/", "/executions", "/executions/7001", "/login",
    "/api/v1/status", "/api/v1/executions", "/api/v1/executions/7001", "/api/v1/executions/7001/chain",
    "/api/v1/executions/7001/state", "/api/v1/divergences", "/api/v1/divergences/1", "/api/v1/invariant",
    "/api/v1/controls", "/api/v1/fleet", "/api/v1/nothing",
)  # fmt: skip
