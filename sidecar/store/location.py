"""Decide where a store may live: a local folder that exists and can be written.

SQLite's WAL needs shared memory and working locks, which no network file system gives; a
missing folder is most often a volume that was not mounted, so it is never made up here and
never replaced by a temporary one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sidecar.errors import ConfigError, StoreError

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "lustre", "ncpfs",
        "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs",
        "fuse.ceph", "fuse.davfs", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs",
        "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    }
)  # fmt: skip
_MOUNTS: Final = Path("/proc/self/mountinfo")
_MEMORY: Final = re.compile(r":memory:|^file:", re.ASCII)


def sqlite_path(url: str) -> Path:
    """The absolute path that a store URL names.

    `sqlite:////abs/path`, `sqlite:///rel/path` or a plain path.

    Raises:
        ConfigError: anything else; an in-memory database is no store.
    """
    scheme, found, rest = url.partition("://")
    if not found:
        return _usable(url)
    if scheme != "sqlite":
        raise ConfigError(
            f"a chain store cannot be opened by {scheme}://", hint="use sqlite:////absolute/path/chain.db"
        )
    if not rest.startswith("/") or "?" in rest or "#" in rest:
        raise ConfigError(
            "a sqlite URL names no host and takes no options", hint="use sqlite:////absolute/path/chain.db"
        )
    return _usable(rest[1:])


def _usable(text: str) -> Path:
    if not text or text.endswith("/") or "\0" in text or _MEMORY.search(text):
        raise ConfigError("the store needs a file", hint="use sqlite:////absolute/path/chain.db")
    return Path(text).expanduser().absolute()


def distinct(path: Path, replicas: Sequence[str]) -> list[Path]:
    """The paths of the replicas, each a file of its own.

    Raises:
        ConfigError: one names no SQLite file, or the same file as another one or the store.
    """
    paths = [sqlite_path(url) for url in replicas]
    if len({each.resolve() for each in (path, *paths)}) <= len(paths):
        raise ConfigError(
            "a replica is the store itself or stands in the list twice", hint="each needs a file of its own"
        )
    return paths


def check_one_name(path: Path) -> None:
    """Refuse a file with hard links: lock and write-ahead log go by name, so each name has its own.

    Raises:
        StoreError: it has several names.
    """
    if path.is_file() and path.stat().st_nlink > 1:
        raise StoreError(
            f"the store {path} has several names (hard links)", hint="leave it one name: remove the others"
        )


def check_folder(path: Path) -> None:
    """Refuse a folder in which a store cannot live; nothing is created.

    Raises:
        StoreError: the folder is missing, is on a network, or cannot be written.
    """
    folder = path.parent
    if not folder.is_dir():
        raise StoreError(
            f"the store's folder {folder} does not exist", hint="create it, or mount the volume it stands on"
        )
    if path.is_dir():
        raise StoreError(f"the store {path} is a folder", hint="name a file in it")
    check_local(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(
            f"the store's folder {folder} cannot be written",
            hint="give the process write permission on the folder, not only on the file",
        )
    # SQLite would open such a file for reading and fail at the first write.
    if path.exists() and not os.access(path, os.W_OK):
        raise StoreError(
            f"the store {path} cannot be written", hint="give the process write permission on it"
        )


def check_local(folder: Path) -> None:
    """Refuse a network file system.

    Raises:
        StoreError: the folder is on one.
    """
    kind = file_system(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"the store's folder {folder} is on a network file system ({kind})",
            hint="SQLite needs a local disk: use a block volume",
        )


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str | None:
    """The type of the file system that holds `folder`; None where the system does not tell."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = folder.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = Path(_unescaped(fields.split(" ")[4]))
        # Of two mounts at one point the later one is seen.
        if real.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), rest.split(" ")[0])
    return best and best[1]


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
