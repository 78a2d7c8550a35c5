"""A test that fails with something open says so and holds nobody up."""

from __future__ import annotations

import subprocess
import sys

WITHIN_S = 60
LEFT_OPEN = """
import asyncio, socket, sys
from tests.support.loops import Loop

here, there = socket.socketpair()
loop = Loop()
opened = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=here))
try:
    loop.close()
except ResourceWarning as said:
    sys.exit(f"{said}; closed: {loop.is_closed()}; at the other end: {there.recv(1)!r}")
"""


def test_what_a_test_left_open_is_closed_and_named() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEFT_OPEN],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    said = done.stderr.splitlines()[0]
    assert said.startswith("unclosed resource <UnixTransport")
    assert said.endswith("closed: True; at the other end: b''")
