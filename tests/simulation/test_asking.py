"""States asked for between any two steps of a whole service: a skip is the fold, and no log trips it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest

from sidecar.certified import Certified
from sidecar.core.certificate import Certificates, Decision
from sidecar.core.misses import WatchList
from tests.simulation.__main__ import shown
from tests.simulation.asking import asked

FEW = range(100)
LEAST = 12
"""Seeds played however slow the machine is."""
FEW_S = 2.0
MANY = range(10_000)
MANY_S = float(os.environ.get("NOETL_CHAIN_ASKING_S", "900"))
WITHIN = 100
NEVER = {Decision.CACHED_AHEAD, Decision.DIGEST_MISMATCH, Decision.NO_CACHED_STATE}
"""Decisions that no seed has led to: one commit calibrates and keeps the state of the same chain."""


def played(seeds: Iterable[int], *, within_s: float) -> Counter[Decision | None]:
    """What was decided until the seeds or the time were used up; the first wrong seed fails."""
    began, decided, number = time.monotonic(), Counter[Decision | None](), 0
    for number, seed in enumerate(seeds, start=1):
        outcome, asking = asked(seed)
        if outcome.wrong:
            pytest.fail(f"{outcome.wrong[0]}\n{shown(outcome)}", pytrace=False)
        decided += asking.decisions
        if number >= LEAST and time.monotonic() - began > within_s:
            break
    return decided


def test_whatever_lands_at_whatever_await_a_skip_is_the_fold_and_nothing_is_missed() -> None:
    decided = played(FEW, within_s=FEW_S)
    assert {Decision.SKIPPED, Decision.CHAIN_ADVANCED, Decision.NO_CERTIFICATE} <= decided.keys()


@pytest.mark.torture
@pytest.mark.timeout(MANY_S + 100)
def test_many_seeds_of_a_service_that_is_asked_all_the_time() -> None:
    decided = played(MANY, within_s=MANY_S)
    assert {*Decision} - NEVER <= decided.keys()


Broken = Callable[[], AbstractContextManager[Any]]


def _never_emitted() -> AbstractContextManager[Any]:
    return patch.object(WatchList, "emitted", lambda _self, _keys: None)


def _kept_after_its_end() -> AbstractContextManager[Any]:
    real = Certificates.observe

    def observe(here: Any, *given: Any, ended: bool = False) -> None:
        real(here, *given, ended=False)

    return patch.object(Certificates, "observe", observe)


def _not_observed() -> AbstractContextManager[Any]:
    return patch.object(Certified, "_observe_appended", lambda *_given: None)


def _held_rows_do_not_count() -> AbstractContextManager[Any]:
    return patch("sidecar.certified._may_not_answer", lambda *_given: False)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (_never_emitted, ("diverged",)),
        (_kept_after_its_end, ("has ended",)),
        (_not_observed, ("has ended", "diverged", "not its fold")),
        (_held_rows_do_not_count, ("not its fold",)),
    ],
)
def test_a_guard_taken_out_is_seen(broken: Broken, words: tuple[str, ...]) -> None:
    with broken():
        found = next((o.wrong[0] for o, _ in map(asked, range(WITHIN)) if o.wrong), None)
    assert found is not None
    assert any(each in found for each in words)
