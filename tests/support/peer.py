"""A node of the fleet as a process of its own: `python -m tests.support.peer FOLDER NAME PEER`.

It says where it listens, and whom it shows when it shows somebody; it runs until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from sidecar.telemetry import logs
from tests.support.gossip import node


async def main(folder: str, name: str, peer: str) -> None:
    logs.configure()  # on stderr
    async with node(Path(folder), name, peer) as one:
        await one.until("somebody", bool)
        print(one.addr, flush=True)  # noqa: T201 - whoever started it waits for this line
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
