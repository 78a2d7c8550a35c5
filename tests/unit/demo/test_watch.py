"""The lag is measured row by row, and a refused execution is waited for by nobody."""

from __future__ import annotations

import time

import pytest

from sidecar.demo.watch import Writes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_oldest_unseen_row_gives_the_lag(clock: list[float]) -> None:
    writes = Writes()
    writes.add([1, 1, 2])
    clock[0] = 101.0
    writes.add([1])
    clock[0] = 103.0
    assert writes.rows == 4
    assert writes.unseen({}) == (4, 3.0)
    assert writes.unseen({1: 2, 2: 1}) == (1, 2.0)
    assert writes.unseen({1: 3, 2: 1}) == (0, 0.0)


def test_more_than_was_written_is_all(clock: list[float]) -> None:
    writes = Writes()
    writes.add([1])
    assert writes.unseen({1: 5}) == (0, 0.0)


def test_a_refused_execution_is_not_waited_for(clock: list[float]) -> None:
    writes = Writes()
    writes.add([1, 2])
    clock[0] = 104.0
    assert writes.unseen({1: None, 2: 0}) == (1, 4.0)
