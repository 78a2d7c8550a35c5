"""One sidecar a store: a kernel lock on a file beside the database.

The kernel drops the lock when its holder ends, kill -9 included, so a lock file that is left
over locks nothing.  Its text names the last holder, for the person who reads the refusal.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Final

from sidecar.errors import StoreError, StoreLocked

ASKING_S: Final = 0.02
"""Far longer than somebody needs who only asks for the holder."""


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
        _lock(descriptor)
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


def holder(path: Path) -> str | None:
    """Who has the store at `path`; None: nobody.  Nothing is created.

    It asks by a shared lock that it gives back at once, so two who ask do not see each other.

    Raises:
        StoreError: the lock file cannot be looked at.
    """
    try:
        descriptor = os.open(lock_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"the lock of the store {path} cannot be looked at: {error.strerror}",
            hint="run it as the user the sidecar runs as",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(descriptor)
    finally:
        os.close(descriptor)
    return None


def _lock(descriptor: int) -> None:
    """Lock it; whoever only asks (`holder`) has it for a moment, so a second try decides."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(ASKING_S)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


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
