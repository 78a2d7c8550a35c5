"""What the line tells of loops that pause: a trouble stands as long as any loop has it."""

from __future__ import annotations

from typing import Any, cast

import structlog

from sidecar.errors import SourceUnavailable, StoreFull
from sidecar.line import Instruments, Line
from sidecar.telemetry.health import Health, NotReady
from sidecar.telemetry.metrics import Metrics


async def _nothing() -> None:
    return


def _line() -> tuple[Line, Health, Metrics]:
    metrics, health = Metrics(), Health()
    nobody = cast("Any", None)  # nothing is fed or judged here
    line = Line((), nobody, nobody, _nothing, Instruments(metrics, health, structlog.get_logger()), tick_s=1)
    health.clear(NotReady.STARTING)
    return line, health, metrics


def _paused(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("noetl_chain_store_paused")


def test_one_loops_trouble_does_not_hide_anothers() -> None:
    line, health, metrics = _line()
    line._trouble("live", NotReady.PAUSED, StoreFull("full"))
    line._trouble("sweep", NotReady.SOURCE_UNAVAILABLE, SourceUnavailable("gone"))
    assert health.reasons() == (NotReady.PAUSED, NotReady.SOURCE_UNAVAILABLE)
    assert _paused(metrics) == 1


def test_a_trouble_ends_with_the_last_loop_that_has_it() -> None:
    line, health, metrics = _line()
    for loop in ("live", "late"):
        line._trouble(loop, NotReady.PAUSED, StoreFull("full"))
    line._trouble("sweep", NotReady.SOURCE_UNAVAILABLE, SourceUnavailable("gone"))
    line._well("live")
    assert _paused(metrics) == 1
    line._well("late")
    assert (_paused(metrics), health.reasons()) == (0, (NotReady.SOURCE_UNAVAILABLE,))
    line._well("sweep")
    assert health.reasons() == ()
