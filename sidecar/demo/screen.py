"""Where the demo speaks: a live screen on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, Self, TextIO

from rich.console import Console, RenderableType
from rich.live import Live

from sidecar.demo import view
from sidecar.demo.scene import Scene

LINE_S: Final = 2.0
PLAIN_WIDTH: Final = 140


class Screen(Protocol):
    def show(self, scene: Scene) -> None:
        """What stands now; called several times a second."""
        ...

    def end(self, result: RenderableType) -> None:
        """The last word; `show` is not called afterwards."""
        ...

    def note(self, text: str) -> None:
        """Something people should know afterwards."""
        ...


@contextmanager
def screen(*, as_json: bool) -> Iterator[Screen]:
    """A live screen when stdout is a terminal, else lines; with `as_json` they go to stderr."""
    out = sys.stderr if as_json else sys.stdout
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="replace")  # a terminal without UTF-8 shows ?, it does not end the demo
    if as_json or not out.isatty():
        yield _Lines(out)
    else:
        with _Terminal(Console(file=out)) as terminal:
            yield terminal


class _Lines:
    """A line every two seconds and whenever the phase changes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._said_at = -LINE_S
        self._phase = ""

    def show(self, scene: Scene) -> None:
        if not self._phase:
            self._say(f"{scene.speed:g}x, {scene.windows}, pages {scene.pages}, metrics {scene.metrics}")
        now = time.monotonic()
        if scene.phase != self._phase or now - self._said_at >= LINE_S:
            self._phase, self._said_at = scene.phase, now
            self._say(view.line(scene))

    def end(self, result: RenderableType) -> None:
        Console(file=self._out, width=PLAIN_WIDTH, color_system=None).print(result)
        self._out.flush()

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()


class _Terminal:
    """The live view; the last screen replaces it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, scene: Scene) -> None:
        self._live.update(view.view(scene, self._console.height), refresh=True)

    def end(self, result: RenderableType) -> None:
        self._live.stop()
        self._console.print(result)

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
