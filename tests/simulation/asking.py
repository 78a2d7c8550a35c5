"""A seed played with the certificate on: states are asked for all the time, between any two steps.

Each answer is held against a fold of the guarded chain in its own hold, and what is kept in
memory against the store after every commit.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection

from sidecar.certified import Answer, Certified
from sidecar.core.certificate import Certificates, Decision
from sidecar.core.digest import digest
from sidecar.core.due import SECOND
from sidecar.core.ports import Unit
from sidecar.core.state import WorkflowState
from sidecar.core.workflow import fold
from sidecar.errors import StoreError
from tests.contract.model import Shelf
from tests.simulation.run import Outcome, Run, simulate
from tests.simulation.store import SimulatedStore

LIVE_WINDOW_S = 3.0
"""As `Run.lanes` has it."""


class Asking(Run):
    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.decisions: Counter[Decision | None] = Counter()
        self.divergences = 0
        self.diverged: set[int] = set()
        self.keeping: Certified | None = None
        self._asker: asyncio.Task[None] | None = None
        self._when = random.Random(f"asking {outcome.seed}")

    def certified(self, store: SimulatedStore) -> Certified:
        self.keeping = Certified(store.clock, on=True, live_window=round(LIVE_WINDOW_S * SECOND))
        self.keeping._certificates = _Telling(self.diverged)
        self._asker = asyncio.create_task(self._ask(store, self.keeping))
        return self.keeping

    async def stop(self) -> None:
        if self._asker is not None:
            self._asker.cancel()
            await asyncio.wait({self._asker})
        await super().stop()

    def check_alive(self) -> None:
        super().check_alive()
        if self._asker is not None and self._asker.done() and not self._asker.cancelled():
            self._asker.result()

    async def _ask(self, store: SimulatedStore, certified: Certified) -> None:
        while True:
            await asyncio.sleep(self._when.random() * 0.1)
            known = sorted(self.disk.shelf.partitions)
            if not known:
                continue
            e = self._when.choice([*known, 10_000])
            try:
                self.decisions[(await store.transact(_Checked(self, certified, e))).decision] += 1
            except StoreError:
                continue

    def committed(self, shelf: Shelf, touched: Collection[int]) -> None:
        super().committed(shelf, touched)
        if self.keeping is None:
            return
        kept = self.keeping._certificates
        for e in sorted(touched):
            partition = shelf.partitions.get(e)
            if partition is not None and partition.terminal and (kept.state(e) or kept.certificate(e)):
                self.wrong(f"execution {e} has ended and is still kept")
        if kept.divergences > self.divergences:
            self.divergences = kept.divergences
            self.say("a divergence of the certificates")

    def foreign(self, e: int) -> bool:
        """Whether a second writer was at it: only the next fold meets a row that no record counts."""
        facts = self.world.facts.get(e)
        return facts is not None and bool(facts.foreign)

    def judge(self) -> None:
        super().judge()
        self.check_alive()
        # A row that went before the live poll could show it cannot be told from one that was missed.
        missed = {e for e in self.diverged if not self.world.facts[e].deleted}
        if missed and not any(map(self.foreign, self.world.facts)):
            self.wrong(f"the certificates of {sorted(missed)} diverged, and nobody else has written")


class _Telling(Certificates[WorkflowState]):
    """Says which execution diverged."""

    def __init__(self, diverged: set[int]) -> None:
        super().__init__()
        self._diverged = diverged

    def diverge(self, execution_id: int) -> None:
        self._diverged.add(execution_id)
        super().diverge(execution_id)


class _Checked:
    def __init__(self, run: Asking, certified: Certified, execution_id: int) -> None:
        self._run, self._certified, self._e = run, certified, execution_id

    async def __call__(self, unit: Unit) -> Answer:
        answer = await self._certified.rebuild_or_skip(unit, self._e)
        guarded = await unit.guarded_read(self._e)
        expected = None if guarded.events is None else fold(guarded.events)
        same = (answer.state is None) == (expected is None) and (
            answer.state is None or expected is None or digest(answer.state) == digest(expected)
        )
        if not same and not self._run.foreign(self._e):
            self._run.wrong(f"execution {self._e}: {answer.decision} gives a state that is not its fold")
        return answer


def asked(seed: int) -> tuple[Outcome, Asking]:
    """Play one seed with states asked for."""
    runs: list[Asking] = []

    def made(outcome: Outcome) -> Asking:
        runs.append(Asking(outcome))
        return runs[0]

    return simulate(seed, made), runs[0]
