"""The demo: a real Postgres, a recorded log, planted faults, the sidecar, and the verdict on it.

The sidecar runs as it always does and knows nothing of the ledger.  The demo writes the log,
commits the faults, watches from outside, and in the end compares what the sidecar says with
what the ledger announced.  It waits until nothing is left to judge, then a little longer, so
that a wrong verdict has the time to appear.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from sidecar.demo import faults, report
from sidecar.demo.child import Sidecar
from sidecar.demo.copies import Mint
from sidecar.demo.ledger import Ledger, agreement
from sidecar.demo.player import PlayReport, Progress, play
from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.demo.program import READER, Program, announce, prepare, program
from sidecar.demo.recording import Recording
from sidecar.demo.scene import GATES, Outcome, Playing, Scene, Windows
from sidecar.demo.screen import Screen, screen
from sidecar.demo.stage import Stage
from sidecar.demo.watch import Look, Observer, Writes
from sidecar.errors import SourceUnavailable

T = TypeVar("T")

SECONDS: Final = 15.0
WRITERS: Final = 6
"""Connections a recording."""
QUIET_S: Final = 3.0
"""Longer than settle: what was judged once more since would have shown itself."""
PATIENCE_S: Final = 30.0
READY_S: Final = 20.0


def main_demo(*, seconds: float | None, speed: float, keep: bool, as_json: bool) -> int:
    """Run the demo.

    Args:
        seconds: How long the log is played; only executions that are complete within it are.
        speed: All gaps of the log are divided by it.
        keep: Stay up afterwards, until SIGINT or SIGTERM.
        as_json: Print one object on stdout; what happens meanwhile goes to stderr.

    Returns:
        0 when verdicts and ledger agree in both directions, 1 when not; 128 + the signal's
        number when a signal ended it before that was known.

    Raises:
        SidecarError: Postgres or the sidecar did not start, or ended.
    """
    began = time.monotonic()
    seconds = SECONDS if seconds is None else seconds
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(program, seconds * speed)  # while the server starts
        with EmbeddedPostgres.start() as server, screen(as_json=as_json) as shown:
            demo = _Demo(server, shown, loading.result(), began, seconds, speed)
            return asyncio.run(demo.run(keep=keep, as_json=as_json))


class _Demo:
    """One run of the demo.  The folder with store and ledger goes with the server's."""

    def __init__(
        self,
        server: EmbeddedPostgres,
        shown: Screen,
        played: Program,
        began: float,
        seconds: float,
        speed: float,
    ) -> None:
        self._server = server
        self._screen = shown
        self._recordings = played.recordings
        self._template = played.template
        self._seconds = seconds
        self._speed = speed
        self._began = began
        self._folder = server.root / "demo"
        self._store = self._folder / "chain.db"
        self._writes = Writes()
        self._signal: int | None = None
        self._stop = asyncio.Event()
        backlog = max(each.backlog_s(speed) for each in self._recordings)
        self._scene = Scene(
            speed,
            Windows(live_window_s=round(Windows().live_window_s + backlog)),
            "",
            playing=tuple(Playing(each.name, len(each.executions), each.rows) for each in self._recordings),
        )
        self._lag_max = self._age_max = 0.0
        self._plays: list[PlayReport] = []

    async def run(self, *, keep: bool, as_json: bool) -> int:
        with _signals(self._stopped):
            return await self._run(keep=keep, as_json=as_json)

    def _stopped(self, signum: int) -> None:
        self._signal = signum
        self._stop.set()

    async def _run(self, *, keep: bool, as_json: bool) -> int:
        self._folder.mkdir()
        await prepare(self._server.dsn())
        async with self._sidecar() as sidecar:
            outcome = await self._unless_stopped(sidecar, self._play_and_judge(sidecar))
            if outcome is None:
                return 128 + (self._signal or signal.SIGINT)
            self._tell(outcome, as_json=as_json)
            if keep:
                await self._stay(sidecar)
        return 0 if outcome.agrees else 1

    @asynccontextmanager
    async def _sidecar(self) -> AsyncIterator[Sidecar]:
        sidecar = await Sidecar.start(self._folder, self._settings())
        try:
            yield sidecar
        finally:
            await sidecar.stop()

    def _settings(self) -> dict[str, str]:
        windows = self._scene.windows
        return {gate.upper(): "on" for gate in GATES} | {
            "DSN": self._server.dsn(user=READER),
            "STORE": str(self._store),
            "SETTLE_S": f"{windows.settle_s:g}",
            "DANGLING_S": f"{windows.dangling_s:g}",
            "SWEEP_ROUND_S": f"{windows.sweep_round_s:g}",
            "TICK_S": f"{windows.tick_s:g}",
            "LIVE_WINDOW_S": f"{windows.live_window_s:.0f}",
            "LOG_FORMAT": "json",
        }

    async def _unless_stopped(self, sidecar: Sidecar, work: Coroutine[Any, Any, T]) -> T | None:
        """The work's result; None: a signal came first.  A sidecar that ends is an error."""
        doing = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stop.wait())
        dying = asyncio.ensure_future(sidecar.died())
        tasks: set[asyncio.Future[Any]] = {doing, stopping, dying}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._stop.is_set():
            return None
        if not dying.cancelled():
            raise dying.result()
        return doing.result()

    async def _play_and_judge(self, sidecar: Sidecar) -> Outcome:
        host, port = sidecar.metrics
        self._scene = replace(self._scene, metrics=f"http://{host}:{port}/metrics", pages=sidecar.pages)
        observer = Observer(self._store, sidecar.metrics, self._writes)
        with Ledger(self._folder / "ledger.jsonl") as ledger:
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(observer.run())
                showing = group.create_task(self._show_all(observer, ledger))
                await _ready(observer)
                announce(ledger, self._recordings)
                await self._write(observer, ledger)
                outcome = await self._judge(observer, ledger, sidecar)
                looking.cancel()
                showing.cancel()
            return outcome

    async def _show_all(self, observer: Observer, ledger: Ledger) -> None:
        while True:
            self._show(await observer.next(), ledger)

    def _show(self, look: Look, ledger: Ledger) -> None:
        self._lag_max = max(self._lag_max, look.lag_s)
        self._age_max = max(self._age_max, look.ages.get("live", 0.0))
        self._scene = replace(
            self._scene,
            look=look,
            entries=dict(ledger.entries),
            written=self._writes.rows,
            elapsed_s=time.monotonic() - self._began,
        )
        self._screen.show(self._scene)

    async def _write(self, observer: Observer, ledger: Ledger) -> None:
        self._phase("playing")
        stage = Stage(
            dsn=self._server.dsn(),
            store=self._store,
            ledger=ledger,
            watch=observer,
            template=self._template,
            mint=Mint(),
            written=self._writes.add,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(faults.plant(stage, self._seconds))
            self._plays = await asyncio.gather(
                *(self._play(at, each) for at, each in enumerate(self._recordings))
            )
            stage.played.set()

    async def _play(self, at: int, each: Recording) -> PlayReport:
        return await play(
            self._server.dsn(),
            each,
            speed=self._speed,
            connections=WRITERS,
            on_progress=self._progress(at),
        )

    def _progress(self, at: int) -> Callable[[Progress], None]:
        def note(progress: Progress) -> None:
            playing = list(self._scene.playing)
            self._writes.add(row.execution_id for row in progress.last.rows)
            playing[at] = replace(playing[at], written=progress.rows, open_now=progress.open_now)
            self._scene = replace(self._scene, playing=tuple(playing))

        return note

    async def _judge(self, observer: Observer, ledger: Ledger, sidecar: Sidecar) -> Outcome:
        """Wait until nothing is left to judge and nothing moves, or patience ends."""
        self._phase("judging")
        quiet_since: float | None = None
        patience = time.monotonic() + PATIENCE_S
        while True:
            looks = observer.looks
            look = await observer.next(patience - time.monotonic())
            now = time.monotonic()
            result = agreement(ledger.entries, look.verdicts, look.divergences)
            fresh = observer.looks > looks
            calm = fresh and result.holds and look.numbers_hold and not look.due and not look.behind
            quiet_since = (quiet_since or now) if calm else None
            settled = quiet_since is not None and now - quiet_since >= QUIET_S
            if settled or now > patience:
                break
        self._phase("done")
        self._show(look, ledger)
        published = sidecar.published()
        return Outcome(
            scene=self._scene,
            agreement=agreement(ledger.entries, look.verdicts, look.divergences, published),
            published=len(published),
            settled=settled,
            lag_max_s=self._lag_max,
            horizon_age_max_s=self._age_max,
            late_max_s=max(each.late_s for each in self._plays),
            open_max=sum(each.max_open for each in self._plays),
            seconds=time.monotonic() - self._began,
        )

    def _phase(self, phase: str) -> None:
        self._scene = replace(self._scene, phase=phase)

    def _tell(self, outcome: Outcome, *, as_json: bool) -> None:
        if as_json:
            sys.stdout.write(json.dumps(report.as_json(outcome)) + "\n")
            sys.stdout.flush()
        else:
            self._screen.end(report.table(outcome))

    async def _stay(self, sidecar: Sidecar) -> None:
        self._screen.note(
            f"still up until Ctrl-C: {self._scene.pages}\n"
            f"  metrics {self._scene.metrics}\n"
            f"  store   {self._store}\n  ledger  {self._folder / 'ledger.jsonl'}\n"
            f"  log     {self._server.dsn(user=READER)}"
        )
        await self._unless_stopped(sidecar, asyncio.Event().wait())


async def _ready(observer: Observer) -> None:
    await observer.next(READY_S)
    if not observer.looks:
        raise SourceUnavailable(f"the sidecar did not answer within {READY_S:.0f} s")


@contextmanager
def _signals(stopped: Callable[[int], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call `stopped` instead of ending the process."""
    loop = asyncio.get_running_loop()
    caught = (signal.SIGINT, signal.SIGTERM)
    for signum in caught:
        loop.add_signal_handler(signum, stopped, signum)
    try:
        yield
    finally:
        for signum in caught:
            loop.remove_signal_handler(signum)
