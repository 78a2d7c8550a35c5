"""Runs of the whole service under one seed each: every verdict is the ledger's, at every moment.

A failing seed is printed with the command that replays it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count

import pytest

from tests.simulation.__main__ import shown
from tests.simulation.run import Outcome, simulate
from tests.simulation.script import FAULTS, RESTART_FAULTS, script

FEW = 300
FEW_S = 20.0
MANY = 10_000
MANY_S = float(os.environ.get("NOETL_CHAIN_SIMULATION_S", "1500"))
"""The torture run ends after so many seconds, however many seeds were played."""


def played(seeds: Iterable[int], *, within_s: float, least: int = 0) -> Iterator[Outcome]:
    """Play until the seeds or the time are used up, but at least so many.

    Raises:
        AssertionError: naming the first seed that went wrong, with its trace.
    """
    began = time.monotonic()
    for number, seed in enumerate(seeds, start=1):
        outcome = simulate(seed)
        if outcome.wrong:
            pytest.fail(f"{outcome.wrong[0]}\n{shown(outcome)}", pytrace=False)
        yield outcome
        if number >= least and time.monotonic() - began > within_s:
            return


def test_three_hundred_seeds_show_what_was_planted_and_nothing_else() -> None:
    runs = list(played(range(FEW), within_s=FEW_S, least=40))
    # What was expected did happen: a run in which everything matches proves little.
    verdicts = Counter(given for run in runs for _, given in run.table.values())
    assert {"match", "match_rejoined", "refused_multiple_roots", "refused_dangling_prev"} <= verdicts.keys()


@pytest.mark.torture
@pytest.mark.timeout(MANY_S + 250)
def test_ten_thousand_seeds_show_what_was_planted_and_nothing_else() -> None:
    verdicts: Counter[str | None] = Counter()
    faults: Counter[str] = Counter()
    number = rejoining = 0
    for number, run in enumerate(played(range(MANY), within_s=MANY_S), start=1):  # noqa: B007 - read behind the loop
        verdicts.update(given for _, given in run.table.values())
        faults.update(run.script.faults)
        rejoining += run.script.rejoin
    sys.stderr.write(f"{number} seeds, {rejoining} of them with joins: {dict(verdicts.most_common())}\n")
    assert rejoining > number / 3
    assert {*FAULTS, *RESTART_FAULTS} <= faults.keys()
    assert {
        "match", "divergent", "second_writer", "log_lost", "log_pruned", "log_truncated",
        "refused_multiple_roots", "refused_fork", "refused_dangling_prev", "refused_unreachable",
        "match_rejoined", "rejoin_withdrawn",
    } <= verdicts.keys()  # fmt: skip


def test_a_seed_plays_the_same_in_another_process() -> None:
    """No clock, no thread and no order of hashes decides anything."""
    seed = next(seed for seed in count() if {"kill", "storm"} <= script(seed).faults)
    here = shown(simulate(seed))
    assert shown(simulate(seed)) == here
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    there = subprocess.run(
        [sys.executable, "-m", "tests.simulation", str(seed)],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert there.stdout.strip() == here.strip()


def test_no_simulated_time_is_waited_for() -> None:
    began = time.process_time()
    outcome = simulate(3)
    assert outcome.seconds > 8 * (time.process_time() - began)
