"""The sidecar as the demo runs it: `noetl-chain run` in a process of its own.

It gets its settings from the environment like any other and is watched from outside, by its
metrics and its store, so that the demo shows what an operator would see.  It ends when the
demo ends, in whatever way the demo does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from sidecar.demo import launch
from sidecar.errors import SidecarError
from sidecar.settings import PREFIX

STOP_S: Final = 5.0
_FOREIGN: Final = (PREFIX, "NOETL_SCHEMA", "POSTGRES_", "PG")


class Sidecar:
    """A running sidecar.

    `metrics` is host and port of one listener, `pages` the address of the other; `log` its stderr.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, metrics: tuple[str, int], pages: str, log: Path
    ) -> None:
        self._process = process
        self.metrics = metrics
        self.pages = pages
        self.log = log

    @classmethod
    async def start(cls, folder: Path, settings: Mapping[str, str]) -> Self:
        """Start it with `settings` (variables without prefix) and nothing else of ours.

        Must be called in the main thread: the kernel ends the child with the thread that
        started it.
        """
        port, api = free_ports(2)
        places = {f"{PREFIX}METRICS_BIND": f"127.0.0.1:{port}", f"{PREFIX}API_BIND": f"127.0.0.1:{api}"}
        ours = {PREFIX + name: value for name, value in settings.items()}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        log = folder / "sidecar.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(launch.__file__),
                "-",
                str(os.getpid()),
                sys.executable,
                "-m",
                "sidecar",
                "run",
                env=kept | ours | places,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is the demo's; it ends the sidecar in order
            )
        return cls(process, ("127.0.0.1", port), f"http://127.0.0.1:{api}/", log)

    def published(self) -> list[tuple[int, str]]:
        """Execution and verdict of every verdict that it wrote to its log so far (not `match`)."""
        lines = map(_parsed, self.log.read_text("utf-8", "replace").split("\n"))
        return [
            (int(line["execution_id"]), str(line["verdict"]))
            for line in lines
            if line.get("event") == "verdict"
        ]

    async def died(self) -> SidecarError:
        """Wait until it ends by itself, which it never should, and say how."""
        code = await self._process.wait()
        return SidecarError(f"the sidecar ended with {code}", hint=_tail(self.log))

    async def stop(self) -> int:
        """SIGTERM, and SIGKILL if it does not end in `STOP_S`.

        Returns:
            Its exit code; 0 is the orderly end.
        """
        process = self._process
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if process.returncode is not None:
                break
            process.send_signal(signum)
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                continue
        return process.returncode if process.returncode is not None else -signal.SIGKILL


def free_ports(count: int) -> list[int]:
    """Ports on 127.0.0.1 that nobody listens on now."""
    with ExitStack() as probes:
        held = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in held:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in held]


def _parsed(line: str) -> dict[str, Any]:
    """A line of the log; nothing when it is torn or no object."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _tail(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else "it wrote nothing"
