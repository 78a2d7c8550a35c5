"""What an operator gets wrong, as `run`, `verify` and `backfill` tell it.

Each time: one line on stderr that names the thing and one with the remedy, the exit code of the
design, no stack trace, no host, user, password or address in the text, and nothing written.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pytest

from sidecar import cli
from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.store import ChainStore
from tests.support.databases import Database
from tests.support.running import Running

USAGE, SOURCE, STORE = 2, 10, 20
COMMANDS = ("run", "verify", "backfill")
SECRETS = re.compile(
    r"postgresql|://|127\.0\.0\.1|s3cret|letmein|noetl_chain_test|Traceback|(/tmp|/dev/shm)/noetl"
)

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the machine; the root logger is left as it was."""
    for name in [name for name in os.environ if name.startswith(("NOETL_CHAIN_", "POSTGRES_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NOETL_CHAIN_POPULATE", "on")
    monkeypatch.setenv("NOETL_CHAIN_METRICS_BIND", "127.0.0.1:0")
    monkeypatch.setenv("NOETL_CHAIN_API_BIND", "127.0.0.1:0")
    monkeypatch.setenv("NOETL_CHAIN_LOG_LEVEL", "error")
    monkeypatch.setenv("NOETL_CHAIN_QUERY_TIMEOUT_S", "5")
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    yield
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One command against one log and one store; `check` runs it."""

    command: str
    dsn: str
    store: Path
    capsys: Capture

    def refused(self, code: int, *words: str) -> None:
        """Run it; it must end with `code` and say every one of `words`."""
        before = _bytes(self.store.parent)
        # verify looks at a store only when it is told which.
        assert cli.entry([self.command, "--dsn", self.dsn, "--store", str(self.store)]) == code
        out, err = self.capsys.readouterr()
        lines = err.splitlines()
        assert out == ""
        assert len(lines) == 2, err
        assert lines[0].startswith("noetl-chain: ")
        assert lines[1].startswith("  ")
        assert all(word in err for word in words), err
        assert not SECRETS.search(err), err
        assert _bytes(self.store.parent) == before


def _bytes(folder: Path) -> dict[str, bytes]:
    """Every file; the lock's text and SQLite's shared memory tell nothing about the store."""
    if not folder.is_dir():
        return {}
    files = (file for file in folder.iterdir() if file.is_file())
    return {f.name: f.read_bytes() for f in files if not f.name.endswith((".lock", "-shm", "-wal"))}


@pytest.fixture(params=COMMANDS)
def attempt(request: pytest.FixtureRequest, pg: Database, tmp_path: Path, capsys: Capture) -> Attempt:
    """Everything right: a readable log, and a folder for a store (verify: no store is named)."""
    folder = tmp_path / "store"
    folder.mkdir()
    return Attempt(request.param, pg.dsn, folder / "chain.db", capsys)


@pytest.fixture
async def filled(tmp_path: Path) -> Path:
    """A chain store with one execution."""
    (tmp_path / "store").mkdir(exist_ok=True)
    path = tmp_path / "store" / "chain.db"
    async with ChainStore.open(str(path)) as store:
        await store.populate_from_log(1, [])
    return path


# The log


def test_bad_a_port_where_nobody_listens(attempt: Attempt) -> None:
    replace(attempt, dsn=f"postgresql://u:s3cret@127.0.0.1:{_free_port()}/d").refused(
        SOURCE, "cannot be reached", "ECONNREFUSED", "check the DSN"
    )


@pytest.mark.parametrize("dsn", ["postgresql://u:s3cret@h:port/d", "mysql://u:s3cret@h/d", "letmein"])
def test_bad_a_url_that_cannot_be_read(attempt: Attempt, dsn: str) -> None:
    before = _bytes(attempt.store.parent)
    assert cli.entry([attempt.command, "--dsn", dsn, "--store", str(attempt.store)]) == USAGE
    err = attempt.capsys.readouterr().err
    assert "DSN" in err.upper()
    assert not re.search("s3cret|letmein|Traceback", err)
    assert len(err.splitlines()) <= 2
    assert _bytes(attempt.store.parent) == before


def test_bad_a_database_that_is_not_there(attempt: Attempt, pg: Database) -> None:
    replace(attempt, dsn=pg.dsn.replace(pg.name, "nowhere")).refused(
        SOURCE, "the database does not exist", "check the DSN's database"
    )


def test_bad_a_wrong_password(tmp_path: Path, capsys: Capture) -> None:
    with EmbeddedPostgres.start(tcp=True, password="s3cret") as server:
        dsn = server.tcp_dsn(password="letmein")
        for command in COMMANDS:
            attempt = Attempt(command, dsn, tmp_path / "chain.db", capsys)
            attempt.refused(SOURCE, "Postgres refused the password", "POSTGRES_PASSWORD")


def test_bad_a_missing_schema(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_SCHEMA", "nosuch")
    attempt.refused(SOURCE, "the schema does not exist", "check NOETL_SCHEMA")


def test_bad_a_missing_table(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_SCHEMA", "public")
    attempt.refused(SOURCE, "no table event", "check NOETL_SCHEMA")


@pytest.fixture
async def reader(pg: Database) -> AsyncIterator[str]:
    """A role that may log in and nothing else, as a DSN."""
    role = f"reader_{pg.name}"
    await pg.execute(f"CREATE ROLE {role} LOGIN")
    head, _, query = pg.dsn.partition("?")
    yield f"postgresql://{role}@/{quote(pg.name)}?{query}" if query else _as_role(head, role)
    await pg.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def _as_role(dsn: str, role: str) -> str:
    return re.sub(r"//[^@/]*@", f"//{role}@", dsn)


@pytest.fixture
async def granted(pg: Database, reader: str) -> str:
    role = f"reader_{pg.name}"
    await pg.execute(f"GRANT USAGE ON SCHEMA noetl TO {role}")
    return reader


@pytest.fixture
async def filtered(pg: Database, granted: str) -> str:
    role = f"reader_{pg.name}"
    await pg.execute(
        f"GRANT SELECT ON noetl.event TO {role}; ALTER TABLE noetl.event ENABLE ROW LEVEL SECURITY"
    )
    return granted


def test_bad_no_right_on_the_schema(attempt: Attempt, reader: str) -> None:
    replace(attempt, dsn=reader).refused(SOURCE, "may not use the schema", "GRANT USAGE")


def test_bad_no_right_to_select(attempt: Attempt, granted: str) -> None:
    replace(attempt, dsn=granted).refused(SOURCE, "may not read the event table", "GRANT SELECT")


def test_bad_row_security(attempt: Attempt, filtered: str) -> None:
    replace(attempt, dsn=filtered).refused(SOURCE, "row security", "BYPASSRLS")


def test_bad_a_standby(tmp_path: Path, capsys: Capture) -> None:
    with EmbeddedPostgres.start() as server:
        server.halt()
        server.write(server.data / "standby.signal", b"")
        server.restart({"hot_standby": "on"})
        for command in COMMANDS:
            attempt = Attempt(command, server.dsn(), tmp_path / "chain.db", capsys)
            attempt.refused(SOURCE, "is a standby", "point the DSN at the primary")


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_input_leaves_nothing_behind_in_a_process_of_its_own(command: str, tmp_path: Path) -> None:
    """What a test's own process would hide: warnings at the end, tasks that nobody awaited."""
    store = [] if command == "verify" else ["--store", str(tmp_path / "chain.db")]
    dsn = f"postgresql://u:s3cret@127.0.0.1:{_free_port()}/d"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-m", "sidecar", command, "--dsn", dsn, *store],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (SOURCE, "")
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert list(tmp_path.iterdir()) == []


# The store


def test_bad_a_missing_folder(attempt: Attempt) -> None:
    gone = replace(attempt, store=attempt.store.parent / "nosuch" / "chain.db")
    words = ("no store at",) if attempt.command == "verify" else ("does not exist", "create it, or mount")
    gone.refused(STORE, *words)
    assert not gone.store.parent.exists()


@pytest.mark.parametrize("marker", ["2", "", "abc"])
def test_bad_another_format(attempt: Attempt, filled: Path, marker: str) -> None:
    with closing(sqlite3.connect(filled)) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'FORMAT_VERSION'", (marker,))
        connection.commit()
    attempt.refused(STORE, "FORMAT_VERSION", "start a new store")


def test_bad_a_file_that_is_no_database(attempt: Attempt) -> None:
    attempt.store.write_bytes(b"not a database, " * 512)
    attempt.refused(STORE, "no SQLite database")


def test_bad_a_database_that_is_no_store(attempt: Attempt) -> None:
    with closing(sqlite3.connect(attempt.store)) as connection:
        connection.execute("CREATE TABLE other (a)")
    attempt.refused(STORE, "no chain store")


@pytest.mark.parametrize("attempt", ["run", "backfill"], indirect=True)
def test_bad_a_store_that_somebody_holds(attempt: Attempt, held: None) -> None:
    attempt.refused(STORE, "is in use by process", "stop the other sidecar")


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[None]:
    (tmp_path / "store").mkdir(exist_ok=True)
    async with ChainStore.open(str(tmp_path / "store" / "chain.db")):
        yield


@pytest.mark.parametrize("attempt", ["run", "backfill"], indirect=True)
def test_bad_a_folder_that_cannot_be_written(attempt: Attempt) -> None:
    with _unwritable(attempt.store.parent):
        attempt.refused(STORE, "cannot be written", "write permission")
        assert list(attempt.store.parent.iterdir()) == []


@pytest.mark.parametrize("attempt", ["verify"], indirect=True)
def test_bad_a_store_to_verify_is_not_made(attempt: Attempt) -> None:
    attempt.refused(STORE, "no store at", "name the file")
    assert list(attempt.store.parent.iterdir()) == []


def test_bad_a_postgres_store(attempt: Attempt) -> None:
    """A server that cannot be reached: neither its password nor its name is told."""
    store = "postgresql://u:s3cret@nowhere.invalid/d"
    assert cli.entry([attempt.command, "--dsn", attempt.dsn, "--store", store]) == STORE
    err = attempt.capsys.readouterr().err
    assert "NOETL_CHAIN_STORE" in err
    assert len(err.splitlines()) == 2
    assert "s3cret" not in err
    assert "nowhere" not in err


async def test_i53_a_store_that_cannot_be_opened_leaves_the_metrics_up(pg: Database, tmp_path: Path) -> None:
    gone = tmp_path / "nosuch" / "chain.db"
    async with Running.start(pg.dsn, gone, NOETL_CHAIN_STORE_FAILURE="stay") as sidecar:
        await sidecar.says("store_unusable")
        assert 'noetl_chain_populate_total{outcome="open_failed"} 1.0' in await sidecar.get("/metrics")
        assert "store unavailable" in await sidecar.get("/readyz")
        assert "alive" in await sidecar.get("/livez")
        assert await sidecar.stopped() == 0
    assert not gone.parent.exists()


# Settings


@pytest.mark.parametrize(
    ("variable", "value"),
    [("NOETL_CHAIN_POLL_MS", "0"), ("NOETL_CHAIN_TICK_S", "5s"), ("NOETL_CHAIN_STORE_SYNCHRONOUS", "off")],
)
def test_bad_a_setting_out_of_its_range(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    attempt.refused(USAGE, variable, "docs/configuration.md")


def test_bad_a_metrics_port_that_is_taken(
    pg: Database, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("NOETL_CHAIN_METRICS_BIND", f"127.0.0.1:{taken.getsockname()[1]}")
        Attempt("run", pg.dsn, tmp_path / "chain.db", capsys).refused(
            USAGE, "NOETL_CHAIN_METRICS_BIND", "end the program"
        )
    assert list(tmp_path.iterdir()) == []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def _unwritable(folder: Path) -> Iterator[None]:
    """Root writes whatever the mode says, so it gets a file system that is mounted read-only."""
    if os.geteuid():
        folder.chmod(0o555)
        yield
        folder.chmod(0o755)
        return
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("root needs to mount a read-only file system, and may not here")
    yield
    subprocess.run(["umount", folder], check=True)
