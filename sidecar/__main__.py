"""The process: what SIGTERM does, before anything else is imported.

As process 1 of a container a program without a handler ignores SIGTERM, and imports take long
enough to be hit by one.  `run` ends with 0, being asked to stop is its normal end; any other
command was cut short and says so with 143.  Once a command runs it puts its own handler here.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

CUT_SHORT = 128 + signal.SIGTERM


def main() -> NoReturn:
    signal.signal(signal.SIGTERM, _terminated)
    from sidecar.cli import entry

    sys.exit(entry(sys.argv[1:]))


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0 if sys.argv[1:2] == ["run"] else CUT_SHORT)


if __name__ == "__main__":
    main()
