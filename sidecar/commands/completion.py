"""Completion in a shell: its script asks the program itself what may come next.

While it is asked, nothing but the command line is imported, as for `--help`.
"""

from __future__ import annotations

from typing import Final

# Typer offers these two only behind options that write into the user's start-up files.
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

PROGRAM: Final = "noetl-chain"
VARIABLE: Final = "_NOETL_CHAIN_COMPLETE"
"""Set by the script when it asks."""


def script(shell: str) -> str:
    """What the shell has to read once."""
    return get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell)


def prepare() -> None:
    """Let the next call of the program answer a shell that asks."""
    completion_init()
