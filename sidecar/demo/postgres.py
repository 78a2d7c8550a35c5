"""A Postgres server of our own for the demo and the tests: found, started, ended with its owner.

It runs as an unprivileged user when we are root (Postgres refuses root), listens on a Unix
socket in a folder that nobody else can enter, and gets SIGQUIT from the kernel when this
process ends in whatever way.  Nothing survives `stop`; what a kill -9 leaves is swept by the
next start.
"""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self
from urllib.parse import quote

from sidecar.demo import binaries, leftovers, processes
from sidecar.demo.binaries import User
from sidecar.errors import ConfigError, SourceUnavailable, invariant

SUPERUSER: Final = "postgres"
SOCKET_PORT: Final = 5432
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
PORT_TRIES: Final = 5

_POLL_S = 0.01
_DEFAULTS: Final = MappingProxyType(
    # Nothing here outlives a power cut, so nothing has to be flushed; a killed process loses nothing.
    # What its processes share is a file in the cluster: a killed server would leave it in /dev/shm.
    {
        "fsync": "off",
        "full_page_writes": "off",
        "dynamic_shared_memory_type": "mmap",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }
)


class EmbeddedPostgres:
    """One running server; made by `start`, ended by `stop` or the end of a `with` block."""

    def __init__(
        self, place: leftovers.Place, folder: Path, user: User, settings: Mapping[str, str], password: str
    ) -> None:
        self.root = place.root
        self.data = place.root / "data"
        self.bin = folder
        self.settings = dict(settings)
        self.password = password
        self.port: int | None = None
        """The port on 127.0.0.1, None without TCP."""
        self._place = place
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        settings: Mapping[str, str] | None = None,
        *,
        bin: Path | None = None,  # noqa: A002 (the word for such a folder)
        tcp: bool = False,
        password: str | None = None,
    ) -> EmbeddedPostgres:
        """Sweep leftovers, make a cluster and start it; ready for connections on return.

        Args:
            settings: Server settings by name, over the defaults (nothing is flushed, UTC).
            bin: Folder of the programs; default: see `binaries.find`.
            tcp: Also listen on 127.0.0.1, on a free port, with scram passwords.
            password: The superuser's, for TCP; default: a random one.

        Raises:
            ConfigError: no programs were found, or no user that may run them.
            SourceUnavailable: initdb or the server failed; nothing is left behind.
            InvariantError: not the main thread: the server would end with the thread.
        """
        _main_thread_only()
        found = binaries.find(bin)
        user = _service_user()
        leftovers.sweep(user)
        place = leftovers.Place.create(user)
        try:
            folder = binaries.readable(found, user, place.root)
        except BaseException:
            place.remove()
            raise
        server = cls(
            place, folder, user, _DEFAULTS | dict(settings or {}), password or secrets.token_urlsafe(18)
        )
        try:
            server._make_cluster()
            server._start_on_a_port() if tcp else server._start()
        except BaseException:
            server.stop()
            raise
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, None when it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def major(self) -> int:
        """The server's major version, as its cluster says."""
        return int((self.data / "PG_VERSION").read_text().strip())

    def dsn(self, database: str = "postgres", user: str = SUPERUSER) -> str:
        """The way in by the Unix socket; no password is asked."""
        host = quote(str(self.root), safe="")
        return (
            f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={host}&port={self._port()}"
        )

    def tcp_dsn(self, database: str = "postgres", user: str = SUPERUSER, password: str | None = None) -> str:
        """The way in by TCP; the superuser's password unless another is given."""
        invariant(self.port is not None, "the server was started without tcp")
        secret = quote(self.password if password is None else password, safe="")
        return (
            f"postgresql://{quote(user, safe='')}:{secret}@127.0.0.1:{self.port}/{quote(database, safe='')}"
        )

    def log(self) -> str:
        """What the server wrote so far."""
        return (self.root / "log").read_text("utf-8", "replace")

    def run(self, tool: str, *arguments: str) -> str:
        """Run a program of the server's own folder (pg_resetwal, pg_controldata…) as its user.

        Returns:
            What it printed.

        Raises:
            SourceUnavailable: it failed; what it did stands.
        """
        return binaries.run_tool(self._user, self.bin / tool, *arguments, cwd=self.root).stdout

    def write(self, path: Path, content: bytes) -> None:
        """Write a file below `data` that the server's user owns."""
        path.write_bytes(content)
        path.chmod(0o600)
        self._user.own(path)

    def halt(self) -> None:
        """Shut the server down cleanly and keep its data; nothing happens if it does not run.

        One that does not listen is killed after twice `STOP_TIMEOUT_S`.
        """
        process = self._process
        if process is not None and process.poll() is None:
            gently = (signal.SIGINT, signal.SIGQUIT)
            if not any(processes.ended_by(process, signum, STOP_TIMEOUT_S) for signum in gently):
                self.kill()
        self._process = None

    def stop(self) -> None:
        """Shut the server down and delete everything; a second call does nothing."""
        try:
            self.halt()
        finally:
            self._place.remove()

    def kill(self, signum: signal.Signals = signal.SIGKILL) -> None:
        """Crash the server, its backends too, and keep its data; the next start recovers.

        Args:
            signum: SIGKILL, or SIGQUIT (no checkpoint, but the server ends its own backends).
        """
        process = self._process
        invariant(process is not None and process.poll() is None, "the server does not run")
        if process is None:
            return
        backends = processes.children(process.pid)
        process.send_signal(signum)  # first, or it would start the backends' crash recovery
        process.wait(STOP_TIMEOUT_S)
        processes.kill_all(backends, STOP_TIMEOUT_S)  # the next start refuses while one holds the memory
        self._process = None

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Start again on the same data, after a clean shutdown if it still runs.

        Args:
            settings: Changed on top of the ones before.

        Raises:
            SourceUnavailable: it did not start; the data is kept.
        """
        self.halt()
        self.settings.update(settings or {})
        self._start()

    def _make_cluster(self) -> None:
        secret = self.root / "password"
        self.write(secret, self.password.encode() + b"\n")
        options = ("-U", SUPERUSER, "-E", "UTF8", "--no-locale", "--no-sync", f"--pwfile={secret}")
        ways_in = ("--auth-local=trust", "--auth-host=scram-sha-256")
        binaries.run_tool(
            self._user, self.bin / "initdb", "-D", str(self.data), *options, *ways_in, cwd=self.root
        )
        secret.unlink()

    def _start_on_a_port(self) -> None:
        """Somebody else may take the port between our look and the server's bind: look again."""
        for attempt in range(PORT_TRIES):
            self.port = _free_port()
            try:
                return self._start()
            except SourceUnavailable:
                if attempt + 1 == PORT_TRIES or "could not bind" not in self.log():
                    raise
        return None

    def _start(self) -> None:
        _main_thread_only()
        command = self._user.command(self.bin / "postgres", "-D", str(self.data), *self._options())
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (found by `binaries.find`)
                command,
                cwd=self.root,
                env=binaries.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we end the server when we are done with it
            )
        self._await_ready(self._process)

    def _options(self) -> Sequence[str]:
        fixed = {
            "listen_addresses": "" if self.port is None else "127.0.0.1",
            "port": str(self._port()),
            "unix_socket_directories": str(self.root),
        }
        return [word for name, value in (self.settings | fixed).items() for word in ("-c", f"{name}={value}")]

    def _port(self) -> int:
        return SOCKET_PORT if self.port is None else self.port

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _says_ready(self.data / "postmaster.pid", process.pid):
            if process.poll() is not None:
                self._process = None
                raise SourceUnavailable(f"the server did not start: {binaries.last_line(self.log())}")
            if time.monotonic() > deadline:
                self.kill()
                raise SourceUnavailable(f"the server was not ready after {START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)


def _service_user() -> User:
    """Who runs the server: `nobody` when we are root, else ourselves.

    Raises:
        ConfigError: the machine has no name for that user id; initdb would refuse it.
    """
    try:
        if os.geteuid() != 0:
            pwd.getpwuid(os.geteuid())
            return User(None)
        nobody = pwd.getpwnam("nobody")
    except KeyError as unknown:
        raise ConfigError(
            f"the embedded Postgres has no user to run as: {unknown.args[0]}",
            hint="initdb wants a user with a line in /etc/passwd: run as one that has it",
        ) from unknown
    return User((nobody.pw_uid, nobody.pw_gid))


def _main_thread_only() -> None:
    """The kernel's signal comes when the thread that started the server ends."""
    invariant(threading.current_thread() is threading.main_thread(), "start from the main thread")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _says_ready(file: Path, pid: int) -> bool:
    """Whether this very server says so: a crashed one leaves its file behind."""
    try:
        lines = file.read_text().split("\n")
    except FileNotFoundError:
        return False
    return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"
