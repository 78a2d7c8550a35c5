"""Bring a recorded log into a given, empty database: what the compose file plays.

`python -m sidecar.demo.replay prepare` makes the event table and the reader's role;
`… play` plays the recordings.  The connection comes from the usual variables.  Never run
against a NoETL database: `prepare` refuses where an event table stands.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import asyncpg

from sidecar.demo.ddl import event_table, reader_role
from sidecar.demo.driver import translated
from sidecar.demo.player import play
from sidecar.demo.program import READER
from sidecar.demo.recording import BUNDLED, bundled
from sidecar.errors import ConfigError, SidecarError
from sidecar.settings import load

SPEED: Final = 8.0


async def prepare(dsn: str, password: str) -> None:
    """The event table, and the role of the sidecar with its password.

    Raises:
        ConfigError: an event table is there already; nothing was changed.
        SourceError: the server refused; nothing was changed.
    """
    with translated("the database could not be prepared"):
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                if await connection.fetchval("SELECT to_regclass('noetl.event') IS NOT NULL"):
                    raise ConfigError(
                        "table noetl.event exists; nothing was changed", hint="use an empty database"
                    )
                await connection.execute(event_table())
                await connection.execute(reader_role(READER))
                await connection.execute(
                    await connection.fetchval(
                        "SELECT format('ALTER ROLE %I PASSWORD %L', $1::text, $2::text)", READER, password
                    )
                )
        finally:
            await connection.close()


async def played(dsn: str, names: Sequence[str], speed: float) -> dict[str, int]:
    """Rows that were played of each recording, one after the other.

    Raises:
        SourceError: the connection failed; the committed transactions stay.
    """
    rows: dict[str, int] = {}
    for name in names:
        rows[name] = (await play(dsn, bundled(name), speed=speed)).rows
    return rows


def main(arguments: Sequence[str]) -> int:
    """The command; 0 good, else the error's code."""
    parser = argparse.ArgumentParser(prog="python -m sidecar.demo.replay", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    first = steps.add_parser("prepare", help="make the event table and the reader's role")
    first.add_argument("--password-file", type=Path, required=True, help="the reader's password")
    second = steps.add_parser("play", help="play the recordings")
    second.add_argument("--log", action="append", choices=BUNDLED, help="which; all without it")
    second.add_argument("--speed", type=float, default=SPEED, help="all gaps are divided by it")
    options = parser.parse_args(arguments)
    try:
        dsn = load().source_dsn()
        if options.step == "prepare":
            asyncio.run(prepare(dsn, options.password_file.read_text().strip()))
        else:
            rows = asyncio.run(played(dsn, options.log or BUNDLED, options.speed))
            print(json.dumps({"rows": rows}))  # noqa: T201 - machine output
    except SidecarError as error:
        print(f"{error}\n{error.hint or ''}".strip(), file=sys.stderr)  # noqa: T201 - for the user
        return error.exit_code
    except OSError as error:
        print(f"{options.password_file}: {error.strerror}", file=sys.stderr)  # noqa: T201 - for the user
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
