"""Where a run keeps compiled Python: a process of a test loads what another one has compiled.

Most of what it costs to start the program is compiling it, and some hundred tests start it.  Who has
forbidden Python to write beside the sources (PYTHONDONTWRITEBYTECODE) is obeyed: it goes to pytest's cache.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

import pytest

FORBIDDEN: Final = "PYTHONDONTWRITEBYTECODE"
PREFIX: Final = "PYTHONPYCACHEPREFIX"
"""Who sets it has chosen."""


def keep_compiled(cache: pytest.Cache | None) -> None:
    """Make this process and its children share a folder of the cache, if there is one and no other."""
    if cache is None or not os.environ.get(FORBIDDEN) or os.environ.get(PREFIX):
        return
    with suppress(OSError):  # nobody may write there: slower, and nothing else
        folder = str(cache.mkdir("compiled"))
        del os.environ[FORBIDDEN]
        os.environ[PREFIX] = sys.pycache_prefix = folder
        sys.dont_write_bytecode = False
