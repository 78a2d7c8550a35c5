"""Every single SQLite call of the store's life fails: once, for ever, and with its answer lost.

Whatever fails, what is stored is what was there before the call, or (only where a commit's
answer was lost) what the call makes of it; nothing in between.  The same call again succeeds
and ends as it would have (after a lost answer: as two calls do), on the same connection after
a single failure and on a reopened store after a lasting one.  By default a sample is taken,
under torture all of them.
"""

from __future__ import annotations

import gc
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from sidecar.errors import NotHead, StoreBusy, StoreCorrupt, StoreError, StoreFull
from sidecar.store import ChainStore
from tests.contract.events import chain
from tests.support.failing import Fault, Faults, Kind, install
from tests.support.sqlite import raw
from tests.support.storesteps import STEPS, Step, accounted, answer, looked, seen

RAISED: Final = {
    Kind.IOERR: StoreError,
    Kind.FULL: StoreFull,
    Kind.BUSY: StoreBusy,
    Kind.CORRUPT: StoreCorrupt,
}
SAMPLE: Final = 16


@dataclass(frozen=True)
class Stage:
    """One step without a fault: where it starts, how many calls it takes, what it leaves."""

    name: str
    before: Path
    state_before: dict[str, Any]
    calls: list[str]
    says: object
    state_after: dict[str, Any]
    state_twice: dict[str, Any]

    @property
    def step(self) -> Step:
        return STEPS[self.name]


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return install(monkeypatch)


async def staged(faults: Faults, folder: Path) -> list[Stage]:
    """Run the script once; a copy of the store from before each step is kept."""
    path = folder / "script.db"
    async with ChainStore.open(str(path)):
        pass
    stages = []
    for number, (name, step) in enumerate(STEPS.items()):
        before = folder / f"before-{number}.db"
        copied(path, before)
        state = seen(path)
        async with ChainStore.open(str(path)) as store:
            with faults.armed(None):
                says = await answer(step, store)
                calls = list(faults.calls)
        assert calls
        accounted(path)
        after, twice = seen(path), await made_twice(step, before)
        stages.append(Stage(name, before, state, calls, says, after, twice))
    return stages


def every(stages: list[Stage]) -> Iterator[tuple[Stage, Fault]]:
    for stage in stages:
        for nth, (call, before) in enumerate(zip(stage.calls, ("", *stage.calls), strict=False), 1):
            for kind in (Kind.IOERR, Kind.FULL, Kind.BUSY):
                for for_ever in (False, True):
                    yield stage, Fault(kind, nth, for_ever, late=before == "COMMIT")
            if call == "COMMIT":
                yield stage, Fault(Kind.IOERR, nth, late=True)


async def made_twice(step: Step, before: Path) -> dict[str, Any]:
    """What stands after two calls; a refused single event leaves its marker ahead (spec 2.4)."""
    path = before.with_suffix(".twice.db")
    shutil.copyfile(before, path)
    async with ChainStore.open(str(path)) as store:
        await answer(step, store)
        await answer(step, store)
    return seen(path)


def copied(path: Path, to: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


async def failing(faults: Faults, path: Path, stage: Stage, fault: Fault) -> None:
    shutil.copyfile(stage.before, path)
    async with ChainStore.open(str(path)) as store:
        with faults.armed(fault):
            with pytest.raises(RAISED[fault.kind]):
                await answer(stage.step, store)
            assert faults.fired
            if fault.for_ever:
                with pytest.raises(RAISED[fault.kind]):
                    await looked(store)  # never an empty answer
        stands = seen(path)
        wanted = (stage.state_before, stage.state_after) if fault.late else (stage.state_before,)
        assert stands in wanted, "neither before nor after"
        accounted(path)
        kept = stands != stage.state_before
        if not fault.for_ever:
            await again(store, path, stage, kept=kept)
    if fault.for_ever:
        # A rollback that failed leaves its lock to a cursor in the failure's own circle of frames;
        # the end of a process would have ended it.
        gc.collect()
        async with ChainStore.open(str(path)) as store:
            await again(store, path, stage, kept=kept)


async def again(store: ChainStore, path: Path, stage: Stage, *, kept: bool) -> None:
    says = await answer(stage.step, store)
    assert kept or says == stage.says
    # A call whose answer was lost was made; who makes it again makes it twice.
    assert seen(path) == (stage.state_twice if kept else stage.state_after)
    accounted(path)


async def run(faults: Faults, folder: Path, *, sample: int | None) -> int:
    cases = list(every(await staged(faults, folder)))
    chosen = cases if sample is None else random.Random(len(cases)).sample(cases, sample)
    for number, (stage, fault) in enumerate(chosen):
        try:
            await failing(faults, folder / f"case-{number}.db", stage, fault)
        except BaseException as error:
            error.add_note(f"step {stage.name!r}, {fault}, call {stage.calls[fault.nth - 1]!r}")
            raise
    return len(chosen)


async def test_a_failed_call_leaves_what_was_there_and_may_be_made_again(
    faults: Faults, tmp_path: Path
) -> None:
    assert await run(faults, tmp_path, sample=SAMPLE) == SAMPLE


@pytest.mark.torture
@pytest.mark.timeout(1200)
async def test_every_call_of_every_step_fails_in_every_way(faults: Faults, tmp_path: Path) -> None:
    assert await run(faults, tmp_path, sample=None) > 1000


async def opening(faults: Faults, folder: Path, kinds: Callable[[int], Iterable[Kind]]) -> None:
    """A new store whose making fails is not there, or is made by the next opening."""
    with faults.armed(None):
        async with ChainStore.open(str(folder / "whole.db")):
            calls = len(faults.calls)
    fresh = seen(folder / "whole.db")
    for nth in range(1, calls + 1):
        for kind in kinds(nth):
            path = folder / f"{nth}-{kind.name}.db"
            with faults.armed(Fault(kind, nth)), pytest.raises(RAISED[kind]):
                await ChainStore.open(str(path))
            async with ChainStore.open(str(path)) as store:
                assert await store.cursors() == {}
            assert seen(path) == fresh


async def test_opening_fails_at_every_call_and_then_succeeds(faults: Faults, tmp_path: Path) -> None:
    kinds = list(Kind)
    await opening(faults, tmp_path, lambda nth: [kinds[nth % len(kinds)]])


@pytest.mark.torture
async def test_opening_fails_at_every_call_in_every_way(faults: Faults, tmp_path: Path) -> None:
    await opening(faults, tmp_path, lambda nth: Kind)


async def test_a_rollback_that_fails_is_made_up_for_by_the_next_call(faults: Faults, tmp_path: Path) -> None:
    """SQLite is still in the transaction of the refused call; the next one must not land in it."""
    root, second, _ = chain(1, 2, 3)
    async with ChainStore.open(str(tmp_path / "chain.db")) as store:
        with faults.armed(None):
            with pytest.raises(NotHead):
                await store.append(second)
            nth = faults.calls.index("ROLLBACK") + 1
        with faults.armed(Fault(Kind.BUSY, nth)), pytest.raises(StoreBusy):
            await store.append(second)
        assert raw(store._writer).in_transaction  # so the fault was where it had to be
        assert await store.append(root) == 1
        assert await store.append(second) == 2


def test_the_harness_reaches_the_driver(faults: Faults, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    with faults.armed(Fault(Kind.FULL, 2)):
        connection.execute("CREATE TABLE t (x)")
        with pytest.raises(sqlite3.OperationalError):
            connection.execute("INSERT INTO t VALUES (1)")
    assert faults.calls == ["CREATE TABLE t (x)", "INSERT INTO t VALUES (1)"]
    connection.close()
