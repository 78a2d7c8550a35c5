"""The process: signals get a meaning before anything else is imported, then the commands."""

from __future__ import annotations

import sys

from sidecar import termination


def main() -> None:
    termination.install()
    from sidecar.cli import entry

    code = entry(sys.argv[1:])
    termination.ended(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
