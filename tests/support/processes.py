"""Processes of tests: wait for the end of one that is not our child, without asking in a loop."""

from __future__ import annotations

import gc
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def ended(pid: int, timeout_s: float) -> bool:
    """Whether the process is gone, or goes within the time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


def family(pid: int) -> list[int]:
    """The process and its children, the process first."""
    children = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[1] == str(pid):
            children.append(int(folder.name))
    return [pid, *children]


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """A server and every child of it stand still: sockets stay open and nobody answers."""
    pids = family(pid)
    for each in pids:
        os.kill(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in reversed(pids):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler of its own for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(mask >> (signum - 1) & 1)


def open_files() -> int:
    """How many descriptors this process has open, after a collection."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
