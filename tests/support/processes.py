"""Processes of tests: wait for the end of one that is not our child, without asking in a loop."""

from __future__ import annotations

import os
import select


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
