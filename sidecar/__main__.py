"""The process: SIGTERM gets a meaning before anything else is imported, then the commands."""

from __future__ import annotations

import sys

from sidecar import termination


def main() -> None:
    termination.install()
    from sidecar.cli import entry

    sys.exit(entry(sys.argv[1:]))


if __name__ == "__main__":
    main()
