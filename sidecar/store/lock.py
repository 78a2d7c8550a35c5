"""One sidecar a store: a kernel lock on a file beside the database.

The kernel drops the lock when its holder ends, kill -9 included, so a lock file that is left
over locks nothing.  Its text names the last holder, for the person who reads the refusal.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

from sidecar.errors import StoreError, StoreLocked


class StoreLock:
    """A held lock; `release` gives it back.  It ends with the process in any case."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Give the lock back; a second call does nothing.  The file stays: removing it would
        let two holders lock two files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def take(path: Path) -> StoreLock:
    """Lock the store at `path` for this process.

    Raises:
        StoreLocked: another holder has it; the message names it.
        StoreError: the lock file cannot be made.
    """
    try:
        descriptor = os.open(lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise StoreError(
            f"the store's folder {path.parent} cannot be written: {error.strerror}",
            hint="give the process write permission on the folder, not only on the file",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _sign(descriptor)
    except BlockingIOError as error:
        holder = _holder(descriptor)
        os.close(descriptor)
        raise StoreLocked(
            f"the store {path} is in use by {holder}",
            hint="stop the other sidecar, or give this one its own store",
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise StoreError(f"the store {path} cannot be locked: {error.strerror}") from error
    return StoreLock(descriptor)


def _sign(descriptor: int) -> None:
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)


def _holder(descriptor: int) -> str:
    try:
        signed = json.loads(os.pread(descriptor, 1024, 0))
        return f"process {int(signed['pid'])} on {signed['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
