"""Recorded logs, row by row, with states asked for between and beside all steps.

The order of the steps is drawn from a seed, each answer is held against a fold in its own hold.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sidecar.certified import Answer
from sidecar.core.certificate import Decision
from sidecar.core.digest import digest
from sidecar.core.event import Event
from sidecar.core.ports import Unit
from sidecar.core.workflow import fold
from tests.support.chains import ordered_chains, rows_by_execution
from tests.support.recorded import CLEAN, PUBLISHED, RESTARTS, recorded_set
from tests.support.scripted import Scripted

ROWS_MAX = 16


def story(name: str, chance: random.Random) -> list[Event]:
    """The first rows of some executions, each in the order in which it was written, interleaved."""
    recorded = recorded_set(name)
    logs = rows_by_execution(recorded)
    chosen = {*chance.sample(sorted(ordered_chains(recorded)), 2), chance.choice(sorted(logs))}
    left = [list(logs[execution][:ROWS_MAX]) for execution in sorted(chosen)]
    told: list[Event] = []
    while left := [rows for rows in left if rows]:
        told.append(chance.choice(left).pop(0))
    return told


async def checked(here: Scripted, execution_id: int, unit: Unit) -> Answer:
    answer = await here.certified.rebuild_or_skip(unit, execution_id)
    events = (await unit.guarded_read(execution_id)).events
    expected = None if events is None else fold(events)
    assert (answer.state is None) is (expected is None)
    if answer.state is not None and expected is not None:
        assert digest(answer.state) == digest(expected)
    return answer


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(name, seed, marks=pytest.mark.torture)
        for name, seeds in ((CLEAN, 1), (RESTARTS, 8), (PUBLISHED, 8))
        for seed in range(seeds)
    ],
)
async def test_a_state_of_a_recorded_log_is_the_fold_at_every_step(
    tmp_path: Path, name: str, seed: int
) -> None:
    chance = random.Random(f"{name} {seed}")
    here = await Scripted.open(tmp_path, cert=True)
    try:
        decided: Counter[Decision | None] = Counter()
        told = story(name, chance)
        known: list[int] = []
        at = 0
        while at < len(told):
            new = here.commit(*told[at : at + chance.randint(1, 6)])
            at += len(new)
            known += [event.execution_id for event in new]
            todo: list[Awaitable[Any]] = [here.deliver(row) for row in new]
            if chance.random() < 0.2:
                todo.append(here.deliver(*new, lane="late"))
            if chance.random() < 0.2:
                todo.append(here.judge(chance.choice(known)))
            asked = (known[-1], chance.choice(known))
            todo += [here.store.transact(partial(checked, here, execution)) for execution in asked]
            chance.shuffle(todo)
            for answer in await asyncio.gather(*todo):
                if isinstance(answer, Answer):
                    decided[answer.decision] += 1
            for execution in (*asked, *asked):
                answer = await here.store.transact(partial(checked, here, execution))
                decided[answer.decision] += 1
            if chance.random() < 0.1:
                await here.deliver()
            if chance.random() < 0.02:
                await here.restart()
        # In the others the first rows alone may be held back or refused from the start to the end.
        assert name != CLEAN or decided[Decision.SKIPPED] > 0
        assert here.certified._certificates.divergences == 0
    finally:
        await here.store.close()
