"""A server's processes: ended by signal, found through /proc, gone when nothing of them runs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sidecar.errors import invariant

_POLL_S: Final = 0.01


def ended_by(process: subprocess.Popen[bytes], signum: signal.Signals, timeout_s: float) -> bool:
    """Send the signal to our child; whether it ended within the time."""
    process.send_signal(signum)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def children(pid: int) -> list[int]:
    """The processes whose parent is `pid`."""
    every = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return [child for child in every if _stat(child)[1:2] == [str(pid)]]


def kill_all(pids: Sequence[int], timeout_s: float) -> None:
    """End the processes, children or not, and wait until each is gone.

    Raises:
        InvariantError: one of them outlived SIGKILL by more than the time.
    """
    for pid in pids:
        _kill(pid)
    deadline = time.monotonic() + timeout_s
    while any(_lives(pid) for pid in pids):
        invariant(time.monotonic() < deadline, "a process outlived SIGKILL")
        time.sleep(_POLL_S)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _lives(pid: int) -> bool:
    """A zombie that nobody collects is dead."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def _stat(pid: int) -> list[str]:
    """State, parent and what follows in /proc/PID/stat; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
