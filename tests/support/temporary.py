"""Where a run keeps its files: in memory where there is room, for most of their cost is the disk's.

A fresh database is 900 small files: 0.3 s of the kernel's time on a disk, 0.04 s in memory.  What a
disk does is the matter of the long runs, and these stay on it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
ROOM: Final = 4 * 1024**3
"""Bytes that have to be free there: three workers, a server each, hold less than a third."""

VARIABLE: Final = "TMPDIR"
"""Who sets it has chosen."""


def keep_in_memory() -> None:
    """Make this process and its children take /dev/shm for temporary files, if it has the room."""
    if VARIABLE in os.environ or not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK | os.X_OK):
        return
    if shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ[VARIABLE] = str(MEMORY)
        tempfile.tempdir = None  # it is looked up again
