"""What SIGTERM and Ctrl-C do before a command has a handler of its own, and when it has ended.

As process 1 of a container a program without a handler ignores SIGTERM, and imports take long
enough to be hit by one.  While nothing but imports has run there is nothing to tidy up, and an
exception out of a handler in the middle of an import can be swallowed or turned into another
one: the process ends on the spot.  From the moment a command works, the stack is unwound
instead, so that temporary files go and transactions end.

`run` ends with 0, being asked to stop is its normal end; any other command was cut short and
says so with 143, after Ctrl-C with 130.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

CUT_SHORT = 128 + signal.SIGTERM


def install() -> None:
    """End on the spot.  To be called before anything else is imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_the_spot)
    signal.signal(signal.SIGTERM, _on_the_spot)


def unwind() -> None:
    """From now on unwind the stack; does nothing in a process that `install` was not called in."""
    if signal.getsignal(signal.SIGTERM) is _on_the_spot:
        signal.signal(signal.SIGTERM, _unwinding)
    if not _runs() and signal.getsignal(signal.SIGINT) is _on_the_spot:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(code: int) -> None:
    """The work is done and told: a signal while the interpreter ends changes nothing any more."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a pipe that nobody reads; Python says so at its end
            stream.flush()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: os._exit(code))


def _on_the_spot(signum: int, frame: FrameType | None) -> None:
    os._exit(0 if _runs() else 128 + signum)


def _runs() -> bool:
    return sys.argv[1:2] == ["run"]


def _unwinding(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(CUT_SHORT)
