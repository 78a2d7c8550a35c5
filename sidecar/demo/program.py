"""What the demo plays, on which database, and what it announces of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import asyncpg

from sidecar.demo import faults, recording
from sidecar.demo.copies import Row, template
from sidecar.demo.ddl import event_table, reader_role
from sidecar.demo.driver import translated
from sidecar.demo.ledger import Entry, Ledger
from sidecar.demo.recording import Recording
from sidecar.errors import ConfigError

READER: Final = "noetl_chain_reader"


@dataclass(frozen=True, slots=True)
class Program:
    """What is played, and the rows of which planted executions are made."""

    recordings: list[Recording]
    template: tuple[Row, ...]


def program(recorded_s: float) -> Program:
    """What is whole within the time; a recording with nothing whole is left out.

    Raises:
        ConfigError: nothing at all is.
    """
    loaded = [recording.bundled(name) for name in recording.BUNDLED]
    cut = [recording.whole(each, recorded_s) for each in loaded]
    recordings = [each for each in cut if each.transactions]
    if not recordings:
        raise ConfigError(
            f"no execution is complete within {recorded_s:g} recorded seconds", hint="play longer, or faster"
        )
    return Program(recordings, template(loaded[0]))


async def prepare(dsn: str) -> None:
    """The event table, the role that reads it, and the partition that will be dropped."""
    with translated("the demo's database could not be made"):
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(event_table())
            await connection.execute(reader_role(READER))
            await faults.prepare(connection)
        finally:
            await connection.close()


def announce(ledger: Ledger, recordings: list[Recording]) -> None:
    """Write down what the recordings expect of every execution."""
    ledger.announce(
        Entry(execution, verdict, each.name)
        for each in recordings
        for execution, verdict in (each.verdicts or {}).items()
    )
