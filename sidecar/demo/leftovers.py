"""A server's folder: made so that another process can tell whether its owner still lives.

The owner holds a lock (flock) on the folder itself; the kernel lets go of it however the
owner ends.  A folder gets its final name only when it is locked, so a starter that sweeps
never meets a young folder of another starter unlocked.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from sidecar.demo.binaries import User

PREFIX: Final = "noetl-chain-pg-"
_UNBORN: Final = "." + PREFIX
_UNBORN_AGE_S: Final = 60.0
_BASE_LENGTH_MAX: Final = 60
"""A socket's path has 107 bytes; folder name and socket name need about 45 of them."""


class Place:
    """One server's folder, locked for as long as this process lives or until `remove`."""

    def __init__(self, root: Path, lock: int) -> None:
        self.root = root
        self._lock = lock

    @classmethod
    def create(cls, user: User) -> Place:
        """Make a folder of mode 0700 that belongs to `user`."""
        unborn = Path(tempfile.mkdtemp(prefix=_UNBORN, dir=base(user)))
        lock = os.open(unborn, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        user.own(unborn)
        root = unborn.with_name(unborn.name.removeprefix("."))
        unborn.rename(root)
        return cls(root, lock)

    def remove(self) -> None:
        """Delete the folder and let go of the lock; a second call does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.root, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def base(user: User) -> Path:
    """The temporary folder, or /tmp where `user` cannot reach it or a socket's path grows too long."""
    preferred = Path(tempfile.gettempdir()).resolve()
    reachable = user.ids is None or all(
        folder.stat().st_mode & 0o001 for folder in (preferred, *preferred.parents)
    )
    short = len(os.fsencode(preferred)) <= _BASE_LENGTH_MAX
    return preferred if reachable and short else Path("/tmp")  # noqa: S108 (mkdtemp makes the name)


def sweep(user: User) -> list[Path]:
    """Delete the folders whose owner and server are gone; the ones deleted.

    Only folders that belong to `user` or to us: what another user left is that user's to sweep.
    """
    return [root for root in _candidates(base(user)) if _is_ours(root, user) and _swept(root)]


def _candidates(folder: Path) -> list[Path]:
    young = time.time() - _UNBORN_AGE_S
    unborn = [root for root in folder.glob(_UNBORN + "*") if _changed_at(root) < young]
    return sorted(folder.glob(PREFIX + "*")) + unborn


def _changed_at(root: Path) -> float:
    try:
        return root.lstat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _is_ours(root: Path, user: User) -> bool:
    try:
        return root.lstat().st_uid in (user.uid, os.geteuid())
    except FileNotFoundError:  # another starter swept it
        return False


def _swept(root: Path) -> bool:
    try:
        lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, or no folder: not ours to judge
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _server_lives(root / "data"):
            return False
        shutil.rmtree(root, ignore_errors=True)
    except BlockingIOError:  # its owner lives
        return False
    else:
        return True
    finally:
        os.close(lock)


def _server_lives(data: Path) -> bool:
    """Whether the process named in postmaster.pid works in this very folder."""
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        return Path(f"/proc/{pid}/cwd").resolve(strict=True) == data.resolve()
    except (OSError, ValueError):
        return False
